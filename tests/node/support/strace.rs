//! strace on every thread of the daemon: what it calls, and answers to it alone that are not the kernel's.

use std::fs;
use std::process::{Child, Command, Stdio};

use super::{daemon_pid, output, wait_until};

/// It lets go of the daemon when this is dropped.
pub struct Strace(Child);

impl Strace {
    pub fn on_daemon(options: &[&str]) -> Self {
        let daemon = daemon_pid();
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-p", &daemon]).args(options);
        let strace = Self(command.stderr(Stdio::null()).spawn().expect("strace"));
        wait_until("strace has all threads", || all_traced(&daemon)?.then_some(()));
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

/// Whether each thread of the process is traced.
fn all_traced(pid: &str) -> Option<bool> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let mut statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    Some(statuses.all(|status| !status.contains("TracerPid:\t0")))
}
