mod drop_ins;
mod machine;
mod public;

use rstest::rstest;

use super::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn file(keys: &str) -> File {
    File::parse(&format!("{HEAD}{keys}"), "config.yaml").unwrap()
}

fn drop_in(keys: &str) -> DropIn {
    DropIn::parse(&format!("{HEAD}{keys}"), "10.conf").unwrap()
}

/// kubelet's configuration of one file.
fn of(keys: &str) -> KubeletConfig {
    KubeletConfig::new(Some(file(keys)), Vec::new(), Flags::default()).unwrap()
}

/// Of a file and its drop-ins.
fn merged(keys: &str, drop_ins: &[&str]) -> Result<KubeletConfig, ConfigError> {
    let drop_ins = drop_ins.iter().map(|keys| drop_in(keys)).collect();
    KubeletConfig::new(Some(file(keys)), drop_ins, Flags::default())
}

fn flags(line: &str) -> Result<Flags, ConfigError> {
    let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
    Flags::parse(&argv)
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// As kubeadm writes it, with reserved CPUs.
const FILE: &str = r#"
authentication:
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
clusterDNS:
- 10.96.0.10
cpuManagerPolicy: static
cpuManagerPolicyOptions:
  full-pcpus-only: "true"
  strict-cpu-reservation: 'false'
cpuManagerReconcilePeriod: 0s
evictionHard: {memory.available: 100Mi, nodefs.available: "10%"}
featureGates:
  PodLevelResourceManagers: true
  MemoryQoS: no
memoryManagerPolicy: Static
reservedMemory:
- numaNode: 0
  limits: {memory: 2Gi}
reservedSystemCPUs: 0,64
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true"}
kubeReserved: {cpu: 500m, memory: 1Gi}
systemReserved: {memory: "1073741824"}
"#;

#[test]
fn a_file_says_what_it_says_among_hundreds_of_other_keys() {
    let config = of(FILE);
    let expected = KubeletConfig {
        cpu_manager_policy: "static".into(),
        cpu_manager_policy_options: texts(&[("full-pcpus-only", "true"), ("strict-cpu-reservation", "false")]),
        reserved_system_cpus: "0,64".parse().unwrap(),
        topology_manager_policy: "single-numa-node".into(),
        topology_manager_scope: "pod".into(),
        topology_manager_policy_options: texts(&[("prefer-closest-numa-nodes", "true")]),
        memory_manager_policy: "Static".into(),
        cgroup_root: "/".into(),
        cgroup_driver: "cgroupfs".into(),
        cgroups_per_qos: true,
        root_dir: "/var/lib/kubelet".into(),
        hostname_override: None,
        feature_gates: [("PodLevelResourceManagers".into(), true), ("MemoryQoS".into(), false)].into(),
        kube_reserved: texts(&[("cpu", "500m"), ("memory", "1Gi")]),
        system_reserved: texts(&[("memory", "1073741824")]),
        eviction_hard: texts(&[("memory.available", "100Mi"), ("nodefs.available", "10%")]),
        reserved_memory: vec![MemoryReservation {
            numa_node: 0,
            limits: texts(&[("memory", "2Gi")]),
        }],
        has_cpu_policy: true,
        ..KubeletConfig::default()
    };
    assert_eq!(config, expected);
    assert!(config.cpu_option("full-pcpus-only") && !config.cpu_option("strict-cpu-reservation"));
    assert!(!config.cpu_option("distribute-cpus-across-numa"));
}

#[test]
fn without_a_word_kubelets_defaults_hold() {
    let mut config = of("cpuManagerPolicy: null\nmemoryManagerPolicy: \"\"\n");
    assert_eq!(config.eviction_hard["memory.available"], "100Mi");
    config.eviction_hard.clear();
    assert_eq!(config, KubeletConfig::default());
    assert_eq!(config.cpu_manager_policy, "none");
    let nothing = KubeletConfig::new(None, Vec::new(), Flags::default()).unwrap();
    assert_eq!(nothing, KubeletConfig::default());
}

#[test]
fn json_is_read_too() {
    let json = r#"{"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "reservedSystemCPUs": "1", "unknown": [{"a": null}]}"#;
    let config = KubeletConfig::new(Some(File::parse(json, "x").unwrap()), Vec::new(), Flags::default()).unwrap();
    assert_eq!(config.reserved_system_cpus.to_string(), "1");
    assert_eq!(of("reservedSystemCPUs: \"\"\n").reserved_system_cpus.to_string(), "");
    let float = json.replace("\"1\",", "\"1\", \"maxPods\": 1e2,");
    let error = File::parse(&float, "x").unwrap_err().to_string();
    assert!(error.starts_with("x: maxPods is the number 100.0, and"), "{error}");
}

#[rstest]
#[case("", "the file is empty")]
#[case("a: [", "conf.yaml: line 1")]
#[case("- a\n", "not a map")]
#[case("# nothing\n", "it has no kind")]
#[case("kind: Pod\napiVersion: v1\n", "kind is Pod, not KubeletConfiguration")]
#[case("cpuManagerPolicy: static\n", "it has no kind")]
#[case(
    "kind: KubeletConfiguration\n",
    "it has no apiVersion, which has to be kubelet.config.k8s.io/v1beta1"
)]
#[case(
    "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1alpha1\n",
    "apiVersion is kubelet.config.k8s.io/v1alpha1, not"
)]
#[case("kind: KubeletConfiguration\napiVersion: 1\n", "apiVersion is not a text")]
#[case("---\n---\nkind: KubeletConfiguration\n", "it has no kind")]
fn a_file_that_is_not_kubelets_is_named_and_not_quoted(#[case] text: &str, #[case] reason: &str) {
    for error in [
        File::parse(text, "conf.yaml").unwrap_err(),
        DropIn::parse(text, "conf.yaml").unwrap_err(),
    ] {
        let full = error.in_full();
        assert!(full.starts_with("kubelet would not start: conf.yaml: "), "{full}");
        assert!(full.contains(reason) && !full.contains("secret"), "{full}");
    }
}

