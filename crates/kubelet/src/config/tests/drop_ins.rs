//! What kubelet passes over, and how drop-ins are merged.

use super::*;

#[test]
fn of_a_key_given_twice_the_last_counts_in_the_file_and_a_drop_in_must_not_have_one() {
    let config = of(
        "cpuManagerPolicy: none\naddress: 0.0.0.0\ncpuManagerPolicy: static\naddress: 127.0.0.1\nkubeReserved: {cpu: \"1\", cpu: \"2\"}\n",
    );
    assert_eq!(
        (config.cpu_manager_policy.as_str(), config.kube_reserved["cpu"].as_str()),
        ("static", "2")
    );
    let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    let expected = ["cpuManagerPolicy", "address", "kubeReserved.cpu"];
    assert_eq!(
        warnings,
        expected.map(|key| format!("config.yaml: {key} is there twice, and kubelet takes the last"))
    );
    let error = DropIn::parse(&format!("{HEAD}address: a\naddress: b\n"), "10.conf")
        .unwrap_err()
        .in_full();
    assert!(
        error.starts_with("kubelet would not start: 10.conf: address is there twice"),
        "{error}"
    );
}

#[test]
fn only_the_first_document_is_read() {
    let config = of("cpuManagerPolicy: static\n---\ncpuManagerPolicy: none\n--- [\n");
    assert_eq!(config.cpu_manager_policy, "static");
    assert!(config.warnings[0].to_string().contains("the first YAML document only"));
}

#[test]
fn an_unknown_key_has_no_effect_and_is_named_with_the_one_that_may_be_meant() {
    let config = of("reservedCpus: 0-4\nCpuManagerPolicy: static\nauthentication: {anonymus: {}}\nzzz: 1\n");
    assert_eq!(config.cpu_manager_policy, "none");
    let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    let has = |text: &str| warnings.iter().any(|warning| warning.contains(text));
    assert!(
        has("no key reservedCpus and passes over it (did you mean reservedSystemCPUs?)"),
        "{warnings:?}"
    );
    assert!(
        has("CpuManagerPolicy and passes over it (did you mean cpuManagerPolicy?)"),
        "{warnings:?}"
    );
    assert!(
        has("authentication.anonymus and passes over it (did you mean anonymous?)"),
        "{warnings:?}"
    );
    assert!(
        warnings
            .iter()
            .any(|warning| warning.ends_with("no key zzz and passes over it")),
        "{warnings:?}"
    );
}

#[test]
fn later_drop_ins_win_key_by_key() {
    let config = merged(
        FILE,
        &[
            "cpuManagerPolicyOptions: {full-pcpus-only: \"false\"}\nreservedSystemCPUs: 0-1\n",
            "reservedSystemCPUs: 0-3\nfeatureGates: {MemoryQoS: true}\nreservedMemory: []\n",
        ],
    )
    .unwrap();
    assert_eq!(config.reserved_system_cpus.to_string(), "0-3");
    let options = texts(&[("full-pcpus-only", "false"), ("strict-cpu-reservation", "false")]);
    assert_eq!(config.cpu_manager_policy_options, options);
    assert_eq!(config.feature_gates.values().collect::<Vec<_>>(), [&true, &true]);
    assert_eq!(
        (config.memory_manager_policy.as_str(), config.reserved_memory.len()),
        ("Static", 0)
    );
}

#[test]
fn null_in_a_drop_in_removes_the_key() {
    let config = merged(
        FILE,
        &[
            "topologyManagerPolicy: null\nreservedSystemCPUs: null\nevictionHard: null\nsyncFrequency: null\n\
         cpuManagerPolicyOptions: {strict-cpu-reservation: null}\nsystemReserved: {memory: null, cpu: \"1\"}\n",
        ],
    )
    .unwrap();
    assert_eq!(config.topology_manager_policy, "none");
    assert!(config.reserved_system_cpus.is_empty() && config.eviction_hard.is_empty());
    assert_eq!(config.cpu_manager_policy_options, texts(&[("full-pcpus-only", "true")]));
    assert_eq!(config.system_reserved, texts(&[("cpu", "1")]));
}

#[test]
fn case_does_not_matter_in_a_drop_in_for_a_key_that_the_file_does_not_have() {
    let config = merged("", &["ReservedSystemCPUs: \"1\"\nCPUManagerPolicy: static\n"]).unwrap();
    // Of two spellings the later in the order of bytes counts, and kubelet's default of the policy is there already.
    assert_eq!(
        (
            config.reserved_system_cpus.to_string().as_str(),
            config.cpu_manager_policy.as_str()
        ),
        ("1", "none")
    );
    let wrong = HEAD.replace("kind", "Kind");
    assert!(File::parse(&wrong, "x").is_ok());
    assert!(DropIn::parse(&wrong, "x").is_err());
}

#[test]
fn a_wrong_value_of_a_drop_in_is_told_with_its_file_unless_a_later_one_replaces_it() {
    let error = merged("", &["maxPods: 5\n", "kubeReserved: {cpu: 1}\n"])
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("10.conf: kubeReserved.cpu is the number 1"),
        "{error}"
    );
    assert!(merged("", &["maxPods: \"5\"\n", "maxPods: 6\n"]).is_ok());
}
