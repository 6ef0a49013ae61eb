//! The operator's programs against a simulated node: the real daemon, engine and both entry points, on a private bus.

#![allow(clippy::expect_used, clippy::panic)]

#[cfg(feature = "browser")]
mod browser;
mod completions;
mod json;
mod map;
mod names;
mod node_topology;
mod resting;
mod terminal;
mod tour;
mod watching;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const VM: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";
const WAITING: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";
const OBJECT: &str = "/io/stelia/Isolation1";
const MANAGER: &str = "io.stelia.Isolation1.Manager";

/// Ends with this value.
struct Bus(Child);

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A private bus with a simulated daemon on it; both end with this value.
struct Simulation {
    _bus: Bus,
    daemon: Child,
    address: String,
    sockets: PathBuf,
    directory: tempfile::TempDir,
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.take().expect("stdout");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

/// What a system bus permits to everybody; the shipped policy decides about steliad.
const SYSTEM_POLICY: &str = "<policy context=\"default\"><allow user=\"*\"/><deny own=\"*\"/><deny send_type=\"method_call\"/>\
    <allow send_type=\"signal\"/><allow send_requested_reply=\"true\" send_type=\"method_return\"/>\
    <allow send_requested_reply=\"true\" send_type=\"error\"/><allow receive_type=\"method_call\"/>\
    <allow receive_type=\"method_return\"/><allow receive_type=\"error\"/><allow receive_type=\"signal\"/>\
    <allow send_destination=\"org.freedesktop.DBus\"/></policy>\
    <policy user=\"root\"><allow own=\"org.freedesktop.PolicyKit1\"/>\
    <allow send_destination=\"org.freedesktop.PolicyKit1\"/></policy>";

impl Simulation {
    fn start(scenario: &str) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        // Other users must be able to connect to the bus.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        let config = directory.path().join("bus.conf");
        let text = format!(
            "<busconfig><type>system</type><listen>unix:path={}/bus</listen><auth>EXTERNAL</auth>{SYSTEM_POLICY}\
             <include>{}/../../packaging/dbus/io.stelia.Isolation1.conf</include></busconfig>",
            directory.path().display(),
            env!("CARGO_MANIFEST_DIR")
        );
        fs::write(&config, text).expect("bus.conf");
        let bus = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--print-address"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("dbus-daemon");
        let mut bus = Bus(bus);
        let address = first_line(&mut bus.0);
        let file = directory.path().join("scenario.toml");
        fs::write(&file, scenario).expect("scenario.toml");
        let (daemon, sockets) = Self::daemon(&file, &address);
        Self {
            sockets,
            _bus: bus,
            daemon,
            address,
            directory,
        }
    }

    fn daemon(scenario: &Path, address: &str) -> (Child, PathBuf) {
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_stelia-simulate"))
            .arg(scenario)
            .env("DBUS_SYSTEM_BUS_ADDRESS", address)
            .stdout(Stdio::piped())
            .spawn()
            .expect("steliad");
        let line = first_line(&mut daemon);
        let sockets = line.strip_prefix("ready: ").unwrap_or_else(|| panic!("{line:?}"));
        (daemon, sockets.into())
    }

    fn stop_daemon(&mut self) {
        if let Ok(None) = self.daemon.try_wait() {
            let pid = nix::unistd::Pid::from_raw(self.daemon.id().cast_signed());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        }
        let ended = self.daemon.wait().expect("wait");
        assert!(ended.success(), "{ended}");
        // The daemon removes the directory that it made.
        assert!(!Path::new(&self.sockets).exists());
    }

    fn start_daemon(&mut self) {
        (self.daemon, self.sockets) = Self::daemon(&self.directory.path().join("scenario.toml"), &self.address);
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        Command::new(program)
            .args(arguments)
            .env("DBUS_SYSTEM_BUS_ADDRESS", &self.address)
            .output()
            .unwrap_or_else(|error| panic!("{program}: {error}"))
    }

