//! Which tasks of the host ran on a VM's CPUs.
//!
//! A task is known to have run on a CPU by two facts: its run time grew, and that CPU is where it ran last. One that ran
//! there and elsewhere counts in full, one that moved away again does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use stelia_cpus::CpuSet;
use stelia_kernel::counters;
use stelia_kernel::proc::stat;

use crate::shared::kernel::numbered;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Task {
    pub name: String,
    /// The kernel's own, bound to its CPU: nothing moves it.
    pub bound: bool,
    /// Where it ran last.
    pub cpu: u32,
    /// Time it ran, nanoseconds.
    pub run_ns: u64,
}

/// Every thread, by its number on the host.
pub(super) type Tasks = BTreeMap<i32, Task>;

/// Reads every thread of the host; one that ends meanwhile is left out.
pub(super) fn read(proc: &Path) -> Tasks {
    let mut tasks = Tasks::new();
    for (_, process) in numbered(proc) {
        for (tid, folder) in numbered(&process.join("task")) {
            let read = |file: &str| fs::read(folder.join(file)).ok();
            let task = || task(&String::from_utf8_lossy(&read("stat")?), &read("schedstat")?);
            tasks.extend(task().map(|task| (tid, task)));
        }
    }
    tasks
}

fn task(text: &str, schedstat: &[u8]) -> Option<Task> {
    let stat = stat::parse(text)?;
    Some(Task {
        bound: stat.refuses(),
        cpu: stat::cpu(text)?,
        run_ns: counters::task::parse(schedstat).ok()?.run_ns,
        name: stat.name,
    })
}

/// A task that ran on the VM's CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OtherTask {
    pub tid: i32,
    pub name: String,
    pub bound: bool,
    pub cpu: u32,
    /// How long it ran, nanoseconds.
    pub ns: u64,
}

/// Those that ran between two readings on these CPUs, without the VM's own threads, the longest first.
pub(super) fn between(before: &Tasks, now: &Tasks, cpus: &CpuSet, own: &BTreeSet<i32>) -> Vec<OtherTask> {
    let here = now
        .iter()
        .filter(|(tid, task)| cpus.contains(task.cpu) && !own.contains(tid));
    let ran = here.filter_map(|(tid, task)| {
        // A number that is new, or was reused, is a task that began meanwhile.
        let former = before.get(tid).map_or(0, |before| before.run_ns);
        let ns = task.run_ns.checked_sub(former).unwrap_or(task.run_ns);
        (ns > 0).then(|| OtherTask {
            tid: *tid,
            name: task.name.clone(),
            bound: task.bound,
            cpu: task.cpu,
            ns,
        })
    });
    let mut ran: Vec<OtherTask> = ran.collect();
    ran.sort_by(|a, b| b.ns.cmp(&a.ns).then(a.tid.cmp(&b.tid)));
    ran
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flag of a thread that nobody can move.
    const BOUND: u64 = 0x0400_0000;

    fn write(proc: &Path, tid: i32, name: &str, flags: u64, cpu: u32, run_ns: u64) {
        let folder = proc.join(format!("{tid}/task/{tid}"));
        fs::create_dir_all(&folder).unwrap();
        let before = "1 1 1 0 -1";
        let between = ["0"; 29].join(" ");
        fs::write(
            folder.join("stat"),
            format!("{tid} ({name}) S {before} {flags} {between} {cpu} 0 0\n"),
        )
        .unwrap();
        fs::write(folder.join("schedstat"), format!("{run_ns} 5 6\n")).unwrap();
    }

    #[test]
    fn who_ran_on_the_cpus_is_named_and_the_vm_itself_is_not() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        write(proc, 70, "CPU 0/KVM", 0x40, 4, 100);
        write(proc, 80, "cron) x", 0x40, 4, 10);
        write(proc, 81, "kworker/4:1", BOUND | 0x40, 4, 10);
        write(proc, 82, "elsewhere", 0, 1, 10);
        write(proc, 83, "idle", 0, 4, 10);
        let before = read(proc);
        assert_eq!((before[&80].name.as_str(), before[&80].cpu), ("cron) x", 4));
        write(proc, 70, "CPU 0/KVM", 0x40, 4, 200);
        write(proc, 80, "cron) x", 0x40, 4, 15);
        write(proc, 81, "kworker/4:1", BOUND | 0x40, 4, 30);
        write(proc, 82, "elsewhere", 0, 1, 20);
        // It began meanwhile.
        write(proc, 84, "new", 0, 5, 7);
        let found = between(&before, &read(proc), &"4-5".parse().unwrap(), &BTreeSet::from([70]));
        let told: Vec<(i32, u64, bool)> = found.iter().map(|one| (one.tid, one.ns, one.bound)).collect();
        assert_eq!(told, [(81, 20, true), (84, 7, false), (80, 5, false)]);
    }

    #[test]
    fn a_line_that_is_cut_short_is_no_task() {
        assert_eq!(task("1 (a) S 1 2", b"5 6 7\n"), None);
        assert_eq!(task("", b""), None);
    }
}
