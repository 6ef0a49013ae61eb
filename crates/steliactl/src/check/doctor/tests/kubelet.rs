//! Would kubelet start, and how long would it take to align a pod?

use super::*;

fn option(facts: &mut Facts, name: &str) {
    let options = &mut told(facts).cpu_manager_policy_options;
    options.clear();
    options.insert(name.to_owned(), "true".to_owned());
}

fn start(change: Change) -> Finding {
    let mut facts = fit();
    change(&mut facts);
    named(&facts, "kubelet-start")
}

/// kubelet does not read the files of pods with the gate off, and goes on without its record of devices.
#[test]
fn a_kubelet_that_starts_in_spite_of_a_damaged_file_is_told_to() {
    let check = start(|f| f.files.devices = Err(unusable("kubelet_internal_checkpoint: cut", true)));
    assert_eq!(check.outcome, Outcome::Warn);
    says(&check.fact, &["which devices are in use"]);
    // What the gate needs is told, and nothing of the file.
    let check = start(|f| {
        let gate = "InPlacePodVerticalScaling".to_owned();
        told(f).feature_gates.insert(gate, false);
        f.files.pods = vec![("allocated_pods_state", unusable("allocated_pods_state: cut", true))];
    });
    says(&check.fact, &["InPlacePodVerticalScaling"]);
    never_says(&check.fact, &["allocated_pods_state"]);
    let check = start(|f| {
        let gate = "DynamicResourceAllocation".to_owned();
        told(f).feature_gates.insert(gate, false);
        f.files.pods = vec![("dra_manager_state", unusable("dra_manager_state: cut", true))];
    });
    never_says(&check.fact, &["dra_manager_state"]);
}

#[test]
fn a_file_of_another_schema_is_told_and_devices_are_not_called_forgotten() {
    let check = start(|f| f.files.memory = Err(unusable("of a newer schema", false)));
    assert_eq!(check.outcome, Outcome::Note);
    let check =
        start(|f| f.files.pods = vec![("allocated_pods_state", unusable("allocated_pods_state: newer", false))]);
    assert_eq!(check.outcome, Outcome::Note);
    says(&check.fact, &["allocated_pods_state: newer"]);
    let check = start(|f| f.files.devices = Err(unusable("kubelet_internal_checkpoint: newer", false)));
    assert_eq!(check.outcome, Outcome::Warn);
    says(&check.fix, &["upgrade steliad"]);
    never_says(&check.fix, &["drain"]);
}

#[rstest]
#[case::another_cpu_policy(
    Outcome::Fail,
    r#"configured policy "static" differs from state checkpoint policy "none""#,
    "remove /var/lib/kubelet/cpu_manager_state, start kubelet; or set cpuManagerPolicy back to none",
    |f: &mut Facts| cpu_file(f).policy = "none".into()
)]
#[case::a_corrupt_memory_file(
    Outcome::Fail,
    "checksum",
    "remove /var/lib/kubelet/memory_manager_state",
    |f: &mut Facts| f.files.memory = Err(unusable("memory_manager_state: checksum", true))
)]
#[case::a_cut_file_of_pods(
    Outcome::Fail,
    "allocated_pods_state: cut",
    "remove /var/lib/kubelet/allocated_pods_state",
    |f: &mut Facts| f.files.pods = vec![("allocated_pods_state", unusable("allocated_pods_state: cut", true))]
)]
#[case::another_root(
    Outcome::Fail,
    "differs",
    "remove /data/kubelet/cpu_manager_state",
    |f: &mut Facts| {
        told(f).root_dir = "/data/kubelet".into();
        cpu_file(f).policy = "none".into();
    }
)]
#[case::an_option_of_another_kubelet(Outcome::Warn, "new-in-99", "newer than steliad", |f: &mut Facts| {
    option(f, "new-in-99");
})]
#[case::an_option_whose_gate_is_off(
    Outcome::Warn,
    "align-by-socket (alpha 1.25) needs the feature gate CPUManagerPolicyAlphaOptions in 1.36",
    "featureGates: {CPUManagerPolicyAlphaOptions: true}",
    |f: &mut Facts| option(f, "align-by-socket")
)]
#[case::too_many_numa_nodes(Outcome::Fail, "9 NUMA nodes are more than", "max-allowable-numa-nodes", |f: &mut Facts| {
    told(f).topology_manager_policy = "restricted".into();
    f.files.numa = Ok((0..9).map(|node| (node, KernelNumaNode::default())).collect());
})]
fn a_kubelet_that_would_not_start_is_told_in_its_own_words(
    #[case] outcome: Outcome,
    #[case] found: &str,
    #[case] fix: &str,
    #[case] change: Change,
) {
    let mut facts = fit();
    change(&mut facts);
    let check = named(&facts, "kubelet-start");
    assert_eq!(check.outcome, outcome, "{check:?}");
    says(&check.fact, &[found]);
    says(&check.fix, &[fix]);
}

