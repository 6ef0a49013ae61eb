//! Would kubelet start?

use stelia_kubelet::config::MemoryReservation;

use super::*;

fn option(facts: &mut Facts, name: &str) {
    let options = &mut told(facts).cpu_manager_policy_options;
    options.clear();
    options.insert(name.to_owned(), "true".to_owned());
}

const MEMORY_STATE: fn(&str) -> MemoryManagerState = |policy| MemoryManagerState {
    schema: MemorySchema::V1,
    policy: policy.to_owned(),
    nodes: [].into(),
    entries: [].into(),
    pod_entries: [].into(),
};

fn start(change: Change) -> Finding {
    let mut facts = fit();
    change(&mut facts);
    named(&facts, "kubelet-start")
}

/// kubelet does not read the files of pods with the gate off, and goes on without its record of devices.
#[test]
fn a_kubelet_that_starts_in_spite_of_a_damaged_file_is_told_to() {
    let check = start(|f| f.files.devices = Err(unusable("kubelet_internal_checkpoint: cut", true)));
    assert_eq!(check.verdict, Verdict::Warning);
    says(&check.found, &["has forgotten which devices are in use"]);
    // What the gate needs is told, and nothing of the file.
    let check = start(|f| {
        let gate = "InPlacePodVerticalScaling".to_owned();
        told(f).feature_gates.insert(gate, false);
        f.files.pods = vec![("allocated_pods_state", unusable("allocated_pods_state: cut", true))];
    });
    says(&check.found, &["InPlacePodVerticalScaling"]);
    never_says(&check.found, &["allocated_pods_state"]);
    let check = start(|f| {
        let gate = "DynamicResourceAllocation".to_owned();
        told(f).feature_gates.insert(gate, false);
        f.files.pods = vec![("dra_manager_state", unusable("dra_manager_state: cut", true))];
    });
    never_says(&check.found, &["dra_manager_state"]);
}

#[test]
fn a_file_of_another_schema_is_told_and_devices_are_not_called_forgotten() {
    let check = start(|f| f.files.memory = Err(unusable("of a newer schema", false)));
    assert_eq!(check.verdict, Verdict::Unknown);
    let check =
        start(|f| f.files.pods = vec![("allocated_pods_state", unusable("allocated_pods_state: newer", false))]);
    let found = "allocated_pods_state: newer: whether kubelet starts with it is not known";
    assert_eq!((check.verdict, check.found.as_str()), (Verdict::Unknown, found));
    let check = start(|f| f.files.devices = Err(unusable("kubelet_internal_checkpoint: newer", false)));
    says(&check.found, &["which devices are in use is not known"]);
    says(&check.cure, &["upgrade steliad"]);
    never_says(&check.cure, &["drain"]);
}

