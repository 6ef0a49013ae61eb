//! The node as the kernel and systemd show it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use stelia_cpus::CpuSet;
use stelia_kernel::kernel_release::isolated_is_safe;

use crate::quiet::interrupts::changed;
use crate::quiet::trace::remains;

pub const CGROUP: &str = "/sys/fs/cgroup";
pub const SLICE: &str = "/sys/fs/cgroup/stelia.slice";
/// An emulated node on a busy machine can be slow; what is measured is printed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Run a program; what it says goes into the panic when it fails.
pub fn run(argv: &[&str]) -> String {
    let out = output(argv);
    assert!(
        out.status.success(),
        "{argv:?}: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

pub fn output(argv: &[&str]) -> Output {
    let (program, arguments) = argv.split_first().expect("a program");
    Command::new(program).args(arguments).output().expect(program)
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
    text.trim().to_owned()
}

pub fn cpus(text: &str) -> CpuSet {
    text.trim().parse().unwrap_or_else(|e| panic!("CPUs {text:?}: {e}"))
}

/// Wait until `now` answers, and say how long that took.
pub fn wait_until<T>(what: &str, now: impl FnMut() -> Option<T>) -> T {
    wait_until_or(what, String::new, now)
}

/// The same; when it comes too late, `seen` says what there was instead.
pub fn wait_until_or<T>(what: &str, seen: impl Fn() -> String, now: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, what, seen, now)
}

/// The same, no longer than `patience`.
pub fn wait_within<T>(
    patience: Duration,
    what: &str,
    seen: impl Fn() -> String,
    mut now: impl FnMut() -> Option<T>,
) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = now() {
            println!("  {what}: after {} ms", started.elapsed().as_millis());
            return found;
        }
        assert!(
            started.elapsed() < patience,
            "not within {patience:?}: {what}{}",
            seen()
        );
        sleep(Duration::from_millis(20));
    }
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

/// Every thread of a process; one that ends meanwhile is left out.
pub fn threads_of(pid: u32) -> Vec<Thread> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let tids = entries.into_iter().flatten().flatten();
    let tids = tids.filter_map(|e| e.file_name().to_str()?.parse().ok());
    tids.filter_map(thread).collect()
}

pub fn thread(tid: u32) -> Option<Thread> {
    let text = |file: &str| fs::read_to_string(format!("/proc/{tid}/{file}")).ok();
    let status = text("status")?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cgroup = text("cgroup")?;
    let stat = text("stat")?;
    Some(Thread {
        tid,
        name: field("Name:")?,
        cgroup: format!("{CGROUP}{}", cgroup.trim().strip_prefix("0::")?).into(),
        allowed: cpus(&field("Cpus_allowed_list:")?),
        start: stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?,
    })
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

pub fn all_pids() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// The scopes in stelia.slice.
pub fn scopes() -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(SLICE).into_iter().flatten().flatten();
    let paths = entries.map(|e| e.path());
    paths.filter(|p| p.extension().is_some_and(|e| e == "scope")).collect()
}

/// Have the kernel keep so many huge pages: a file named `nr_hugepages`. On a node that has run for a while its memory is in pieces.
pub fn keep_huge_pages(file: &str, count: u32) {
    let put = |file: &str, text: &str| fs::write(file, text).unwrap_or_else(|e| panic!("{file}: {e}"));
    wait_until(&format!("{count} huge pages"), || {
        put("/proc/sys/vm/drop_caches", "3");
        put("/proc/sys/vm/compact_memory", "1");
        put(file, &count.to_string());
        (read(file) == count.to_string()).then_some(())
    });
}

/// The CPUs that partitions keep from everybody else.
pub fn partitioned() -> CpuSet {
    let left = cpus(&read(format!("{CGROUP}/cpuset.cpus.effective")));
    cpus(&read("/sys/devices/system/cpu/online")).difference(&left)
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
        let text = fs::read_to_string(&file).unwrap_or_default();
        if !text.trim().is_empty() {
            left.push(format!("{file}: {}", text.trim()));
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

/// The last lines of these units, for the message of a wait that failed.
pub fn journal_of(units: &[&str]) -> String {
    let units: Vec<String> = units.iter().map(|unit| format!("--unit={unit}")).collect();
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    let last = ["journalctl", "-b", "--no-pager", "-o", "short-monotonic", "-n", "100"];
    let out = output(&[&last[..], &units].concat());
    format!("; the journal says:\n{}", String::from_utf8_lossy(&out.stdout))
}

/// The main process of this unit is root without capabilities, which could have systemd start any unit.
pub fn assert_reaches_neither_bus_nor_systemd(unit: &str) {
    let pid = run(&["systemctl", "show", "-P", "MainPID", unit]);
    let inside = ["nsenter", "--mount", "--target", &pid];
    // systemd makes its sockets anew.
    run(&["systemctl", "daemon-reexec"]);
    for socket in ["/run/dbus/system_bus_socket", "/run/systemd/private"] {
        let address = format!("UNIX-CONNECT:{socket}");
        let connect = ["socat", "-u", "/dev/null", &address];
        run(&connect);
        let inside = output(&[&inside[..], &connect].concat());
        assert!(!inside.status.success(), "{unit}: {socket}");
    }
}
