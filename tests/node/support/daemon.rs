//! The daemon: its settings, its process and its units, and kubelet's file that it reads.

use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{CGROUP, Pod, journal, json, output, property, put, put_new, read, read_if_there, run, utf8, wait_until};

/// As its unit calls it.
pub const DAEMON: &str = "/usr/libexec/stelia/steliad";
pub const STATE: &str = "/var/lib/kubelet/cpu_manager_state";
/// A pod that is in kubelet's file alone.
pub const OTHER_POD: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";
const DROP_IN: &str = "/run/stelia/steliad.toml.d/90-test.toml";
/// What starts the daemon besides its bus name.
const WAYS: &str = "steliad-runner.socket steliad-kubelet.path";

pub fn configure(text: &str) {
    put_new(DROP_IN, text);
    run("systemctl reload steliad");
}

/// The settings as they were; also undoes a test that did not come so far.
pub fn unconfigure() {
    if fs::remove_file(DROP_IN).is_ok() {
        run("systemctl reload steliad");
    }
}

/// An audit now, which may leave something wrong.
pub fn reconcile() {
    output("steliactl reconcile");
}

pub fn restart(unit: &str) {
    run(&["systemctl", "restart", unit]);
}

/// One that is just being started again has no process to kill.
pub fn kill_daemon() {
    output("systemctl kill --signal=KILL --kill-whom=main steliad.service");
}

/// The daemon's process; nothing while there is none. systemd is not asked: it would take too long to see a daemon that dies.
/// Its cgroup now and then has others, too: a holder, which the daemon starts with an argument, or what is about to become
/// one, and a reload's `busctl`, which systemd starts.
pub fn daemon_pid() -> String {
    let procs = read_if_there(format!("{CGROUP}/system.slice/steliad.service/cgroup.procs"));
    let is_daemon = |pid: &&str| {
        let text = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        text("cmdline") == format!("{DAEMON}\0") && text("status").contains("\nPPid:\t1\n")
    };
    procs.lines().find(is_daemon).unwrap_or_default().to_owned()
}

pub fn wait_new_daemon(before: &str) {
    wait_until("the daemon is another process", || {
        let now = daemon_pid();
        !now.is_empty() && now != before
    });
}

pub fn main_pid(unit: &str) -> String {
    property("MainPID", unit)
}

pub fn restarts() -> String {
    property("NRestarts", "steliad.service")
}

/// `active`, `inactive` or another word of systemd's.
pub fn activity(unit: &str) -> String {
    let said = output(&["systemctl", "is-active", unit]).stdout;
    utf8(&said).trim().to_owned()
}

/// The daemon has ended, and of the units that start it only this one is there: a runner that misses the daemon, or a late
/// event of kubelet's file, is not to be what starts it.
pub fn stopped_but_for(way: Option<&str>) {
    run(&format!("systemctl stop {WAYS} steliad.service"));
    assert_eq!(activity("steliad.service"), "inactive");
    way.into_iter().for_each(|way| drop(run(&["systemctl", "start", way])));
}

pub fn start_all() {
    run(&format!("systemctl start {WAYS} steliad.service"));
}

/// Begins a new ledger: `steliactl verify` fails for whatever earlier tests let run on VMs' CPUs within its last 24 hours.
pub fn begin_ledger() {
    stopped_but_for(None);
    fs::remove_dir_all("/var/lib/stelia/ledger").expect("the ledger");
    start_all();
}

pub fn kubelet_state() -> Value {
    json(&read(STATE))
}

/// Another content of kubelet's file, as kubelet writes it.
pub fn replace_state(bytes: &[u8]) {
    let temporary = "/var/lib/kubelet/.test";
    put(temporary, bytes);
    fs::rename(temporary, STATE).expect(STATE);
}

/// What the daemon's journal tells of this pod under this `MESSAGE_ID`.
pub fn told_of(id: &str, pod: &Pod) -> Vec<String> {
    let told = journal(&[&*format!("MESSAGE_ID={id}"), &format!("STELIA_POD_UID={}", pod.uid)]);
    told.lines().map(str::to_owned).collect()
}

/// strace on every thread of the daemon, until this is dropped.
pub struct Strace(Child);

impl Strace {
    pub fn on_daemon(options: &[&str]) -> Self {
        let daemon = daemon_pid();
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-p", &daemon]).args(options);
        let strace = Self(command.stderr(Stdio::null()).spawn().expect("strace"));
        wait_until("strace has all threads", || {
            let tasks = fs::read_dir(format!("/proc/{daemon}/task")).ok()?.flatten();
            let mut statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
            statuses.all(|status| !status.contains("TracerPid:\t0")).then_some(())
        });
        strace
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // A killed one would let go as well, but might lose what it has not written yet.
        let _ = output(&["kill", "-INT", &self.0.id().to_string()]);
        let _ = self.0.wait();
    }
}

/// The daemon is stopped by a signal until this value is dropped, while a test does what the daemon would undo or would do itself. Services have no
/// watchdog meanwhile: a slow node may need longer than the daemon's.
pub struct StoppedDaemon(());

impl StoppedDaemon {
    pub fn stop() -> Self {
        run("systemctl service-watchdogs no");
        run("systemctl kill --kill-whom=main --signal=STOP steliad.service");
        Self(())
    }
}

impl Drop for StoppedDaemon {
    fn drop(&mut self) {
        output("systemctl kill --kill-whom=main --signal=CONT steliad.service");
        output("systemctl service-watchdogs yes");
    }
}
