//! The node as the kernel and systemd show it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sched::{CpuSet as Mask, sched_setaffinity};
use nix::unistd::Pid;
use stelia_cpus::CpuSet;
use stelia_kernel::kernel_release::isolated_is_safe;

use super::{field, main_pid, names_in, number, output, put, read, read_if_there, run, wait_until};
use crate::quiet::interrupts::changed;
use crate::quiet::trace::remains;

pub const CGROUP: &str = "/sys/fs/cgroup";
pub const SLICE: &str = "/sys/fs/cgroup/stelia.slice";
pub fn cpus(text: &str) -> CpuSet {
    text.trim().parse().unwrap_or_else(|e| panic!("CPUs {text:?}: {e}"))
}

/// One thread as `/proc` shows it. `start` tells it from a later one with the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    pub tid: u32,
    pub name: String,
    pub cgroup: PathBuf,
    pub allowed: CpuSet,
    pub start: u64,
}

impl Thread {
    /// It is in this cgroup and may use these CPUs, no others.
    pub fn assert_in(&self, cgroup: &Path, allowed: &CpuSet) {
        assert_eq!((&*self.cgroup, &self.allowed), (cgroup, allowed), "{self:?}");
    }
}

/// Every thread of a process; one that ends meanwhile is left out.
pub fn threads_of(pid: u32) -> Vec<Thread> {
    let names = names_in(format!("/proc/{pid}/task")).into_iter();
    names.filter_map(|name| thread(name.parse().ok()?)).collect()
}

pub fn thread(tid: u32) -> Option<Thread> {
    let text = |file: &str| fs::read_to_string(format!("/proc/{tid}/{file}")).ok();
    let (status, cgroup, stat) = (text("status")?, text("cgroup")?, text("stat")?);
    Some(Thread {
        tid,
        name: field(&status, "Name:"),
        cgroup: format!("{CGROUP}{}", cgroup.trim().strip_prefix("0::")?).into(),
        allowed: cpus(&field(&status, "Cpus_allowed_list:")),
        start: stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?,
    })
}

pub fn status(pid: impl Display) -> String {
    read(format!("/proc/{pid}/status"))
}

/// A field of it, in KiB.
pub fn kib(pid: impl Display, name: &str) -> u64 {
    number(&field(&status(pid), &format!("{name}:")))
}

pub fn allowed(pid: impl Display) -> CpuSet {
    cpus(&field(&status(pid), "Cpus_allowed_list:"))
}

/// The name of a process or thread; nothing when it has ended.
pub fn comm(pid: impl Display) -> String {
    read_if_there(format!("/proc/{pid}/comm"))
}

/// How long a thread ran, ns.
pub fn run_time(tid: u32) -> u64 {
    number(&read(format!("/proc/{tid}/schedstat")))
}

/// Have a thread run on these CPUs alone.
pub fn pin(thread: u32, to: impl IntoIterator<Item = u32>) -> Result<(), Errno> {
    let mut mask = Mask::new();
    to.into_iter().for_each(|cpu| mask.set(cpu as usize).expect("a CPU"));
    sched_setaffinity(Pid::from_raw(thread.cast_signed()), &mask)
}

/// The numbers that a process has, outermost first; none when it has ended.
pub fn numbers(pid: impl Display) -> Vec<u32> {
    let status = read_if_there(format!("/proc/{pid}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let words = line.unwrap_or_default().split_whitespace();
    words.map(|word| word.parse().expect("a number")).collect()
}

pub fn descriptors(pid: &str) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("fd").count()
}

/// Every process that shares the PID namespace of `init`: the whole container, wherever it was moved.
pub fn container_of(init: u32) -> BTreeMap<u32, Vec<Thread>> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(init).expect("the container's first process");
    let all = all_pids();
    let inside = all.into_iter().filter(|pid| namespace(*pid).as_ref() == Some(&own));
    inside.map(|pid| (pid, threads_of(pid))).collect()
}

/// The same with the processes in PID namespaces within the container's own, as crosvm's devices are: what the others started.
pub fn container_and_nested(init: u32) -> BTreeMap<u32, Vec<Thread>> {
    let mut all = container_of(init);
    let mut left: Vec<u32> = all.keys().copied().collect();
    while let Some(parent) = left.pop() {
        for child in children(parent) {
            if let Entry::Vacant(new) = all.entry(child) {
                new.insert(threads_of(child));
                left.push(child);
            }
        }
    }
    all
}