#[rstest]
#[case(
    "cpuManagerPolicyOptions: {full-pcpus-only: true}\n",
    "cpuManagerPolicyOptions.full-pcpus-only is the boolean true, and kubelet takes a text only: write it in quotation marks, \"true\""
)]
#[case(
    "reservedSystemCPUs: 0\n",
    "reservedSystemCPUs is the number 0, and kubelet takes a text"
)]
#[case("kubeReserved: {cpu: 1}\n", "kubeReserved.cpu is the number 1")]
#[case(
    "featureGates: {X: \"true\"}\n",
    "featureGates.X is a text, and kubelet takes a boolean only: write true without"
)]
#[case("featureGates: [A]\n", "featureGates is a list, and kubelet takes a map")]
#[case("cpuManagerPolicy: [secret]\n", "cpuManagerPolicy is a list")]
#[case(
    "maxPods: \"secret\"\n",
    "maxPods is a text, and kubelet takes a whole number of 32 bits"
)]
#[case("maxPods: 3000000000\n", "maxPods is the number 3000000000")]
#[case("maxPods: 1.5\n", "maxPods is the number 1.5")]
#[case("clusterDNS: secret\n", "clusterDNS is a text, and kubelet takes a list")]
#[case("clusterDNS: [1]\n", "clusterDNS.0 is the number 1")]
#[case("failSwapOn: \"no\"\n", "failSwapOn is a text, and kubelet takes a boolean")]
#[case(
    "syncFrequency: 10\n",
    "syncFrequency is the number 10, and kubelet takes a duration"
)]
#[case("syncFrequency: null\n", "syncFrequency is null")]
#[case(
    "authentication: {anonymous: {enabled: \"false\"}}\n",
    "authentication.anonymous.enabled is a text"
)]
#[case(
    "reservedMemory: [{numaNode: \"0\", limits: {memory: 1Gi}}]\n",
    "reservedMemory.0.numaNode is a text"
)]
#[case(
    "reservedMemory: [{numaNode: 0, limits: {memory: much}}]\n",
    "reservedMemory.0.limits.memory is a text, and kubelet takes a quantity"
)]
#[case(
    "evictionHard: {memory.available: 100}\n",
    "evictionHard.memory.available is the number 100"
)]
fn a_value_of_another_type_keeps_kubelet_from_starting(#[case] keys: &str, #[case] reason: &str) {
    let error = File::parse(&format!("{HEAD}{keys}"), "conf.yaml").unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&format!("conf.yaml: {reason}")), "{text}");
    assert!(
        error.keeps_kubelet_from_starting() && !text.contains("secret"),
        "{text}"
    );
}

