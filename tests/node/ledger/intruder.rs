//! A task that runs on a VM's CPU: put there by force.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::*;

/// How often it runs at least.
pub const TIMES: u64 = 40;

/// It waits for a line, runs so many short times, and ends.
pub struct Intruder {
    child: Child,
    /// Where it goes just before, and which CPU there.
    into: Option<(PathBuf, u32)>,
}

impl Intruder {
    /// Into the cgroup of the VM's vCPU threads, which no task enters by itself.
    pub fn in_vcpu(pod: &Pod, cpu: u32, name: &str) -> Self {
        Self {
            child: start(name),
            into: Some((pod.vcpu(), cpu)),
        }
    }

    /// Beside a VM that has no partition: in a slice of its own, which nobody restricts.
    pub fn beside(cpu: u32, name: &str) -> Self {
        let child = start(name);
        let slice = "/sys/fs/cgroup/intruder.slice";
        let _ = fs::create_dir(slice);
        put(format!("{slice}/cgroup.procs"), child.id().to_string());
        run(&["taskset", "-pc", &cpu.to_string(), &child.id().to_string()]);
        Self { child, into: None }
    }

    /// The daemon, which would put it out within milliseconds, stands still meanwhile.
    pub fn intrude(self) {
        let _stopped = self.into.is_some().then(StoppedDaemon::stop);
        self.run();
    }

    /// While nobody would put it out.
    pub fn run(mut self) {
        if let Some((vcpu, cpu)) = &self.into {
            let number = self.child.id().to_string();
            let domain = vcpu.parent().expect("its domain");
            put(domain.join("cgroup.procs"), &number);
            put(vcpu.join("cgroup.threads"), &number);
            run(&["taskset", "-pc", &cpu.to_string(), &number]);
        }
        let mut line = self.child.stdin.take().expect("stdin");
        line.write_all(b"go\n").expect("a line");
        drop(line);
        let status = self.child.wait().expect("the intruder");
        assert!(status.success(), "{status}");
        let _ = fs::remove_dir("/sys/fs/cgroup/intruder.slice");
    }
}

/// Its children are in the same cgroup, on the same CPU.
fn start(name: &str) -> Child {
    let script = format!("printf %s \"$0\" > /proc/self/comm; read go; for n in $(seq {TIMES}); do sleep 0.01; done");
    let mut bash = Command::new("bash");
    let child = bash.args(["-c", &script, name]).stdin(Stdio::piped()).spawn();
    let child = child.expect("bash");
    // What it runs before it waits for the line is no intrusion, and a slow node would count that too.
    let waiting = format!("{} ({name}) S ", child.id());
    wait_until("the intruder waits", || {
        read_if_there(format!("/proc/{}/stat", child.id())).starts_with(&waiting)
    });
    child
}