/// The processes that a process's threads have started, or become the parent of.
pub fn children(pid: u32) -> Vec<u32> {
    let of_thread = |thread: Thread| fs::read_to_string(format!("/proc/{pid}/task/{}/children", thread.tid)).ok();
    let texts: Vec<String> = threads_of(pid).into_iter().filter_map(of_thread).collect();
    let words = texts.iter().flat_map(|text| text.split_whitespace());
    words.filter_map(|word| word.parse().ok()).collect()
}

pub fn all_threads(processes: BTreeMap<u32, Vec<Thread>>) -> Vec<Thread> {
    processes.into_values().flatten().collect()
}

/// The node's processes whose names begin so, by their first threads.
pub fn processes_named(beginning: &str) -> Vec<Thread> {
    let all = all_pids().into_iter().filter_map(thread);
    all.filter(|one| one.name.starts_with(beginning)).collect()
}

pub fn all_pids() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

pub fn scopes() -> BTreeSet<PathBuf> {
    let names = names_in(SLICE).into_iter().filter(|name| name.ends_with(".scope"));
    names.map(|name| Path::new(SLICE).join(name)).collect()
}

/// Have the kernel keep so many huge pages: a file named `nr_hugepages`. On a node that has run for a while its memory is in pieces.
pub fn keep_huge_pages(file: &str, count: u32) {
    wait_until(&format!("{count} huge pages"), || {
        put("/proc/sys/vm/drop_caches", "3");
        put("/proc/sys/vm/compact_memory", "1");
        put(file, count.to_string());
        read(file) == count.to_string()
    });
}

/// The CPUs that partitions keep from everybody else.
pub fn partitioned() -> CpuSet {
    let left = cpus(&read(format!("{CGROUP}/cpuset.cpus.effective")));
    online().difference(&left)
}

pub fn online() -> CpuSet {
    cpus(&read("/sys/devices/system/cpu/online"))
}

/// Where what is in a cgroup may run, by its path below the root.
pub fn effective(cgroup: &str) -> CpuSet {
    cpus(&read(format!("{CGROUP}/{cgroup}/cpuset.cpus.effective")))
}

pub fn first_of(cpus: &CpuSet) -> u32 {
    cpus.iter().next().expect("a CPU")
}

pub fn last_of(cpus: &CpuSet) -> u32 {
    cpus.iter().last().expect("a CPU")
}

/// The kind of partition that a VM gets on this kernel.
pub fn kind() -> &'static str {
    if isolated_is_safe(&read("/proc/sys/kernel/osrelease")) {
        "isolated"
    } else {
        "root"
    }
}

/// Where the kernel's unbound workers may run.
pub fn workers() -> CpuSet {
    let mask = read("/sys/devices/virtual/workqueue/cpumask");
    CpuSet::from_mask(&mask).unwrap_or_else(|| panic!("no mask: {mask:?}"))
}

/// What is left of instances on this node, in words; empty on a clean node.
pub fn leftovers() -> Vec<String> {
    let mut left: Vec<String> = scopes().iter().map(|p| p.display().to_string()).collect();
    for above in [SLICE.to_owned(), format!("{CGROUP}/kubepods.slice")] {
        let file = format!("{above}/cpuset.cpus.exclusive");
        let text = read_if_there(&file);
        if !text.is_empty() {
            left.push(format!("{file}: {text}"));
        }
    }
    let closed = cpus(&read("/sys/devices/system/cpu/possible")).difference(&workers());
    for (what, cpus) in [("partitioned", partitioned()), ("closed to workers", closed)] {
        if !cpus.is_empty() {
            left.push(format!("{what}: {cpus}"));
        }
    }
    // Scopes that systemd still believes in, and whatever of ours failed.
    for units in [&["--all", "stelia-instance-*"], &["--failed", "stelia*"]] {
        let list = ["systemctl", "list-units", "--plain", "--no-legend"];
        let found = run(&[&list[..], units].concat());
        left.extend(found.lines().map(str::to_owned));
    }
    left.extend(changed());
    left.extend(remains());
    left
}

/// The main process of this unit is root without capabilities, which could have systemd start any unit.
pub fn assert_reaches_neither_bus_nor_systemd(unit: &str) {
    let pid = main_pid(unit);
    let inside = ["nsenter", "--mount", "--target", &pid];
    // systemd makes its sockets anew.
    run("systemctl daemon-reexec");
    for socket in ["/run/dbus/system_bus_socket", "/run/systemd/private"] {
        let address = format!("UNIX-CONNECT:{socket}");
        let connect = ["socat", "-u", "/dev/null", &address];
        run(&connect);
        let inside = output(&[&inside[..], &connect].concat());
        assert!(!inside.status.success(), "{unit}: {socket}");
    }
}
