//! status, monitor, top --count, and what a shell is told.

use std::io::Read;
use std::time::{Duration, Instant};

use super::*;

pub(super) fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, signal).expect("kill");
}

/// Waits for its end by itself; it must succeed.
pub(super) fn ends(mut child: Child) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        if let Some(status) = child.try_wait().expect("wait") {
            assert!(status.success(), "{status}");
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    panic!("it does not end");
}

impl Simulation {
    /// A `/proc` and a cgroup tree with the vCPU threads of the simulated node.
    pub(super) fn files(&self) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("directory");
        let write = |path: String, text: String| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("write");
        };
        let description = self.described();
        let instance = &description["node"]["instances"][VM];
        let scope = instance["scope"].as_str().expect("a scope");
        write(
            format!("sys/fs/cgroup{scope}/instance/float/cpu.stat"),
            "usage_usec 5\n".into(),
        );
        write(
            format!("sys/fs/cgroup{scope}/cpu.stat"),
            "usage_usec 5\nthrottled_usec 0\n".into(),
        );
        for vcpu in instance["vcpus"].as_array().expect("vCPUs") {
            let (id, start) = (&vcpu["task"]["id"], &vcpu["task"]["start"]);
            let task = format!("proc/{id}/task/{id}");
            write(
                format!("{task}/stat"),
                format!("{id} (CPU 0/KVM) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {start} 0\n"),
            );
            write(format!("{task}/schedstat"), "5000 40 3\n".into());
            write(format!("{task}/status"), "nonvoluntary_ctxt_switches:\t8\n".into());
        }
        root
    }

    pub(super) fn spawn(&self, arguments: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_steliactl-simulated"))
            .args(arguments)
            .env("DBUS_SYSTEM_BUS_ADDRESS", &self.address)
            .stdout(Stdio::piped())
            .spawn()
            .expect("steliactl")
    }

    /// The completions that a shell gets after `steliactl show`.
    pub(super) fn completed(&self, address: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_steliactl-simulated"))
            .args(["--", "steliactl", "show", ""])
            .envs([("COMPLETE", "bash"), ("_CLAP_COMPLETE_INDEX", "2"), ("_CLAP_IFS", "\n")])
            .env("DBUS_SYSTEM_BUS_ADDRESS", address)
            .output()
            .expect("steliactl")
    }
}

#[test]
fn status_is_the_node_in_a_screen() {
    let simulation = Simulation::start(&scenario(""));
    simulation.ctl(&["reconcile"]);
    let text = simulation.ctl(&["status"]);
    assert!(text.lines().count() <= 12, "{text}");
    for part in [
        " is running\n",
        "2 VMs: 1 isolated, 1 waiting",
        "4 of VMs (2-5), 4 shared (0-1,6-7)",
        "kubelet (static)",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let json = simulation.json(&["--json=short", "status"]);
    assert_eq!(json["node"]["instances"][VM]["state"], "isolated", "{json}");
    assert!(json["node"]["last_pass"]["number"].as_u64() > Some(0), "{json}");
}

#[test]
fn monitor_prints_a_line_for_what_happens_until_told_to_end() {
    let mut simulation = Simulation::start(&scenario(""));
    let (mut text, mut json) = (simulation.spawn(&["monitor"]), simulation.spawn(&["--json", "monitor"]));
    let mut lines = [&mut text, &mut json].map(|child| {
        let stdout = child.stdout.take().expect("stdout");
        BufReader::new(stdout).lines().map(|line| line.expect("a line"))
    });
    let [of_text, of_json] = &mut lines;
    let mut told = || {
        of_text
            .next()
            .expect("text")
            .split_once("  ")
            .expect("a time")
            .1
            .to_owned()
    };
    let mut object = || serde_json::from_str::<serde_json::Value>(&of_json.next().expect("JSON")).expect("an object");
    assert_eq!(told(), "node  steliad is running");
    assert_eq!(object()["event"], "DaemonAppeared");
    simulation.ctl(&["release", WAITING]);
    let gone = format!("{WAITING}  released or ended");
    // Its properties may change before.
    assert!((0..20).any(|_| told() == gone));
    let removed = (0..20)
        .map(|_| object())
        .find(|event| event["event"] == "InstanceRemoved");
    assert_eq!(removed.expect("an end")["pod_uid"], WAITING);
    signal(&json, nix::sys::signal::Signal::SIGTERM);
    ends(json);
    simulation.stop_daemon();
    assert!((0..20).any(|_| told().starts_with("node  steliad is not running")));
    simulation.start_daemon();
    assert_eq!(told(), "node  steliad is running");
    signal(&text, nix::sys::signal::Signal::SIGINT);
    ends(text);
}

#[test]
fn monitor_ends_when_nobody_reads() {
    let simulation = Simulation::start(&scenario(""));
    let mut monitor = simulation.spawn(&["monitor"]);
    let mut stdout = monitor.stdout.take().expect("stdout");
    stdout.read_exact(&mut [0; 10]).expect("its first line");
    drop(stdout);
    ends(monitor);
}

#[test]
fn top_without_a_terminal_is_tables() {
    let simulation = Simulation::start(&scenario(""));
    let files = simulation.files();
    let root = format!("--root={}", files.path().display());
    let text = simulation.ctl(&[&root, "top", "--count", "1", "-d", "0.2"]);
    let (_, table) = text.split_once('\n').expect("a time");
    insta::assert_snapshot!(table, @r"
    VM                                    STATE     CPUS  UTIL%  WAIT%  IRQ/S  NOTE
    416de7c2-21de-472d-817c-fa9d4306cb7d  waiting   4-5       -      -      -  no vCPUs yet
    b9e4f71c-64a5-4f8d-8574-41363cbaf8e5  isolated  2-3       0    0.0      -
    ");
    let json = simulation.ctl(&[&root, "--json=short", "top", "--count", "2", "-d", "0.2"]);
    let models: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(models.len(), 2);
    let instances = models[1]["instances"].as_array().expect("instances");
    let of = |uid: &str| instances.iter().find(|one| one["pod_uid"] == uid).expect("the VM");
    assert_eq!(of(VM)["vcpus"][1]["involuntary_per_second"], 0.0);
    assert_eq!(of(VM)["reason"], serde_json::Value::Null);
    assert_eq!(of(WAITING)["note"], "no vCPUs yet");
    let wrong = simulation.steliactl(&["top", "-d", "0"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

#[test]
fn a_shell_is_told_the_vms_and_nothing_when_there_is_no_daemon() {
    let simulation = Simulation::start(&scenario(""));
    let told = simulation.completed(&simulation.address);
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(
        text.lines().any(|line| line == VM) && text.contains(WAITING),
        "{told:?}"
    );
    let silent = simulation.completed("unix:path=/nonexistent/bus");
    assert!(silent.status.success() && silent.stderr.is_empty(), "{silent:?}");
    assert!(!String::from_utf8_lossy(&silent.stdout).contains(VM));
}
