//! What slows a VM down: a sample of a second, and what is known of where it runs. What the guest does not notice is not said.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use stelia_cpus::{CpuSet, MAX_CPUS};
use stelia_kernel::cgroup::{Cgroups, File, KernelCgroups, value};
use stelia_kernel::counters::cpu_time::{self, CpuTime};
use stelia_kernel::counters::{self, task};
use stelia_kernel::locality::{list, nodes};
use stelia_kernel::proc::stat;
use stelia_model::Instance;

use crate::check::doctor::{is_large, numa_balances};
use crate::shared::daemon::Description;
use crate::shared::kernel::rates::{HIGH_FORCED_IDLE_PERCENT, HIGH_THROTTLED_PERCENT, InstanceRates, VcpuRates, rates};
use crate::shared::kernel::sample::Sample;
use crate::shared::kernel::{Roots, numbered, threads};

/// How long the measurement takes.
pub(super) const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// Other tasks on the VM's CPUs, in percent of one CPU.
const HIGH_OTHER_TASKS_PERCENT: f64 = 1.0;
/// Time that a hypervisor below this host took the CPUs (steal), in percent.
const HIGH_STOLEN_PERCENT: f64 = 1.0;
/// Load of the shared CPUs, in percent: above this the VMM's threads other than vCPUs wait for a CPU.
const HIGH_LOAD_PERCENT: f64 = 80.0;
/// Limit of the other tasks that are named.
const MAX_NAMED_TASKS: usize = 3;

/// Something that slows the VM down, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Slowdown {
    pub text: String,
    pub fix: String,
}

/// The kernel's counters at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    sample: Sample,
    tasks: BTreeMap<i32, Task>,
    cpus: BTreeMap<u32, CpuTime>,
    /// How long everything but the vCPUs was throttled, microseconds.
    throttled_us: u64,
    numa_balancing: bool,
}

/// A thread of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Task {
    name: String,
    /// The kernel's own, bound to its CPU: nothing moves it.
    bound: bool,
    /// Where it ran last.
    cpu: u32,
    run_ns: u64,
}

impl Reading {
    pub(super) fn take(description: &Description, pod: &str, roots: &Roots, at: Duration) -> Self {
        let mut one = description.clone();
        one.node.instances.retain(|uid, _| uid.as_str() == pod);
        let float = one.node.instances.get(pod).and_then(|one| threads::float(one));
        let cgroups = KernelCgroups::new(&roots.cgroup);
        let text = float.and_then(|float| cgroups.read(&float, File::CpuStat).ok());
        let throttled_us = text.and_then(|text| value(&text, "throttled_usec"));
        let all = CpuSet::below(MAX_CPUS);
        Self {
            cpus: counters::read(&roots.proc.join("stat"), |text| cpu_time::parse(text, &all)).unwrap_or_default(),
            throttled_us: throttled_us.unwrap_or_default(),
            numa_balancing: numa_balances(&roots.proc),
            tasks: tasks(&roots.proc),
            sample: Sample::read(&one, roots, at),
        }
    }
}