#[rstest]
#[case::another_cpu_policy(
    Verdict::Failed,
    r#"configured policy "static" differs from state checkpoint policy "none""#,
    "remove /var/lib/kubelet/cpu_manager_state, start kubelet; or set cpuManagerPolicy back to none",
    |f: &mut Facts| cpu_file(f).policy = "none".into()
)]
#[case::another_memory_policy(
    Verdict::Failed,
    r#"[memorymanager] configured policy "None" differs from state checkpoint policy "Static""#,
    "remove /var/lib/kubelet/memory_manager_state, start kubelet; or set memoryManagerPolicy back to Static",
    |f: &mut Facts| f.files.memory = Ok(Some(MEMORY_STATE("Static")))
)]
#[case::a_corrupt_memory_file(
    Verdict::Failed,
    "checksum",
    "remove /var/lib/kubelet/memory_manager_state",
    |f: &mut Facts| f.files.memory = Err(unusable("memory_manager_state: checksum", true))
)]
#[case::a_cut_cpu_file(
    Verdict::Failed,
    "cpu_manager_state: the file is empty",
    "remove /var/lib/kubelet/cpu_manager_state",
    |f: &mut Facts| f.files.cpus = Err(unusable("cpu_manager_state: the file is empty", true))
)]
#[case::a_cut_file_of_pods(
    Verdict::Failed,
    "allocated_pods_state: cut",
    "remove /var/lib/kubelet/allocated_pods_state",
    |f: &mut Facts| f.files.pods = vec![("allocated_pods_state", unusable("allocated_pods_state: cut", true))]
)]
#[case::an_empty_file_of_claims(
    Verdict::Failed,
    "dra_manager_state: the file is empty",
    "remove /var/lib/kubelet/dra_manager_state",
    |f: &mut Facts| f.files.pods = vec![("dra_manager_state", unusable("dra_manager_state: the file is empty", true))]
)]
#[case::other_huge_pages(
    Verdict::Failed,
    "[memorymanager] the expected machine state is different from the real one",
    "remove /var/lib/kubelet/memory_manager_state",
    |f: &mut Facts| {
        told(f).memory_manager_policy = "Static".into();
        told(f).kube_reserved = [("memory".to_owned(), "1Gi".to_owned())].into();
        let limits = [("memory".to_owned(), "1Gi".to_owned())].into();
        told(f).reserved_memory = vec![MemoryReservation { numa_node: 0, limits }];
        let table = MemoryTable { total: 8 << 30, system_reserved: 1 << 30, ..MemoryTable::default() };
        let node = memory::NumaNodeState { tables: [("memory".to_owned(), table)].into(), cells: vec![0], assignments: 0 };
        let state = MemoryManagerState { nodes: [(0, node)].into(), ..MEMORY_STATE("Static") };
        f.files.memory = Ok(Some(state));
    }
)]
#[case::another_root(
    Verdict::Failed,
    "differs",
    "remove /data/kubelet/cpu_manager_state",
    |f: &mut Facts| {
        told(f).root_dir = "/data/kubelet".into();
        cpu_file(f).policy = "none".into();
    }
)]
#[case::more_reserved(
    Verdict::Failed,
    r#"not all reserved cpus: "0-1,4-5" are present in defaultCpuSet: "0,2-4,6-7""#,
    "or set reservedSystemCPUs",
    |f: &mut Facts| told(f).reserved_system_cpus = "0-1,4-5".parse().unwrap()
)]
#[case::strict_reservation_turned_on(
    Verdict::Failed,
    r#"some of strictly reserved cpus: "0,4" are present in defaultCpuSet"#,
    "strict-cpu-reservation",
    |f: &mut Facts| option(f, "strict-cpu-reservation")
)]
#[case::a_cpu_went_offline(
    Verdict::Failed,
    "current set of available CPUs",
    "the CPUs that are online",
    |f: &mut Facts| { f.topology.as_mut().unwrap().cpus.remove(&7); }
)]
#[case::nothing_reserved(
    Verdict::Failed,
    "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero",
    "set reservedSystemCPUs",
    |f: &mut Facts| told(f).reserved_system_cpus = CpuSet::new()
)]
#[case::options_of_no_policy(Verdict::Failed, "the policy none has no options", "remove cpuManagerPolicyOptions", |f: &mut Facts| {
    told(f).cpu_manager_policy = "none".into();
    f.files.cpus = Ok(None);
})]
#[case::memory_reserved_for_no_node(Verdict::Failed, "reservedMemory has 0 bytes", "set reservedMemory", |f: &mut Facts| {
    told(f).memory_manager_policy = "Static".into();
    told(f).kube_reserved = [("memory".to_owned(), "1Gi".to_owned())].into();
})]
#[case::an_unreadable_file(Verdict::Failed, "k.yaml: reservedSystemCPUs is the number 0", "before kubelet is restarted", |f: &mut Facts| {
    f.kubelet = Err(parsed("reservedSystemCPUs: 0").unwrap_err().into());
})]
#[case::reserved_and_not_there(Verdict::Failed, "9", "CPUs that this node has", |f: &mut Facts| {
    told(f).reserved_system_cpus = "0,9".parse().unwrap();
})]
#[case::an_option_of_another_kubelet(Verdict::Warning, "new-in-99", "newer than steliad", |f: &mut Facts| {
    option(f, "new-in-99");
})]
#[case::options_that_exclude_each_other(Verdict::Failed, "align-by-socket", "cpuManagerPolicyOptions", |f: &mut Facts| {
    option(f, "align-by-socket");
    told(f).topology_manager_policy = "single-numa-node".into();
})]
#[case::an_option_whose_gate_is_off(
    Verdict::Warning,
    "align-by-socket (alpha 1.25) needs the feature gate CPUManagerPolicyAlphaOptions in 1.36",
    "featureGates: {CPUManagerPolicyAlphaOptions: true}",
    |f: &mut Facts| option(f, "align-by-socket")
)]
#[case::too_many_numa_nodes(Verdict::Failed, "9 NUMA nodes are more than", "max-allowable-numa-nodes", |f: &mut Facts| {
    told(f).topology_manager_policy = "restricted".into();
    f.files.numa = Ok((0..9).map(|node| (node, KernelNumaNode::default())).collect());
})]
fn a_kubelet_that_would_not_start_is_told_in_its_own_words(
    #[case] verdict: Verdict,
    #[case] found: &str,
    #[case] cure: &str,
    #[case] change: Change,
) {
    let mut facts = fit();
    change(&mut facts);
    let check = named(&facts, "kubelet-start");
    assert_eq!(check.verdict, verdict, "{check:?}");
    says(&check.found, &["kubelet would not start: ", found]);
    says(&check.cure, &[cure]);
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
    let (verdict, found) = said(&Facts::read(root.path()), "kubelet-start");
    assert_eq!(verdict, Verdict::Failed);
    assert_eq!(
        found,
        "kubelet would not start: configured policy \"static\" differs from state checkpoint policy \"none\" \
         (none runs: its settings are taken from /var/lib/kubelet/config.yaml)"
    );
    fs::remove_file(root.path().join("var/lib/kubelet/config.yaml")).unwrap();
    let unread = "kubelet's configuration cannot be read".to_owned();
    let said = said(&Facts::read(root.path()), "kubelet-start");
    assert_eq!(said, (Verdict::Unknown, unread));
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
    for (verdict, found) in &overridden {
        assert_eq!(*verdict, Verdict::Warning, "{found}");
        says(found, &["unknown: k3s hides its command line"]);
    }
    says(&overridden[0].1, &["cpuManagerPolicy: static by its state file"]);
    let [(verdict, found), _] = both(|facts| facts.files.cpus = Ok(None));
    assert_eq!(verdict, Verdict::Warning);
    says(&found, &["its policy is not known"]);
    // The state file confirms the policy.
    let [none, _] = both(|facts| cpu_file(facts).policy = "none".into());
    assert_eq!(none, (Verdict::Failed, "cpuManagerPolicy: none".to_owned()));
}