    /// The outcome of a `busctl call` as root: all output, and whether the command succeeded.
    fn as_root(&self, arguments: &[&str]) -> (bool, String) {
        let call = ["--system", "--expect-reply=yes", "call", "io.stelia.Isolation1"];
        let out = self.run("busctl", &[&call[..], arguments].concat());
        let text = [out.stdout, out.stderr].concat();
        (out.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// Everything the daemon knows.
    fn described(&self) -> serde_json::Value {
        let call = [
            "--system",
            "--json=short",
            "call",
            "io.stelia.Isolation1",
            OBJECT,
            MANAGER,
            "Describe",
        ];
        let out = self.run("busctl", &call);
        let answer: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        serde_json::from_str(answer["data"][0].as_str().expect("text")).expect("JSON")
    }

    /// The exit code of `verify` with the node's own files, and what it prints.
    fn verify(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let root = self.sockets.to_str().expect("UTF-8");
        let line = [&["verify", "--root", root], arguments].concat();
        let out = self.steliactl(&line);
        (out.status.code(), String::from_utf8(out.stdout).expect("UTF-8"))
    }

    fn steliactl(&self, arguments: &[&str]) -> Output {
        self.run(env!("CARGO_BIN_EXE_steliactl-simulated"), arguments)
    }

    /// What a command that must succeed prints.
    fn ctl(&self, arguments: &[&str]) -> String {
        let out = self.steliactl(arguments);
        assert!(out.status.success(), "{arguments:?}: {out:?}");
        String::from_utf8(out.stdout).expect("UTF-8")
    }

    /// The same as JSON.
    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ctl(arguments)).expect("JSON")
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.stop_daemon();
    }
}

fn scenario(more: &str) -> String {
    format!(
        "[host]\nsockets = 2\ncores = 2\nthreads = 2\n{more}\n\
         [[pod]]\nuid = \"{VM}\"\ncpus = \"2-3\"\nvcpus = 2\n\
         [[pod]]\nuid = \"{WAITING}\"\ncpus = \"4-5\"\nvcpus = 0\n"
    )
}

#[test]
fn the_operators_program_shows_a_simulated_node() {
    let simulation = Simulation::start(&scenario(""));
    let list = simulation.ctl(&["--no-legend", "list"]);
    let line = |uid: &str| {
        list.lines()
            .find(|line| line.starts_with(uid))
            .unwrap_or_else(|| panic!("{list}"))
    };
    assert!(line(VM).contains("isolated") && line(VM).contains("2-3"), "{list}");
    assert!(line(WAITING).contains("waiting"), "{list}");
    simulation.ctl(&["release", "--dry-run", WAITING]);
    assert!(simulation.ctl(&["--no-legend", "list"]).contains(WAITING));
    simulation.ctl(&["release", WAITING]);
    assert!(!simulation.ctl(&["--no-legend", "list"]).contains(WAITING));
    let again = simulation.steliactl(&["release", WAITING]);
    assert_eq!(again.status.code(), Some(3), "{again:?}");
}

