//! What slows a VM down: a sample of a second, and what is known of where it runs. What the guest does not notice is not said.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stelia_cpus::{CpuSet, MAX_CPUS};
use stelia_kernel::cgroup::{Cgroups, File, KernelCgroups, value};
use stelia_kernel::counters::cpu_time::{self, CpuTime};
use stelia_kernel::counters::{self, task};
use stelia_kernel::locality::nodes;
use stelia_kernel::proc::stat;
use stelia_model::Instance;

use super::Answer;
use crate::shared::daemon::Description;
use crate::shared::kernel::rates::{HIGH_FORCED_IDLE_PERCENT, HIGH_THROTTLED_PERCENT, InstanceRates, rates, worst};
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
const RAISE: &str = "raise the container's CPU limit";
/// Limit of the other tasks that are named.
const MAX_NAMED_TASKS: usize = 3;

/// The kernel's counters at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    sample: Sample,
    tasks: BTreeMap<i32, Task>,
    cpus: BTreeMap<u32, CpuTime>,
    /// How long everything but the vCPUs was throttled, microseconds.
    throttled_us: u64,
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

/// Tells what two readings, a second apart, and the daemon's view say of a VM. `spread`: a NUMA node of its guest is on several of the host.
pub(super) fn slowdowns(
    answer: &mut Answer,
    description: &Description,
    (pod, instance): (&str, &Instance),
    spread: bool,
    (before, now): (&Reading, &Reading),
) {
    let sampled = rates(&before.sample, &now.sample);
    let seconds = sampled.seconds.max(0.001);
    let above = |percent: Option<f64>, least: f64| percent.filter(|percent| *percent >= least);
    if let Some(own) = sampled.instances.iter().find(|one| one.pod.pod_uid == pod) {
        worst_vcpu(answer, own);
        if let Some(percent) = above(own.throttled_percent, HIGH_THROTTLED_PERCENT) {
            answer.slow(
                format!("its CPU limit throttled the whole VM {percent:.0} % of the time"),
                RAISE,
            );
        }
        if let Some(rate) = own.device_interrupts_per_second.filter(|rate| *rate > 0.0) {
            answer.slow(
                format!("devices interrupt its CPUs {rate:.0} times/s"),
                "steliactl noise VM",
            );
        }
    }
    others(answer, before, now, instance, seconds);
    let throttled = now.throttled_us.saturating_sub(before.throttled_us) as f64 / 1e4 / seconds;
    if let Some(percent) = above(Some(throttled), HIGH_THROTTLED_PERCENT) {
        answer.slow(
            format!("its CPU limit throttled its other threads {percent:.0} % of the time"),
            RAISE,
        );
    }
    if let Some(load) = above(share(before, now, &instance.float, |time| time.busy), HIGH_LOAD_PERCENT) {
        let fix = "add shared CPUs (float-policy), take load off them, or set --iothread-cpus of the runner";
        answer.slow(format!("shared CPUs {} are {load:.0} % busy", instance.float), fix);
    }
    if let Some(stolen) = above(
        share(before, now, &instance.exclusive, |time| time.stolen),
        HIGH_STOLEN_PERCENT,
    ) {
        let text = format!("a hypervisor below this host took {stolen:.1} % of its CPUs' time");
        answer.slow(text, "check the host of this host");
    }
    let topology = &description.node.topology;
    if spread {
        let host = nodes(topology, &instance.exclusive).to_string();
        let fix = "give the guest NUMA nodes (QEMU's -numa, Cloud Hypervisor's --numa), or set topologyManagerPolicy: single-numa-node";
        answer.slow(
            format!("a NUMA node of the guest is spread over NUMA nodes {host}"),
            fix,
        );
    }
    let cores: CpuSet = instance
        .exclusive
        .iter()
        .flat_map(|cpu| topology.siblings(cpu).iter().collect::<Vec<_>>())
        .collect();
    let foreign = cores.difference(&instance.exclusive);
    if !foreign.is_empty() {
        let fix = "set kubelet's full-pcpus-only, or steliad's bind policy FullPCPUs";
        answer.slow(
            format!("CPUs {foreign}, which are not its own, share cores with its CPUs"),
            fix,
        );
    }
    if let Some(locality) = description.locality.instances.get(pod) {
        if let Some(problem) = locality.memory_problem() {
            answer.slow(problem, &locality.memory_cure());
        }
        if let Some(problem) = locality.devices_problem() {
            let fix = "set a topologyManagerPolicy other than none, then restart the container";
            answer.slow(problem, fix);
        }
    }
}

/// The vCPU that is disturbed most.
fn worst_vcpu(answer: &mut Answer, own: &InstanceRates) {
    if let Some(worst) = worst(&own.vcpus) {
        let fix = if worst.rates.forced_idle_percent >= Some(HIGH_FORCED_IDLE_PERCENT) {
            "assign whole cores (kubelet's full-pcpus-only, steliad's FullPCPUs), or set Cloud Hypervisor's --cpus core_scheduling=off"
        } else {
            "run steliactl top to see whether this lasts"
        };
        answer.slow(format!("vCPU {} {}", worst.name, worst.note), fix);
    }
}

/// The other tasks on its CPUs. A task ran on a CPU if its run time grew and that CPU is where it ran last: one that ran there and elsewhere
/// counts in full, one that moved away again does not count.
fn others(answer: &mut Answer, before: &Reading, now: &Reading, instance: &Instance, seconds: f64) {
    let own: BTreeSet<i32> = instance.vcpus.iter().map(|vcpu| vcpu.thread.task.id).collect();
    let of_kernel = "keep interrupts off these CPUs: steliactl noise, steliactl doctor";
    for (bound, who, fix) in [
        (false, "other tasks", "run steliactl verify"),
        (true, "the kernel's bound threads", of_kernel),
    ] {
        let here =
            |tid: &i32, task: &Task| task.bound == bound && instance.exclusive.contains(task.cpu) && !own.contains(tid);
        let mut ran: Vec<(Reverse<u64>, i32, &Task)> = Vec::new();
        for (tid, task) in now.tasks.iter().filter(|(tid, task)| here(tid, task)) {
            // A number that is new, or was reused, is a task that began meanwhile.
            let former = before.tasks.get(tid).map_or(0, |before| before.run_ns);
            ran.push((
                Reverse(task.run_ns.checked_sub(former).unwrap_or(task.run_ns)),
                *tid,
                task,
            ));
        }
        ran.sort_by_key(|(ns, tid, _)| (*ns, *tid));
        let percent = ran.iter().map(|(ns, ..)| ns.0).sum::<u64>() as f64 / 1e7 / seconds;
        let named = ran.iter().filter(|(ns, ..)| ns.0 > 0).take(MAX_NAMED_TASKS);
        let named = named.map(|(_, tid, task)| format!("{} ({tid}) on {}", task.name, task.cpu));
        let named = named.collect::<Vec<_>>().join(", ");
        if percent >= HIGH_OTHER_TASKS_PERCENT {
            answer.slow(
                format!("{who} took {percent:.1} % of one of its CPUs, most of all {named}"),
                fix,
            );
        }
    }
}