#[rstest]
#[case("maxPods: 1e3\nfailSwapOn: no\nsyncFrequency: 1m30s\nmemoryThrottlingFactor: 1\n")]
#[case("reservedMemory: [{numaNode: 0, limits: {memory: 1024}}]\nevictionHard:\nclusterDNS: null\n")]
#[case("logging: {flushFrequency: 0, verbosity: 2, options: {json: {infoBufferSize: \"0\"}}}\nmemorySwap: {}\n")]
#[case("cpuCFSQuotaPeriod: null\nregisterWithTaints: [{key: a, effect: NoSchedule}]\n")]
fn what_kubelet_takes_is_taken(#[case] keys: &str) {
    assert_eq!(of(keys).warnings, []);
}

#[test]
fn flags_win_over_files_gate_by_gate_and_options_as_a_whole() {
    let line = "kubelet --cpu-manager-policy=none --cpu_manager_policy_options a=1 --cpu-manager-policy-options=b=2 --feature-gates MemoryQoS=T \
                --reserved-cpus 7 --topology-manager-scope=container --topology-manager-policy=restricted \
                --topology-manager-policy-options=c=3 --memory-manager-policy None --root-dir /k --hostname-override=n1 --v=2 \
                --kube-reserved cpu=2,memory=1Gi --system-reserved=cpu=1 --eviction-hard=memory.available<1Gi \
                --reserved-memory 0:memory=1Gi,hugepages-2Mi=2Gi;1:memory=512Mi";
    let config = KubeletConfig::new(Some(file(FILE)), Vec::new(), flags(line).unwrap()).unwrap();
    let expected = KubeletConfig {
        cpu_manager_policy: "none".into(),
        cpu_manager_policy_options: texts(&[("a", "1"), ("b", "2")]),
        reserved_system_cpus: "7".parse().unwrap(),
        topology_manager_policy: "restricted".into(),
        topology_manager_scope: "container".into(),
        topology_manager_policy_options: texts(&[("c", "3")]),
        memory_manager_policy: "None".into(),
        cgroup_root: "/".into(),
        cgroup_driver: "cgroupfs".into(),
        cgroups_per_qos: true,
        root_dir: "/k".into(),
        hostname_override: Some("n1".into()),
        feature_gates: [("PodLevelResourceManagers".into(), true), ("MemoryQoS".into(), true)].into(),
        kube_reserved: texts(&[("cpu", "2"), ("memory", "1Gi")]),
        system_reserved: texts(&[("cpu", "1")]),
        eviction_hard: texts(&[("memory.available", "1Gi")]),
        reserved_memory: vec![
            MemoryReservation {
                numa_node: 0,
                limits: texts(&[("memory", "1Gi"), ("hugepages-2Mi", "2Gi")]),
            },
            MemoryReservation {
                numa_node: 1,
                limits: texts(&[("memory", "512Mi")]),
            },
        ],
        has_cpu_policy: true,
        ..KubeletConfig::default()
    };
    assert_eq!(config, expected);
}