/// No process is kubelet between two of its starts.
#[test]
fn a_kubelet_that_crashes_again_and_again_is_known_by_kubeadms_file() {
    let config = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";
    let state = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
    let root = folder(&[
        ("var/lib/kubelet/config.yaml", config),
        ("var/lib/kubelet/cpu_manager_state", state),
        ("proc/1/comm", "systemd\n"),
    ]);
    let (outcome, found) = said(&Facts::read(root.path()), "kubelet-start");
    assert_eq!(outcome, Outcome::Fail);
    says(
        &found,
        &["configured policy \"static\" differs", "/var/lib/kubelet/config.yaml"],
    );
    fs::remove_file(root.path().join("var/lib/kubelet/config.yaml")).unwrap();
    assert_eq!(named(&Facts::read(root.path()), "kubelet-start").needs, Some("kubelet"));
}

#[test]
fn what_a_hidden_flag_may_say_is_unknown_and_no_failure() {
    let both = |change: Change| {
        let mut facts = fit();
        facts.kubelet = Ok(KubeletConfig {
            hidden: true,
            ..KubeletConfig::default()
        });
        change(&mut facts);
        ["kubelet-policy", "kubelet-start"].map(|name| said(&facts, name))
    };
    let overridden = both(|_| ());
    for (outcome, found) in &overridden {
        assert_eq!(*outcome, Outcome::Warn, "{found}");
        says(found, &["k3s hides its command line"]);
    }
    says(&overridden[0].1, &["cpuManagerPolicy: static by its state file"]);
    let [(outcome, found), _] = both(|facts| facts.files.cpus = Ok(None));
    assert_eq!(outcome, Outcome::Warn);
    says(&found, &["its policy is not known"]);
    // The state file confirms the policy.
    let [none, _] = both(|facts| cpu_file(facts).policy = "none".into());
    assert_eq!(none, (Outcome::Fail, "cpuManagerPolicy: none".to_owned()));
}

/// Eight NUMA nodes with huge pages, one of them without CPUs; static managers, and this policy.
fn large(policy: &str) -> Facts {
    let mut facts = fit();
    let pages = Pages {
        total: 512,
        reserved: 0,
        free: 512,
    };
    let node = KernelNumaNode {
        huge_pages: [(2 << 20, pages)].into(),
        ..KernelNumaNode::default()
    };
    facts.files.numa = Ok((0..8).map(|id| (id, node.clone())).collect());
    facts.topology = Ok(shape(8, 1, 1));
    let kubelet = told(&mut facts);
    kubelet.memory_manager_policy = "Static".into();
    kubelet.topology_manager_policy = policy.into();
    facts
}

fn devices(facts: &mut Facts, resources: &[&str]) {
    let registered = resources.iter().map(|name| ((*name).to_owned(), [].into()));
    // The last resource's plugin reports no NUMA node.
    let entries = resources.last().map(|name| DeviceEntry {
        pod: PodUid::parse(POD).unwrap(),
        container: "vm".to_owned(),
        resource: (*name).to_owned(),
        devices: [(None, ["0".to_owned()].into())].into(),
        files: [].into(),
    });
    facts.files.devices = Ok(Some(DeviceManagerState {
        entries: entries.into_iter().collect(),
        registered: registered.collect(),
    }));
}

#[rstest]
#[case::three_kinds("restricted", &[], Outcome::Pass, "1.7e7 combinations for a pod with cpu, memory, huge pages, about 5 s")]
#[case::a_gpu("restricted", &["nvidia.com/gpu", "devices.kubevirt.io/kvm"], Outcome::Warn, "8 NUMA nodes, restricted: up to 4.2e9 combinations for a pod with cpu, memory, huge pages, nvidia.com/gpu, about 21 min")]
#[case::a_nic_too("best-effort", &["nvidia.com/gpu", "example.com/nic", "kvm"], Outcome::Warn, "about 4 days")]
#[case::one_node_each("single-numa-node", &["nvidia.com/gpu", "kvm"], Outcome::Pass, "4096 combinations")]
#[case::not_aligned("none", &["nvidia.com/gpu", "kvm"], Outcome::Pass, "topology manager none")]
fn a_merge_that_takes_minutes_is_warned_of(
    #[case] policy: &str,
    #[case] resources: &[&str],
    #[case] outcome: Outcome,
    #[case] found: &str,
) {
    let mut facts = large(policy);
    devices(&mut facts, resources);
    let check = named(&facts, "hint-merge");
    assert_eq!(check.outcome, outcome, "{check:?}");
    says(&check.fact, &[found]);
    assert_eq!(
        check.fix.contains("single-numa-node"),
        outcome == Outcome::Warn,
        "{check:?}"
    );
}

/// NVIDIA GB200: two NUMA nodes with CPUs, 32 without, which no setting of the firmware removes.
#[test]
fn a_gb200_with_static_memory_is_warned_of_with_any_policy() {
    for policy in ["none", "single-numa-node", "best-effort"] {
        let mut facts = fit();
        facts.files.numa = Ok(numa_nodes(34));
        told(&mut facts).topology_manager_policy = policy.into();
        devices(&mut facts, &["nvidia.com/gpu", "kvm"]);
        assert_eq!(named(&facts, "hint-merge").outcome, Outcome::Pass, "without it");
        told(&mut facts).memory_manager_policy = "Static".into();
        let check = named(&facts, "hint-merge");
        assert_eq!(check.outcome, Outcome::Warn, "{check:?}");
        says(&check.fact, &["1.7e10 sets of 34 NUMA nodes"]);
        says(&check.fix, &["memoryManagerPolicy: None", "32 NUMA nodes without CPUs"]);
    }
}
