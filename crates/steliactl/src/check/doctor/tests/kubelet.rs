//! Would kubelet start?

use super::*;

fn option(seen: &mut Observed, name: &str) {
    let options = &mut told(seen).cpu_manager_policy_options;
    options.clear();
    options.insert(name.to_owned(), "true".to_owned());
}

fn start(change: Change) -> Diagnosis {
    let mut seen = fit();
    change(&mut seen);
    named(&seen, "kubelet-start")
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
        f.files.allocated = Err(unusable("allocated_pods_state: cut", true));
    });
    says(&check.fact, &["InPlacePodVerticalScaling"]);
    assert!(!check.fact.contains("allocated_pods_state"));
    let check = start(|f| {
        let gate = "DynamicResourceAllocation".to_owned();
        told(f).feature_gates.insert(gate, false);
        f.files.claims = Err(unusable("dra_manager_state: cut", true));
    });
    assert!(!check.fact.contains("dra_manager_state"));
}

#[test]
fn a_file_of_another_schema_is_told_and_devices_are_not_called_forgotten() {
    let check = start(|f| f.files.memory = Err(unusable("of a newer schema", false)));
    assert_eq!(check.outcome, Outcome::Note);
    let check = start(|f| f.files.allocated = Err(unusable("allocated_pods_state: newer", false)));
    assert_eq!(check.outcome, Outcome::Note);
    says(&check.fact, &["allocated_pods_state: newer"]);
    let check = start(|f| f.files.devices = Err(unusable("kubelet_internal_checkpoint: newer", false)));
    assert_eq!(check.outcome, Outcome::Warn);
    says(&check.fix, &["upgrade steliad"]);
    assert!(!check.fix.contains("drain"));
}

#[rstest]
#[case::another_cpu_policy(
    Outcome::Fail,
    r#"configured policy "static" differs from state checkpoint policy "none""#,
    "remove /var/lib/kubelet/cpu_manager_state, start kubelet; or set cpuManagerPolicy back to none",
    |f: &mut Observed| state(f).policy = "none".into()
)]
#[case::a_corrupt_memory_file(
    Outcome::Fail,
    "checksum",
    "remove /var/lib/kubelet/memory_manager_state",
    |f: &mut Observed| f.files.memory = Err(unusable("memory_manager_state: checksum", true))
)]
#[case::a_cut_file_of_pods(
    Outcome::Fail,
    "allocated_pods_state: cut",
    "remove /var/lib/kubelet/allocated_pods_state",
    |f: &mut Observed| f.files.allocated = Err(unusable("allocated_pods_state: cut", true))
)]
#[case::another_root(
    Outcome::Fail,
    "differs",
    "remove /data/kubelet/cpu_manager_state",
    |f: &mut Observed| {
        told(f).root_dir = "/data/kubelet".into();
        state(f).policy = "none".into();
    }
)]
#[case::an_option_of_another_kubelet(Outcome::Warn, "new-in-99", "newer than steliad", |f: &mut Observed| {
    option(f, "new-in-99");
})]
#[case::an_option_whose_gate_is_off(
    Outcome::Warn,
    "align-by-socket (alpha 1.25) needs the feature gate CPUManagerPolicyAlphaOptions in 1.36",
    "featureGates: {CPUManagerPolicyAlphaOptions: true}",
    |f: &mut Observed| option(f, "align-by-socket")
)]
#[case::too_many_numa_nodes(Outcome::Fail, "9 NUMA nodes are more than", "max-allowable-numa-nodes", |f: &mut Observed| {
    told(f).topology_manager_policy = "restricted".into();
    f.machine = Some(machine(&shape(2, 2, 2), &[].into(), &numa_nodes(9)));
})]
fn a_kubelet_that_would_not_start_is_told_in_its_own_words(
    #[case] outcome: Outcome,
    #[case] found: &str,
    #[case] fix: &str,
    #[case] change: Change,
) {
    let mut seen = fit();
    change(&mut seen);
    let check = named(&seen, "kubelet-start");
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
    let (outcome, found) = said(&read(root.path()), "kubelet-start");
    assert_eq!(outcome, Outcome::Fail);
    says(&found, &["configured policy \"static\" differs"]);
    fs::remove_file(root.path().join("var/lib/kubelet/config.yaml")).unwrap();
    assert_eq!(named(&read(root.path()), "kubelet-start").needs, Some("kubelet"));
}

#[test]
fn what_a_hidden_flag_may_say_is_unknown_and_no_failure() {
    let both = |change: Change| {
        let mut seen = fit();
        seen.kubelet = Ok(KubeletConfig {
            hidden: true,
            ..KubeletConfig::default()
        });
        change(&mut seen);
        ["kubelet-policy", "kubelet-start"].map(|name| named(&seen, name))
    };
    let overridden = both(|_| ());
    for one in &overridden {
        assert_eq!(one.outcome, Outcome::Warn, "{one:?}");
        says(&one.fix, &["/etc/rancher/k3s/config.yaml"]);
    }
    says(&overridden[0].fact, &["cpuManagerPolicy: static"]);
    let [unknown, _] = both(|seen| seen.files.cpus = Ok(None));
    assert_eq!(unknown.outcome, Outcome::Warn);
    // The state file confirms the policy.
    let [none, _] = both(|seen| state(seen).policy = "none".into());
    assert_eq!(none.outcome, Outcome::Fail);
    says(&none.fact, &["cpuManagerPolicy: none"]);
}