#[test]
fn where_pods_cgroups_are_is_read_from_file_and_flags() {
    let text = "cgroupRoot: /pods.slice\ncgroupDriver: systemd\ncgroupsPerQOS: false\n";
    let config = of(text);
    assert_eq!(
        (
            config.cgroup_root.as_str(),
            config.cgroup_driver.as_str(),
            config.cgroups_per_qos
        ),
        ("/pods.slice", "systemd", false)
    );
    let line = "kubelet --cgroup-root=/k8s-infra --cgroup-driver cgroupfs --cgroups-per-qos=true";
    let config = KubeletConfig::new(Some(file(text)), Vec::new(), flags(line).unwrap()).unwrap();
    assert_eq!(
        (
            config.cgroup_root.as_str(),
            config.cgroup_driver.as_str(),
            config.cgroups_per_qos
        ),
        ("/k8s-infra", "cgroupfs", true)
    );
    let config = of("cgroupRoot: \"\"\n");
    assert_eq!(config.cgroup_root, "/");
}

#[test]
fn aliases_of_aliases_are_refused_before_they_take_long() {
    let mut keys = "a0: &a0 [x, x]\n".to_owned();
    for level in 1..40 {
        keys += &format!("a{level}: &a{level} [*a{0}, *a{0}]\n", level - 1);
    }
    let error = File::parse(&format!("{HEAD}{keys}"), "config.yaml").unwrap_err();
    // kubelet may read it: the limit is ours.
    assert!(
        matches!(error, ConfigError::Limit { .. }) && !error.keeps_kubelet_from_starting(),
        "{error}"
    );
    let gates = of("x: &gates {A: true}\nfeatureGates: *gates\n").feature_gates;
    assert_eq!(gates, of("featureGates: {A: true}\n").feature_gates);
}

#[test]
fn a_command_line_is_read_as_kubelet_reads_it() {
    let line = "--root-dir=ignored --config /a --config=/b --config-dir= -v 4 --unknown x --feature-gates=A=true,B=0 \
                --feature-gates=A=false -- --root-dir=/after";
    let flags = flags(line).unwrap();
    assert_eq!(flags.config.as_deref().unwrap().to_str(), Some("/b"));
    assert_eq!((flags.config_dir, flags.root_dir), (None, None));
    assert_eq!(flags.given["featureGates"], serde_json::json!({"A": false, "B": false}));
}

#[rstest]
#[case("kubelet --config", "--config: it has no value")]
#[case("kubelet --feature-gates=A", "\"A\" is not key=value")]
#[case("kubelet --feature-gates=A=maybe", "A=maybe is neither")]
#[case("kubelet --cgroups-per-qos=maybe", "neither on nor off")]
#[case("kubelet --eviction-hard=memory.available=1Gi", "is not key<value")]
#[case("kubelet --reserved-memory=memory=1Gi", "is not like 0:memory=1Gi")]
#[case("kubelet --reserved-memory=0:cpu=1", "is not like 0:memory=1Gi")]
fn a_flag_that_kubelet_would_not_take_is_an_error(#[case] line: &str, #[case] reason: &str) {
    let error = flags(line).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn reserved_cpus_must_be_a_list() {
    let flags = flags("kubelet --reserved-cpus=0-x").unwrap();
    let error = KubeletConfig::new(None, Vec::new(), flags).unwrap_err().to_string();
    assert!(error.contains("reservedSystemCPUs") && error.contains("0-x"), "{error}");
}

/// kubelet does not split these flags at commas: the value is `true,max-allowable-numa-nodes=16`, and kubelet does not start.
#[test]
fn a_flag_of_options_has_one_option() {
    let line = "kubelet --topology-manager-policy-options=prefer-closest-numa-nodes=true,max-allowable-numa-nodes=16";
    let given = flags(line).unwrap().given;
    let options = &given["topologyManagerPolicyOptions"];
    assert_eq!(options["prefer-closest-numa-nodes"], "true,max-allowable-numa-nodes=16");
    assert!(flags("kubelet --topology-manager-policy-options=").is_err());
}