/// Every thread of the host; one that ends meanwhile is left out.
fn tasks(proc: &Path) -> BTreeMap<i32, Task> {
    let threads = numbered(proc).flat_map(|(_, process)| numbered(&process.join("task")));
    let task = |(tid, folder): (i32, PathBuf)| {
        let text = fs::read(folder.join("stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        let stat = stat::parse(&text)?;
        let task = Task {
            bound: stat.refuses(),
            cpu: stat::cpu(&text)?,
            run_ns: task::parse(&fs::read(folder.join("schedstat")).ok()?).ok()?.run_ns,
            name: stat.name,
        };
        Some((tid, task))
    };
    threads.filter_map(task).collect()
}

/// The share of these CPUs' time between two readings, in percent; `None` where nothing is known.
pub(super) fn share(before: &Reading, now: &Reading, cpus: &CpuSet, of: fn(&CpuTime) -> u64) -> Option<f64> {
    let (mut part, mut whole) = (0, 0);
    for (cpu, now) in now.cpus.iter().filter(|(cpu, _)| cpus.contains(**cpu)) {
        let before = before.cpus.get(cpu)?;
        part += of(now).saturating_sub(of(before));
        whole += now.total.saturating_sub(before.total);
    }
    (whole > 0).then(|| part as f64 / whole as f64 * 100.0)
}

/// What two readings, a second apart, and the daemon's view say of a VM. `spread`: a NUMA node of its guest is on several of the host.
pub(super) fn slowdowns(
    description: &Description,
    pod: &str,
    instance: &Instance,
    spread: bool,
    (before, now): (&Reading, &Reading),
) -> Vec<Slowdown> {
    let mut found = Vec::new();
    let mut say = |text: String, fix: &str| {
        let fix = fix.to_owned();
        found.push(Slowdown { text, fix });
    };
    let sampled = rates(&before.sample, &now.sample);
    let seconds = sampled.seconds.max(0.001);
    let own = sampled.instances.iter().find(|one| one.pod.pod_uid == pod);
    if let Some(own) = own {
        of_vcpus(own, &mut say);
    }
    others(before, now, instance, seconds, &mut say);
    let throttled = now.throttled_us.saturating_sub(before.throttled_us) as f64 / 1e4 / seconds;
    if throttled >= HIGH_THROTTLED_PERCENT {
        let text = format!("its CPU limit throttled its other threads {throttled:.0} % of the time");
        say(text, "raise the container's CPU limit");
    }
    let float = share(before, now, &instance.float, |time| time.busy);
    if let Some(load) = float.filter(|load| *load >= HIGH_LOAD_PERCENT) {
        let text = format!("shared CPUs {} are {load:.0} % busy", instance.float);
        let fix = "add shared CPUs (float-policy), take load off them, or set --iothread-cpus of the runner";
        say(text, fix);
    }
    let stolen = share(before, now, &instance.exclusive, |time| time.stolen);
    if let Some(stolen) = stolen.filter(|stolen| *stolen >= HIGH_STOLEN_PERCENT) {
        let text = format!("a hypervisor below this host took {stolen:.1} % of its CPUs' time");
        say(text, "check the host of this host");
    }
    let topology = &description.node.topology;
    if spread {
        let host = list(&nodes(topology, &instance.exclusive));
        let fix = "give the guest NUMA nodes (QEMU's -numa, Cloud Hypervisor's --numa), or set topologyManagerPolicy: single-numa-node";
        say(
            format!("a NUMA node of the guest is spread over NUMA nodes {host}"),
            fix,
        );
    }
    let mut cores = CpuSet::new();
    for cpu in instance.exclusive.iter() {
        cores.union_with(&topology.siblings(cpu));
    }
    let foreign = cores.difference(&instance.exclusive);
    if !foreign.is_empty() {
        let fix = "set kubelet's full-pcpus-only, or steliad's bind policy FullPCPUs";
        say(
            format!("CPUs {foreign}, which are not its own, share cores with its CPUs"),
            fix,
        );
    }
    if let Some(locality) = description.locality.instances.get(pod) {
        if now.numa_balancing && is_large(locality) {
            let text = "the kernel's NUMA balancing stops this large VM to look for pages to move";
            say(text.to_owned(), "sysctl kernel.numa_balancing=0");
        }
        if let Some(problem) = locality.memory_problem() {
            say(problem, &locality.memory_cure());
        }
        if let Some(problem) = locality.devices_problem() {
            let fix = "set a topologyManagerPolicy other than none, then restart the container";
            say(problem, fix);
        }
    }
    found
}

/// The vCPU that is disturbed most, and what interrupts the VM.
fn of_vcpus(own: &InstanceRates, say: &mut impl FnMut(String, &str)) {
    let delay = |one: &VcpuRates| one.rates.delay_percent.unwrap_or_default();
    let disturbed = own.vcpus.iter().filter_map(|one| Some((one, one.reason.as_ref()?)));
    if let Some((worst, reason)) = disturbed.max_by(|(a, _), (b, _)| delay(a).total_cmp(&delay(b))) {
        let idles = worst.rates.forced_idle_percent >= Some(HIGH_FORCED_IDLE_PERCENT);
        let fix = if idles {
            "assign whole cores (kubelet's full-pcpus-only, steliad's FullPCPUs), or set Cloud Hypervisor's --cpus core_scheduling=off"
        } else {
            "run steliactl top to see whether this lasts"
        };
        say(format!("vCPU {} {reason}", worst.name), fix);
    }
    let throttled = own
        .throttled_percent
        .filter(|percent| *percent >= HIGH_THROTTLED_PERCENT);
    if let Some(percent) = throttled {
        let text = format!("its CPU limit throttled the whole VM {percent:.0} % of the time");
        say(text, "raise the container's CPU limit");
    }
    if let Some(rate) = own.device_interrupts_per_second.filter(|rate| *rate > 0.0) {
        say(
            format!("devices interrupt its CPUs {rate:.0} times/s"),
            "steliactl noise VM",
        );
    }
}

/// The other tasks on its CPUs. A task ran on a CPU if its run time grew and that CPU is where it ran last: one that ran there and elsewhere
/// counts in full, one that moved away again does not count.
fn others(before: &Reading, now: &Reading, instance: &Instance, seconds: f64, say: &mut impl FnMut(String, &str)) {
    let own: BTreeSet<i32> = instance.vcpus.iter().map(|vcpu| vcpu.thread.task.id).collect();
    let mut ran: Vec<(Reverse<u64>, i32, &Task)> = Vec::new();
    for (tid, task) in &now.tasks {
        // A number that is new, or was reused, is a task that began meanwhile.
        let former = before.tasks.get(tid).map_or(0, |before| before.run_ns);
        let ns = task.run_ns.checked_sub(former).unwrap_or(task.run_ns);
        if ns > 0 && instance.exclusive.contains(task.cpu) && !own.contains(tid) {
            ran.push((Reverse(ns), *tid, task));
        }
    }
    ran.sort_by_key(|(ns, tid, _)| (*ns, *tid));
    let of_kernel = "keep interrupts off these CPUs: steliactl noise, steliactl doctor";
    for (bound, who, fix) in [
        (false, "other tasks", "run steliactl verify"),
        (true, "the kernel's bound threads", of_kernel),
    ] {
        let these = || ran.iter().filter(|(.., task)| task.bound == bound);
        let percent = these().map(|(ns, ..)| ns.0).sum::<u64>() as f64 / 1e7 / seconds;
        let named = these().take(MAX_NAMED_TASKS);
        let mut named: Vec<String> = named
            .map(|(_, tid, task)| format!("{} ({tid}) on {}", task.name, task.cpu))
            .collect();
        if these().count() > MAX_NAMED_TASKS {
            named.push("…".to_owned());
        }
        if percent >= HIGH_OTHER_TASKS_PERCENT {
            say(
                format!("{who} took {percent:.1} % of one of its CPUs: {}", named.join(", ")),
                fix,
            );
        }
    }
}