#[test]
fn the_map_and_the_explanation_are_of_the_node_the_daemon_sees() {
    let simulation = Simulation::start(&scenario(""));
    let map = simulation.ctl(&["map"]);
    // Letters are assigned in the order of the pods' CPUs.
    assert!(
        map.contains("socket 1, NUMA 1") && map.contains("2 [A ]") && map.contains("4 [B~]"),
        "{map}"
    );
    let map = simulation.json(&["--json", "map"]);
    assert_eq!(map["cores"].as_array().map(Vec::len), Some(4), "{map}");
    let told = simulation.ctl(&["why", "2"]);
    assert!(told.contains(VM) && told.contains("vCPU 0 (tid "), "{told}");
    let wrong = simulation.steliactl(&["why", "99"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let pod = simulation.ctl(&["why", VM]);
    assert!(pod.contains(VM) && pod.contains("assigned by kubelet"), "{pod}");
    let node = simulation.ctl(&["why", "node"]);
    assert!(node.contains("no problems"), "{node}");
    let status = simulation.ctl(&["status"]);
    assert!(status.contains("1 isolated, 1 waiting"), "{status}");
    let nobody = simulation.steliactl(&["why", "nobody"]);
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
}

#[test]
fn a_good_node_verifies_and_has_nothing_to_do() {
    let simulation = Simulation::start(&scenario(""));
    let (code, told) = simulation.verify(&[]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("1 of 2 VMs verified in the kernel. 1 waiting."), "{told}");
    let (code, told) = simulation.verify(&[VM, "--require=isolated"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.starts_with("1 of 1 VM verified in the kernel. Not checked: interrupts"),
        "{told}"
    );
    // The daemon's word is not enough: the kernel of this host has no such VM.
    let unread = simulation.steliactl(&["verify", VM]);
    let told = String::from_utf8_lossy(&unread.stdout);
    assert!(unread.status.code() == Some(1) && told.contains(VM), "{told}");
    let nothing = simulation.ctl(&["reconcile", "--dry-run"]);
    assert!(nothing.contains("Dry run: steliad would change nothing."), "{nothing}");
    // The simulated kernel does not say where memory is; where the CPUs are is known all the same.
    let shown = simulation.json(&["--json", "show", VM]);
    let near = (&shown["locality"]["cpus"], &shown["locality"]["memory"]);
    assert_eq!(near, (&serde_json::json!({"0": 2}), &serde_json::json!({})), "{shown}");
    let wrong = [OBJECT, MANAGER, "Reconcile", "a{sv}", "1", "dry-run", "s", "yes"];
    let (done, text) = simulation.as_root(&wrong);
    assert!(!done && text.contains("dry-run"), "{text}");
}

/// Files of the node that another program changed and the daemon has not looked at again.
#[test]
fn what_was_changed_behind_the_daemons_back_is_no_verified_vm() {
    let simulation = Simulation::start(&scenario(""));
    let described = simulation.described();
    let thread = described["node"]["instances"][VM]["vcpus"][0]["task"]["id"].to_string();
    let vcpu = format!("sys/fs/cgroup/stelia.slice/stelia-instance-{VM}.scope/instance/vcpu");
    for (file, from, to, code) in [
        (
            format!("proc/{thread}/status"),
            "Cpus_allowed_list:\t2",
            "Cpus_allowed_list:\t0-7",
            "affinity",
        ),
        (
            format!("{vcpu}/cpuset.cpus.partition"),
            "isolated",
            "member",
            "partition-changed",
        ),
        (format!("{vcpu}/cpuset.cpus"), "2-3", "2", "cpuset"),
        (
            "sys/devices/virtual/workqueue/cpumask".to_owned(),
            "f3",
            "ff",
            "workers",
        ),
    ] {
        let path = simulation.sockets.join(&file);
        let whole = fs::read_to_string(&path).expect("a file of the node");
        fs::write(&path, whole.replace(from, to)).expect("the file");
        let (failed, told) = simulation.verify(&["-o", "json"]);
        assert_eq!(failed, Some(1), "{file}: {told}");
        let answer: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        let first = &answer["findings"][0];
        assert_eq!(
            (&first["pod_uid"], &first["code"]),
            (&VM.into(), &code.into()),
            "{file}: {told}"
        );
        let fix = first["fix"].as_str().expect("a fix");
        // Its dry run, on the model in memory, would change nothing.
        assert!(!fix.is_empty() && !fix.contains("steliactl reconcile"), "{told}");
        assert!(
            answer["instances"]
                .as_array()
                .expect("VMs")
                .iter()
                .all(|vm| vm["verified"] == false),
            "{told}"
        );
        // The daemon has not looked: it shows nothing.
        assert_eq!(
            simulation.described()["node"]["instances"][VM]["degraded"],
            serde_json::json!([])
        );
        fs::write(&path, whole).expect("the file");
        let (repaired, told) = simulation.verify(&[]);
        assert_eq!(repaired, Some(0), "{file}: {told}");
    }
}

#[test]
fn what_somebody_changed_is_repaired_and_counted() {
    let float = format!("/stelia.slice/stelia-instance-{VM}.scope/instance/float");
    let meddle = format!("[[meddle]]\ncgroup = \"{float}\"\nfile = \"cpuset.cpus\"\nvalue = \"0-7\"\n");
    let simulation = Simulation::start(&(scenario("") + &meddle));
    // Repaired by this call, or by the event that the change caused.
    simulation.ctl(&["reconcile"]);
    let status = simulation.json(&["status", "-o", "json"]);
    let drift = &status["node"]["counters"];
    assert!(drift["drift_found"].as_u64() > Some(0), "{status}");
    assert_eq!(drift["drift_found"], drift["drift_repaired"]);
}

#[test]
fn on_an_old_kernel_the_state_is_pinned() {
    let simulation = Simulation::start(&scenario("kernel = \"6.1\""));
    assert!(simulation.ctl(&["--no-legend", "list"]).contains("pinned"));
    assert!(simulation.ctl(&["status"]).contains("system.slice"));
}

/// busctl's arguments.
const LIST_INSTANCES: [&str; 5] = ["call", "io.stelia.Isolation1", OBJECT, MANAGER, "ListInstances"];

#[test]
fn connections_that_end_leave_no_descriptor() {
    let simulation = Simulation::start(&scenario(""));
    let socket = simulation.sockets.join(format!("{VM}.socket"));
    let open = || {
        let fds = fs::read_dir(format!("/proc/{}/fd", simulation.daemon.id())).expect("fd");
        fds.count()
    };
    let before = open();
    let address = format!("--address=unix:path={}", socket.display());
    for _ in 0..20 {
        let list = simulation.run("busctl", &[&[address.as_str()], &LIST_INSTANCES[..]].concat());
        assert!(list.status.success(), "{list:?}");
    }
    // The last one may not have ended yet.
    for _ in 0..100 {
        if open() <= before + 1 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{before} descriptors before, {} after", open());
}

#[test]
fn a_pods_own_socket_shows_its_instance_and_no_other() {
    let simulation = Simulation::start(&scenario(""));
    let socket = simulation.sockets.join(format!("{WAITING}.socket"));
    let address = format!("--address=unix:path={}", socket.display());
    // sd-bus, as a client, takes any message before the reply to its Hello for a broken connection.
    for _ in 0..10 {
        let list = simulation.run("busctl", &[&[address.as_str()], &LIST_INSTANCES[..]].concat());
        let text = String::from_utf8_lossy(&list.stdout);
        assert!(text.contains(WAITING) && !text.contains(VM), "{list:?}");
    }
}

/// The value of a series, as `steliactl export metrics` prints it.
fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let text = line.unwrap_or_else(|| panic!("no {series}: {metrics}"));
    text.parse().expect("a number")
}

#[test]
fn metrics_count_what_the_daemon_does() {
    let simulation = Simulation::start(&scenario(""));
    let before = simulation.ctl(&["export", "metrics"]);
    assert!(before.ends_with("\n# EOF\n"), "{before}");
    for (series, wanted) in [
        ("stelia_up", 1.0),
        ("stelia_kubelet_state_usable", 1.0),
        ("stelia_instances{state=\"isolated\"}", 1.0),
        ("stelia_instances{state=\"waiting\"}", 1.0),
        ("stelia_cpus{owner=\"exclusive\"}", 4.0),
        // The scenario registered and attached without D-Bus calls.
        ("stelia_call_duration_seconds_count{call=\"register\"}", 0.0),
        ("stelia_refusals_total{error=\"NoSuchInstance\"}", 0.0),
    ] {
        assert_eq!(value(&before, series), wanted, "{series}");
    }
    for (family, ending) in [
        ("stelia_instance_info", "state=\"isolated\",class=\"\"} 1"),
        ("stelia_instance_exclusive_cpus", "\"} 2"),
    ] {
        let start = format!("{family}{{pod_uid=\"{VM}\",namespace=");
        let line = before.lines().find(|line| line.starts_with(&start));
        assert!(line.is_some_and(|line| line.ends_with(ending)), "{family}: {before}");
    }
    assert!(value(&before, "stelia_steps_total") > 0.0 && value(&before, "stelia_start_time_seconds") > 1.6e9);
    // A thread id of the model is not a thread of this host.
    assert!(!before.contains("stelia_vcpu_run_seconds_total{"), "{before}");

    simulation.ctl(&["reconcile"]);
    simulation.ctl(&["release", WAITING]);
    let unknown = [OBJECT, MANAGER, "Deregister", "sa{sv}", WAITING, "0"];
    assert!(!simulation.as_root(&unknown).0);
    let after = simulation.ctl(&["export", "metrics"]);
    for (series, more) in [
        ("stelia_call_duration_seconds_count{call=\"reconcile\"}", 1.0),
        (
            "stelia_call_duration_seconds_bucket{le=\"+Inf\",call=\"reconcile\"}",
            1.0,
        ),
        ("stelia_call_duration_seconds_count{call=\"deregister\"}", 2.0),
        ("stelia_refusals_total{error=\"NoSuchInstance\"}", 1.0),
        ("stelia_instances{state=\"waiting\"}", -1.0),
    ] {
        assert_eq!(value(&after, series) - value(&before, series), more, "{series}");
    }
    let passes = "stelia_passes_total{trigger=\"call\"}";
    assert!(value(&after, passes) > value(&before, passes));
    assert_eq!(
        value(&after, passes),
        value(&after, "stelia_pass_duration_seconds_count{trigger=\"call\"}")
    );
}

#[test]
fn the_textfile_is_written_whole_and_tells_of_a_daemon_that_ended() {
    let mut simulation = Simulation::start(&scenario(""));
    let folder = tempfile::tempdir().expect("directory");
    let path = folder.path().join("steliad.prom");
    let textfile = ["export", "metrics", "--textfile", path.to_str().expect("UTF-8")];
    assert_eq!(simulation.ctl(&textfile), "");
    let text = fs::read_to_string(&path).expect("the file");
    assert_eq!(value(&text, "stelia_up"), 1.0);
    assert!(
        text.contains("\n# TYPE stelia_passes_total counter\n") && !text.contains("# EOF"),
        "{text}"
    );
    let mode = fs::metadata(&path).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);

    simulation.stop_daemon();
    assert_eq!(simulation.ctl(&textfile), "");
    let text = fs::read_to_string(&path).expect("the file");
    assert!(text.starts_with("# steliad is not running"), "{text}");
    assert_eq!(value(&text, "stelia_up"), 0.0);
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 1, "{text}");
    assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 1);
    let printed = simulation.steliactl(&["export", "metrics"]);
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    assert!(
        String::from_utf8_lossy(&printed.stdout).contains("\nstelia_up 0\n"),
        "{printed:?}"
    );
}
