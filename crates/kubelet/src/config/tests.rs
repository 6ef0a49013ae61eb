use std::fs;
use std::os::unix::fs::symlink;

use rstest::rstest;
use tempfile::TempDir;

use super::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn fragment(keys: &str) -> Fragment {
    Fragment::parse(&format!("{HEAD}{keys}"), "config.yaml").unwrap()
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
systemReserved: {cpu: null, memory: "1073741824"}
"#;

#[test]
fn a_file_says_what_it_says_among_hundreds_of_other_keys() {
    let config = KubeletConfig::new([fragment(FILE)], Flags::default()).unwrap();
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
        reserved_amounts: vec!["500m".into()],
    };
    assert_eq!(config, expected);
    assert!(config.cpu_option("full-pcpus-only") && !config.cpu_option("strict-cpu-reservation"));
    assert!(!config.cpu_option("distribute-cpus-across-numa"));
}

#[test]
fn without_a_word_kubelets_defaults_hold() {
    let config = KubeletConfig::new([fragment("cpuManagerPolicy: null\n")], Flags::default()).unwrap();
    assert_eq!(config, KubeletConfig::default());
    assert_eq!(config.cpu_manager_policy, "none");
}

#[test]
fn json_and_a_single_reserved_cpu_are_read_too() {
    let json = r#"{"kind": "KubeletConfiguration", "reservedSystemCPUs": "1", "unknown": [{"a": null}]}"#;
    let reserved = |fragment| {
        KubeletConfig::new([fragment], Flags::default())
            .unwrap()
            .reserved_system_cpus
    };
    assert_eq!(reserved(Fragment::parse(json, "x").unwrap()).to_string(), "1");
    assert_eq!(reserved(fragment("reservedSystemCPUs: 3\n")).to_string(), "3");
    assert_eq!(reserved(fragment("reservedSystemCPUs: \"\"\n")).to_string(), "");
}

#[rstest]
#[case("a: [", "conf.yaml")]
#[case("", "conf.yaml")]
#[case("kind: Pod\n", "\"Pod\"")]
#[case("cpuManagerPolicy: static\n", "kind is \"\"")]
#[case("kind: KubeletConfiguration\nfeatureGates: [A]\n", "conf.yaml")]
#[case("kind: KubeletConfiguration\ncpuManagerPolicy: secret: x\n", "conf.yaml")]
fn a_file_that_kubelet_would_not_take_is_named_and_not_quoted(#[case] text: &str, #[case] reason: &str) {
    let error = Fragment::parse(text, "conf.yaml").unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn later_drop_ins_win_key_by_key() {
    let files = [
        fragment(FILE),
        fragment("cpuManagerPolicyOptions: {full-pcpus-only: \"false\"}\nreservedSystemCPUs: 0-1\n"),
        fragment("reservedSystemCPUs: 0-3\nfeatureGates: {MemoryQoS: true}\n"),
    ];
    let config = KubeletConfig::new(files, Flags::default()).unwrap();
    assert_eq!(config.reserved_system_cpus.to_string(), "0-3");
    let options = texts(&[("full-pcpus-only", "false"), ("strict-cpu-reservation", "false")]);
    assert_eq!(config.cpu_manager_policy_options, options);
    assert_eq!(config.feature_gates.values().collect::<Vec<_>>(), [&true, &true]);
    assert_eq!(config.memory_manager_policy, "Static");
}

#[test]
fn flags_win_over_files_gate_by_gate_and_options_as_a_whole() {
    let line = "kubelet --cpu-manager-policy=none --cpu_manager_policy_options a=1,b=2 --feature-gates MemoryQoS=T \
                --reserved-cpus 7 --topology-manager-scope=container --topology-manager-policy=restricted \
                --topology-manager-policy-options=c=3 --memory-manager-policy None --root-dir /k --hostname-override=n1 --v=2 \
                --kube-reserved cpu=2,memory=1Gi --system-reserved=cpu=1";
    let config = KubeletConfig::new([fragment(FILE)], flags(line).unwrap()).unwrap();
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
        reserved_amounts: vec!["2".into(), "1".into()],
    };
    assert_eq!(config, expected);
}

#[test]
fn where_pods_cgroups_are_is_read_from_file_and_flags() {
    let file = "cgroupRoot: /pods.slice\ncgroupDriver: systemd\ncgroupsPerQOS: false\n";
    let config = KubeletConfig::new([fragment(file)], Flags::default()).unwrap();
    assert_eq!(
        (config.cgroup_root.as_str(), config.cgroup_driver.as_str(), config.cgroups_per_qos),
        ("/pods.slice", "systemd", false)
    );
    let line = "kubelet --cgroup-root=/k8s-infra --cgroup-driver cgroupfs --cgroups-per-qos=true";
    let config = KubeletConfig::new([fragment(file)], flags(line).unwrap()).unwrap();
    assert_eq!(
        (config.cgroup_root.as_str(), config.cgroup_driver.as_str(), config.cgroups_per_qos),
        ("/k8s-infra", "cgroupfs", true)
    );
    let config = KubeletConfig::new([fragment("cgroupRoot: \"\"\n")], Flags::default()).unwrap();
    assert_eq!(config.cgroup_root, "/");
}

#[test]
fn aliases_of_aliases_are_refused_before_they_take_long() {
    let mut keys = "a0: &a0 [x, x]\n".to_owned();
    for level in 1..40 {
        keys += &format!("a{level}: &a{level} [*a{0}, *a{0}]\n", level - 1);
    }
    let started = std::time::Instant::now();
    let error = Fragment::parse(&format!("{HEAD}{keys}"), "config.yaml").unwrap_err();
    assert!(
        matches!(error, ConfigError::Yaml { .. }) && error.to_string().len() < 1000,
        "{error}"
    );
    assert!(started.elapsed().as_secs() < 2, "{:?}", started.elapsed());
    assert_eq!(
        fragment("x: &gates {A: true}\nfeatureGates: *gates\n"),
        fragment("featureGates: {A: true}\n")
    );
}

#[test]
fn a_command_line_is_read_as_kubelet_reads_it() {
    let line = "--root-dir=ignored --config /a --config=/b --config-dir= -v 4 --unknown x --feature-gates=A=true,B=0 \
                --feature-gates=A=false -- --root-dir=/after";
    let flags = flags(line).unwrap();
    assert_eq!(flags.config.as_deref().unwrap().to_str(), Some("/b"));
    assert_eq!((flags.config_dir, flags.root_dir), (None, None));
    let gates: BTreeMap<String, bool> = [("A".into(), false), ("B".into(), false)].into();
    assert_eq!(flags.fragment.feature_gates, Some(gates));
}

#[rstest]
#[case("kubelet --config", "--config: it has no value")]
#[case("kubelet --feature-gates=A", "\"A\" is not key=value")]
#[case("kubelet --feature-gates=A=maybe", "A=maybe is neither")]
fn a_flag_that_kubelet_would_not_take_is_an_error(#[case] line: &str, #[case] reason: &str) {
    let error = flags(line).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn reserved_cpus_must_be_a_list() {
    let flags = flags("kubelet --reserved-cpus=0-x").unwrap();
    let error = KubeletConfig::new([], flags).unwrap_err().to_string();
    assert!(error.contains("reserved CPUs") && error.contains("0-x"), "{error}");
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
