//! What is read from the kernel: how long each vCPU thread ran and waited, what float used.
//!
//! What cannot be read is left out: a counter that falls to 0 would say that something started anew.

use std::collections::BTreeMap;
use std::fs;

use super::described::{Described, Instance, Vcpu};
use crate::threads::Roots;

/// The kernel's numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readings {
    /// By pod and vCPU index.
    pub threads: BTreeMap<(String, u32), Times>,
    /// CPU time of float by pod, in microseconds.
    pub floats: BTreeMap<String, u64>,
}

/// How a thread fared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Nanoseconds it ran.
    pub run_ns: u64,
    /// Nanoseconds it waited for a CPU.
    pub delay_ns: u64,
    /// Times it was switched out while it could have run on.
    pub involuntary: u64,
}

/// Read them.
pub fn read(roots: &Roots, described: &Described) -> Readings {
    let mut readings = Readings::default();
    for (pod, instance) in &described.instances {
        if let Some(used) = float(roots, instance) {
            readings.floats.insert(pod.clone(), used);
        }
        for vcpu in &instance.vcpus {
            if let Some(times) = thread(roots, vcpu) {
                readings.threads.insert((pod.clone(), vcpu.index), times);
            }
        }
    }
    readings
}

fn float(roots: &Roots, instance: &Instance) -> Option<u64> {
    let scope = roots.cgroup.join(instance.scope.trim_matches('/'));
    usage_usec(&fs::read_to_string(scope.join("instance/float/cpu.stat")).ok()?)
}

fn thread(roots: &Roots, vcpu: &Vcpu) -> Option<Times> {
    let number = vcpu.task.id.to_string();
    // A thread's number leads to its process, too.
    let directory = roots.proc.join(&number).join("task").join(&number);
    let text = |file: &str| fs::read(directory.join(file)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (run_ns, delay_ns) = schedstat(&text("schedstat").ok()?)?;
    let involuntary = involuntary(&text("status").ok()?)?;
    // Read last: if this is the thread's start, all of it was the thread's.
    (start(&text("stat").ok()?)? == vcpu.task.start).then_some(Times {
        run_ns,
        delay_ns,
        involuntary,
    })
}

/// Time run, time waited; the third number counts timeslices (`Documentation/scheduler/sched-stats.rst`).
fn schedstat(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn involuntary(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// Field 22 of a stat line; the name before it may hold blanks and parentheses.
fn start(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

fn usage_usec(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        assert_eq!(schedstat("5000000000 1250 77\n"), Some((5_000_000_000, 1250)));
        assert_eq!(schedstat("12\n"), None);
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(involuntary(status), Some(3));
        assert_eq!(
            start("42 (CPU 0/KVM) x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 999 20"),
            Some(999)
        );
        assert_eq!(usage_usec("usage_usec 12\nuser_usec 8\n"), Some(12));
        assert_eq!(usage_usec("user_usec 8\n"), None);
    }
}
