use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use rstest::rstest;
use tempfile::TempDir;

use super::*;
use crate::config;
use crate::config::{ConfigError, KubeletConfig};

/// A machine made of files, in `root`. The kernel reports this test's process as the listener on each socket.
struct Machine {
    directory: TempDir,
    listeners: Vec<UnixListener>,
}

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn me() -> i32 {
    std::process::id() as i32
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            directory: TempDir::new().unwrap(),
            listeners: Vec::new(),
        };
        machine.process(1, "systemd", "/init.scope", &["systemd"]);
        machine
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn process(&self, pid: i32, name: &str, cgroup: &str, line: &[&str]) {
        self.write(&format!("root/proc/{pid}/comm"), &format!("{name}\n"));
        self.write(
            &format!("root/proc/{pid}/status"),
            &format!("Name:\t{name}\nUid:\t0\t0\t0\t0\n"),
        );
        self.write(&format!("root/proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
        self.write(&format!("root/proc/{pid}/cmdline"), &(line.join("\0") + "\0"));
    }

    /// Makes this process listen on kubelet's socket in this root directory.
    fn listen(&mut self, known: &str) {
        let socket = self.root().join(known.trim_start_matches('/')).join(SOCKET);
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        self.listeners.push(UnixListener::bind(socket).unwrap());
    }

    fn state(&self, known: &str) {
        self.write(&format!("root{known}/{CPU_MANAGER_STATE}"), "{}");
    }

    fn find(&self) -> Result<Process, ConfigError> {
        find(&self.root().join("proc"), &self.root(), Search::SocketsThenNames)
    }

    fn config(&self) -> Result<KubeletConfig, ConfigError> {
        config::read(&self.root().join("proc"), &self.root(), Search::SocketsThenNames)
    }

    fn chosen(&self, before: Option<&str>) -> Result<String, String> {
        let before = before.map(|known| self.root().join(known.trim_start_matches('/')));
        let root =
            by_setting(Path::new(AUTO), &self.root(), before.as_deref()).map_err(|unclear| unclear.to_string())?;
        let shown = root.strip_prefix(self.root()).unwrap();
        Ok(format!("/{}", shown.display()))
    }
}

const SERVICE: &str = "/system.slice/kubelet.service";
const POD: &str = "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-50ab.scope";
const DEFAULT: &str = ROOTS[0];
const K0S: &str = ROOTS[1];
const MICROK8S: &str = ROOTS[2];

#[test]
fn k3s_runs_kubelet_as_a_part_of_itself_and_its_files_say_how() {
    let mut machine = Machine::new();
    // The command line is hidden, as k3s does it.
    machine.process(
        me(),
        "k3s-server",
        "/system.slice/k3s.service",
        &["/usr/local/bin/k3s server"],
    );
    machine.listen(DEFAULT);
    let conf = "root/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf";
    machine.write(
        conf,
        &format!("{HEAD}cgroupDriver: systemd\nreservedSystemCPUs: \"0\"\n"),
    );
    machine.write(
        "root/etc/rancher/k3s/config.yaml",
        "token: secret\nnode-name: one\nkubelet-arg:\n- cpu-manager-policy=static\n- reserved-cpus=0-1\n",
    );
    machine.write(
        "root/etc/rancher/k3s/config.yaml.d/50-more.yaml",
        "kubelet-arg+: topology-manager-policy=restricted\n",
    );
    let found = machine.find().unwrap();
    assert_eq!(
        (found.pid, found.host, found.root),
        (me(), Host::K3s, Some(DEFAULT.into()))
    );
    let config = machine.config().unwrap();
    assert_eq!(config.cpu_manager_policy, "static");
    assert!(config.hidden && config.has_cpu_policy, "{config:?}");
    assert_eq!(config.reserved_system_cpus.to_string(), "0-1");
    assert_eq!(config.topology_manager_policy, "restricted");
    assert_eq!(config.hostname_override.as_deref(), Some("one"));
    // A later file replaces a list, unless its key adds; and the data directory may be elsewhere.
    machine.write(
        "root/etc/rancher/k3s/config.yaml.d/60-other.yaml",
        "kubelet-arg: [v=2]\ndata-dir: /srv/k3s\n",
    );
    let config = machine.config().unwrap();
    assert_eq!(
        (config.cpu_manager_policy.as_str(), config.reserved_system_cpus.len()),
        ("none", 0)
    );
    assert!(config.hidden && !config.has_cpu_policy, "{config:?}");
    machine.write("root/etc/rancher/k3s/config.yaml", "token: secret\nkubelet-arg: {}\n");
    let error = machine.config().unwrap_err().to_string();
    assert!(error.contains("config.yaml") && !error.contains("secret"), "{error}");
}

#[test]
fn what_k3s_copies_into_its_own_directory_does_not_replace_that() {
    let mut machine = Machine::new();
    machine.process(me(), "k3s-server", "/system.slice/k3s.service", &["k3s server"]);
    machine.listen(DEFAULT);
    let folder = "root/var/lib/rancher/k3s/agent/etc/kubelet.conf.d";
    machine.write(
        &format!("{folder}/00-k3s-defaults.conf"),
        &format!("{HEAD}cgroupDriver: systemd\n"),
    );
    machine.write(
        &format!("{folder}/10-cli-config.conf"),
        &format!("{HEAD}cpuManagerPolicy: static\n"),
    );
    machine.write(
        &format!("{folder}/20-cli-config-dir/cpus.conf"),
        &format!("{HEAD}reservedSystemCPUs: \"0\"\n"),
    );
    // What they were copied from may be gone, or changed since k3s started.
    machine.write(
        "root/etc/rancher/k3s/config.yaml",
        "kubelet-arg:\n- config=/etc/kubelet.yaml\n- --config-dir\n- /etc/kubelet.d\n\
         - feature-gates+=InPlacePodVerticalScaling=false\n- topology-manager-policy=restricted\n\
         - fail-swap-on\n- topology-manager-policy=best-effort\n",
    );
    let config = machine.config().unwrap();
    assert_eq!(
        (config.cgroup_driver.as_str(), config.cpu_manager_policy.as_str()),
        ("systemd", "static")
    );
    assert_eq!(config.reserved_system_cpus.to_string(), "0");
    assert_eq!(config.topology_manager_policy, "restricted");
    assert_eq!(config.feature_gates.get("InPlacePodVerticalScaling"), Some(&false));
    // Older ones have no such directory and pass both on.
    fs::remove_dir_all(machine.directory.path().join(folder)).unwrap();
    let error = machine.config().unwrap_err().to_string();
    assert!(error.contains("/etc/kubelet.yaml"), "{error}");
}

#[test]
fn k3s_without_any_file_is_found_by_its_name() {
    let machine = Machine::new();
    machine.process(
        70,
        "k3s-agent",
        "/system.slice/k3s-agent.service",
        &["/usr/local/bin/k3s agent"],
    );
    let found = machine.find().unwrap();
    assert_eq!((found.pid, found.host, found.root), (70, Host::K3s, None));
    // What it hands to kubelet cannot be read.
    let hidden = KubeletConfig {
        hidden: true,
        ..KubeletConfig::default()
    };
    assert_eq!(machine.config().unwrap(), hidden);
}

#[test]
fn rke2_and_k0s_start_a_kubelet_of_their_own() {
    let mut machine = Machine::new();
    let line = [
        "kubelet",
        "--volume-plugin-dir=/var/lib/kubelet/volumeplugins",
        "--config-dir=/var/lib/rancher/rke2/agent/etc/kubelet.conf.d",
    ];
    let conf = "root/var/lib/rancher/rke2/agent/etc/kubelet.conf.d/00-rke2-defaults.conf";
    machine.process(me(), "kubelet", "/system.slice/rke2-agent.service", &line);
    machine.write(conf, &format!("{HEAD}cpuManagerPolicy: static\n"));
    machine.listen(DEFAULT);
    assert_eq!(machine.find().unwrap().host, Host::Kubelet);
    let config = machine.config().unwrap();
    assert_eq!(
        (config.cpu_manager_policy.as_str(), config.root_dir.as_path()),
        ("static", Path::new(DEFAULT))
    );

    let mut machine = Machine::new();
    let line = [
        "/var/lib/k0s/bin/kubelet",
        "--root-dir=/var/lib/k0s/kubelet",
        "--config=/run/k0s/kubelet/config.yaml",
    ];
    machine.process(me(), "kubelet", "/system.slice/k0sworker.service", &line);
    machine.write(
        "root/run/k0s/kubelet/config.yaml",
        &format!("{HEAD}cpuManagerPolicy: static\n"),
    );
    machine.listen(K0S);
    // Left behind by storage plugins.
    fs::create_dir_all(machine.root().join("var/lib/kubelet/plugins")).unwrap();
    let config = machine.config().unwrap();
    assert_eq!(
        (config.cpu_manager_policy.as_str(), config.root_dir.as_path()),
        ("static", Path::new(K0S))
    );
    assert_eq!(machine.chosen(None), Ok(K0S.into()));
}

#[test]
fn microk8s_has_kubelets_flags_in_a_file() {
    let mut machine = Machine::new();
    let line = [
        "/snap/microk8s/9072/kubelite",
        "--kubelet-args-file=/var/snap/microk8s/9072/args/kubelet",
    ];
    machine.process(
        me(),
        "kubelite",
        "/system.slice/snap.microk8s.daemon-kubelite.service",
        &line,
    );
    machine.write(
        "root/var/snap/microk8s/9072/args/kubelet",
        "# ours\n--kubeconfig=${SNAP_DATA}/credentials/kubelet.config\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\n\
         --cpu-manager-policy=static --reserved-cpus=\"0\"\n--config=${SNAP_DATA}/args/kubelet.yaml\n",
    );
    machine.write(
        "root/var/snap/microk8s/9072/args/kubelet.yaml",
        &format!("{HEAD}topologyManagerScope: pod\n"),
    );
    machine.listen(MICROK8S);
    // Its installation links the default directory to it.
    fs::create_dir_all(machine.root().join("var/lib")).unwrap();
    symlink(
        machine.root().join(&MICROK8S[1..]),
        machine.root().join("var/lib/kubelet"),
    )
    .unwrap();
    machine.state(MICROK8S);
    assert_eq!(machine.find().unwrap().host, Host::Kubelite);
    let config = machine.config().unwrap();
    assert_eq!(config.root_dir.as_path(), Path::new(MICROK8S));
    assert_eq!(
        (
            config.cpu_manager_policy.as_str(),
            config.topology_manager_scope.as_str()
        ),
        ("static", "pod")
    );
    assert_eq!(config.reserved_system_cpus.to_string(), "0");
    assert_eq!(machine.chosen(None), Ok(DEFAULT.into()), "one directory of two names");
}

#[test]
fn microshift_writes_a_file_for_its_kubelet() {
    let mut machine = Machine::new();
    machine.process(
        me(),
        "microshift",
        "/system.slice/microshift.service",
        &["microshift", "run"],
    );
    machine.write(
        "root/var/lib/microshift/resources/kubelet/config/config.yaml",
        &format!("{HEAD}cpuManagerPolicy: static\n"),
    );
    machine.listen(DEFAULT);
    assert_eq!(machine.find().unwrap().host, Host::MicroShift);
    assert_eq!(machine.config().unwrap().cpu_manager_policy, "static");
}

#[test]
fn who_answers_is_kubelet_whatever_it_is_called() {
    let mut machine = Machine::new();
    machine.listen(DEFAULT);
    // A process that only has the name is not taken for kubelet.
    machine.process(70, "kubelet", SERVICE, &["kubelet", "--root-dir=/wrong"]);
    machine.process(
        me(),
        "hyperkube",
        SERVICE,
        &["hyperkube", "kubelet", "--config=/etc/k.yaml"],
    );
    machine.write("root/etc/k.yaml", &format!("{HEAD}cpuManagerPolicy: static\n"));
    assert_eq!(machine.find().unwrap().host, Host::Unknown);
    assert_eq!(machine.config().unwrap().cpu_manager_policy, "static");
    // Without kubelet's flags nothing is assumed about a process.
    machine.process(me(), "other", SERVICE, &["other", "agent"]);
    let error = machine.config().unwrap_err().to_string();
    assert!(error.contains(&format!("process {} (other)", me())), "{error}");
}

#[test]
fn a_pod_that_has_kubelets_directory_does_not_answer_for_kubelet() {
    let mut machine = Machine::new();
    machine.listen(DEFAULT);
    machine.process(me(), "kubelet", POD, &["kubelet", "--root-dir=/wrong"]);
    assert!(matches!(machine.find(), Err(ConfigError::NotRunning)));
    machine.process(70, "kubelet", SERVICE, &["kubelet", "--root-dir=/k"]);
    assert_eq!(machine.config().unwrap().root_dir, Path::new("/k"));
}

#[test]
fn two_that_could_be_kubelet_are_named() {
    let machine = Machine::new();
    machine.process(
        80,
        "microshift",
        "/system.slice/microshift.service",
        &["microshift", "run"],
    );
    machine.process(70, "kubelet", SERVICE, &["kubelet"]);
    assert!(machine.find().unwrap_err().to_string().contains("[70, 80]"));
}

#[test]
fn a_node_has_the_root_directory_that_holds_the_state() {
    let machine = Machine::new();
    assert_eq!(machine.chosen(None), Ok(DEFAULT.into()), "nothing is there yet");
    machine.state(K0S);
    assert_eq!(machine.chosen(None), Ok(K0S.into()));
    fs::create_dir_all(machine.root().join(&DEFAULT[1..])).unwrap();
    assert_eq!(machine.chosen(None), Ok(K0S.into()));
    machine.state(DEFAULT);
    let unclear = machine.chosen(None).unwrap_err();
    assert!(
        unclear.contains(K0S) && unclear.contains(&format!("{DEFAULT}: holds")) && unclear.contains("set kubelet-root"),
        "{unclear}"
    );
    // A directory that is set is taken as it is; one that was found is kept.
    let set = by_setting(Path::new("/k"), &machine.root(), None);
    assert_eq!(set, Ok("/k".into()));
    assert_eq!(machine.chosen(Some(K0S)), Ok(K0S.into()));
}

#[test]
fn where_kubelet_answers_counts_before_what_an_earlier_one_left() {
    let mut machine = Machine::new();
    machine.state(DEFAULT);
    machine.listen(K0S);
    // A listener in a pod that mounts the directory does not count.
    machine.process(me(), "kubelet", POD, &["kubelet"]);
    assert_eq!(machine.chosen(None), Ok(DEFAULT.into()));
    machine.process(me(), "kubelet", SERVICE, &["kubelet"]);
    assert_eq!(machine.chosen(None), Ok(K0S.into()));
    // kubelet now answers in another directory.
    assert_eq!(machine.chosen(Some(DEFAULT)), Ok(K0S.into()));
    machine.listen(DEFAULT);
    let unclear = machine.chosen(Some(K0S)).unwrap_err();
    assert!(unclear.contains(&format!("process {} answers", me())), "{unclear}");
}

#[rstest]
#[case(&[], None, Ok(None))]
#[case(&[("/a", true, false)], None, Ok(Some("/a")))]
#[case(&[("/a", true, false), ("/b", false, true)], Some("/a"), Ok(Some("/b")))]
#[case(&[("/a", true, false), ("/b", true, false)], None, Err(()))]
#[case(&[("/a", true, false), ("/b", true, false)], Some("/b"), Ok(Some("/b")))]
#[case(&[("/a", true, false), ("/b", true, false)], Some("/c"), Err(()))]
#[case(&[("/a", true, true), ("/b", true, true)], Some("/b"), Err(()))]
fn the_choice(
    #[case] homes: &[(&str, bool, bool)],
    #[case] before: Option<&str>,
    #[case] expected: Result<Option<&str>, ()>,
) {
    let home = |(root, has_state, answers): &(&str, bool, bool)| Home {
        root: (*root).into(),
        has_state: *has_state,
        listener: answers.then_some(7),
    };
    let homes: Vec<Home> = homes.iter().map(home).collect();
    let chosen = choose(&homes, before.map(Path::new)).map_err(|_| ());
    assert_eq!(chosen, expected.map(|root| root.map(Path::new)));
}
