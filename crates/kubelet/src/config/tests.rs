use std::fs;
use std::os::unix::fs::symlink;

use rstest::rstest;
use tempfile::TempDir;

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
    let wrong = format!("{HEAD}").replace("kind", "Kind");
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
    let gates: BTreeMap<String, bool> = [("A".into(), false), ("B".into(), false)].into();
    assert_eq!(flags.given.feature_gates, Some(gates));
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

/// A machine made of files: `/proc` in `proc`, the rest in `root`.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(TempDir::new().unwrap());
        machine.process(1, "systemd", "0", "/init.scope", "systemd");
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn process(&self, pid: i32, name: &str, uid: &str, cgroup: &str, line: &str) {
        self.write(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        let status = format!("Name:\t{name}\nUid:\t1000\t{uid}\t0\t0\n");
        self.write(&format!("proc/{pid}/status"), &status);
        self.write(&format!("proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
        self.write(&format!("proc/{pid}/cmdline"), &(line.replace(' ', "\0") + "\0"));
    }

    fn read(&self) -> Result<KubeletConfig, ConfigError> {
        read(&self.0.path().join("proc"), &self.0.path().join("root"))
    }
}

const UNIT: &str = "/system.slice/kubelet.service";
const POD: &str = "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-50ab.scope";

#[test]
fn the_running_kubelet_is_found_and_its_files_are_read_in_kubelets_order() {
    let machine = Machine::new();
    machine.process(
        70,
        "kubelet",
        "0",
        UNIT,
        "kubelet --config=/etc/k.yaml --config-dir conf.d --root-dir=/k",
    );
    // In a pod, below a container, in an instance, or not run by root: the name alone proves nothing.
    let scope = "/stelia.slice/stelia-instance-b9e4f71c-64a5-4f8d-8574-41363cbaf8e5.scope/instance/float";
    machine.process(71, "kubelet", "0", POD, "kubelet --root-dir=/wrong");
    machine.process(72, "kubelet", "0", &format!("{POD}/inner"), "kubelet --root-dir=/wrong");
    machine.process(73, "kubelet", "0", scope, "kubelet --root-dir=/wrong");
    machine.process(74, "kubelet", "1000", "/user.slice", "kubelet --root-dir=/wrong");
    symlink("/etc", machine.0.path().join("proc/70/cwd")).unwrap();
    machine.write("root/etc/k.yaml", &format!("{HEAD}{FILE}"));
    machine.write("root/etc/conf.d/00.conf", &format!("{HEAD}reservedMemory: null\n"));
    let reserved = |cpus: &str| format!("{HEAD}reservedSystemCPUs: \"{cpus}\"\n");
    machine.write("root/etc/conf.d/10-a.conf", &reserved("1"));
    machine.write("root/etc/conf.d/20-b/99.conf", &reserved("2"));
    machine.write("root/etc/conf.d/20-c.conf.bak", &reserved("3"));
    machine.write("root/etc/conf.d/30-d.yaml", &reserved("4"));
    let config = machine.read().unwrap();
    assert_eq!(config.reserved_system_cpus.to_string(), "2");
    assert_eq!(config.root_dir.to_str(), Some("/k"));
    assert_eq!(config.cpu_manager_policy, "static");
}

#[test]
fn a_kubelet_without_files_has_its_flags() {
    let machine = Machine::new();
    machine.process(70, "kubelet", "0", UNIT, "kubelet --cpu-manager-policy=static");
    assert_eq!(machine.read().unwrap().cpu_manager_policy, "static");
}

#[test]
fn what_is_not_known_is_an_error_with_its_place() {
    let machine = Machine::new();
    assert_eq!(machine.read().unwrap_err().to_string(), "no kubelet runs on this node");
    machine.process(70, "kubelet", "0", UNIT, "kubelet --config=/etc/k.yaml");
    let error = machine.read().unwrap_err().to_string();
    assert!(
        error.starts_with("read /") && error.contains("root/etc/k.yaml: "),
        "{error}"
    );
    machine.write("root/etc/k.yaml", &" ".repeat(2 << 20));
    assert!(
        machine
            .read()
            .unwrap_err()
            .to_string()
            .contains("more than 1048576 bytes")
    );
    machine.process(80, "kubelet", "0", "/", "kubelet");
    assert!(machine.read().unwrap_err().to_string().contains("[70, 80]"));
}
