//! What may slow a VM down: a sample of a second, and what is known of where it runs. Each line says what was measured,
//! whether it is much, and what an operator does about it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use stelia_api::State;
use stelia_cpus::{CpuSet, MAX_CPUS};
use stelia_kernel::cgroup::{CgroupPath, Cgroups, File, KernelCgroups, value};
use stelia_kernel::counters;
use stelia_kernel::counters::cpu_time::{self, CpuTime};
use stelia_kernel::locality::{list, nodes};
use stelia_model::Instance;

use super::cpu::pod_of;
use super::guest::GuestNode;
use super::other_tasks::{self, OtherTask, Tasks};
use crate::check::doctor::{is_large, numa_balances};
use crate::shared::daemon::{Description, not_isolated, owner};
use crate::shared::kernel::Roots;
use crate::shared::kernel::rates::{
    HIGH_DELAY_PERCENT, HIGH_FORCED_IDLE_PERCENT, HIGH_THROTTLED_PERCENT, InstanceRates, rates,
};
use crate::shared::kernel::sample::Sample;
use crate::shared::kernel::threads;
use crate::shared::output::{Column, Meaning, TextStyle, column, table};

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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub measured: String,
    /// Whether the guest may notice it.
    pub much: bool,
    /// What to do; empty where it is not much.
    pub cure: String,
}

const COLUMNS: [Column<Line>; 3] = [
    column("MEASURED", |line: &Line| line.measured.clone()).wraps(),
    column("MUCH", |line: &Line| if line.much { "yes" } else { "no" }.to_owned())
        .means(|line| if line.much { Meaning::Attention } else { Meaning::Plain }),
    column("WHAT TO DO", |line: &Line| line.cure.clone()).wraps(),
];

/// What was measured; the text of an empty list says so too.
pub(super) fn text(lines: &[Line], style: TextStyle) -> String {
    let mut text = if lines.is_empty() {
        String::new()
    } else if style.width.is_some() && lines.iter().all(|line| line.cure.is_empty()) {
        // A column without an entry would be a heading on three lines.
        let [without_cure @ .., _] = &COLUMNS;
        table(without_cure, lines, style)
    } else {
        table(&COLUMNS, lines, style)
    };
    if !lines.iter().any(|line| line.much) {
        text += "steliad found nothing that slows it down.\n";
    }
    text
}

/// The kernel's counters at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    sample: Sample,
    tasks: Tasks,
    cpus: BTreeMap<u32, CpuTime>,
    throttled: [Throttled; 2],
    numa_balancing: bool,
}

/// Counters of a `cpu.stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Throttled {
    times: u64,
    us: u64,
}

impl Reading {
    pub(super) fn take(description: &Description, pod: &str, roots: &Roots, at: Duration) -> Self {
        let mut one = description.clone();
        one.node.instances.retain(|uid, _| uid.as_str() == pod);
        let instance = one.node.instances.get(pod);
        let cgroups = KernelCgroups::new(&roots.cgroup);
        let scope = instance.map(|one| one.scope.clone());
        let throttled = [scope, instance.and_then(|one| threads::float(one))].map(|cgroup| {
            let read = |cgroup: CgroupPath| cgroups.read(&cgroup, File::CpuStat).ok();
            let text = cgroup.and_then(read).unwrap_or_default();
            let count = |name| value(&text, name).unwrap_or(0);
            Throttled {
                times: count("nr_throttled"),
                us: count("throttled_usec"),
            }
        });
        let all = CpuSet::below(MAX_CPUS);
        Self {
            cpus: counters::read(&roots.proc.join("stat"), |text| cpu_time::parse(text, &all)).unwrap_or_default(),
            throttled,
            numa_balancing: numa_balances(&roots.proc),
            tasks: other_tasks::read(&roots.proc),
            sample: Sample::read(&one, roots, at),
        }
    }
}

/// The share of these CPUs' time, in percent; `None` where nothing is known.
fn share(before: &Reading, now: &Reading, cpus: &CpuSet, of: fn(&CpuTime) -> u64) -> Option<f64> {
    let (mut part, mut whole) = (0, 0);
    for (cpu, now) in now.cpus.iter().filter(|(cpu, _)| cpus.contains(**cpu)) {
        let before = before.cpus.get(cpu)?;
        part += of(now).saturating_sub(of(before));
        whole += now.total.saturating_sub(before.total);
    }
    (whole > 0).then(|| part as f64 / whole as f64 * 100.0)
}

/// The lines that are gathered.
struct Lines(Vec<Line>);

impl Lines {
    fn add(&mut self, measured: String, much: bool, cure: impl Into<String>) {
        let cure = if much { cure.into() } else { String::new() };
        self.0.push(Line { measured, much, cure });
    }
}

/// What two readings, a second apart, and the daemon's view say of an instance.
pub(super) fn lines(
    description: &Description,
    pod: &str,
    instance: &Instance,
    guest: &[GuestNode],
    (before, now): (&Reading, &Reading),
) -> Vec<Line> {
    let mut lines = Lines(Vec::new());
    let sampled = rates(&before.sample, &now.sample);
    let seconds = sampled.seconds;
    state(instance, &mut lines);
    if let Some(rates) = sampled.instances.iter().find(|one| one.pod.pod_uid == pod) {
        waits(rates, &mut lines);
    }
    let own = instance.vcpus.iter().map(|vcpu| vcpu.thread.task.id).collect();
    let others = other_tasks::between(&before.tasks, &now.tasks, &instance.exclusive, &own);
    ran(&others, seconds, &mut lines);
    throttled(before, now, seconds, &mut lines);
    shares(before, now, instance, &mut lines);
    forced_idle(&before.sample, &now.sample, pod, seconds, &mut lines);
    spread(description, instance, guest, &mut lines);
    siblings(description, instance, &mut lines);
    if let Some(locality) = description.locality.instances.get(pod) {
        if now.numa_balancing && is_large(locality) {
            lines.add(
                "the kernel balances memory between NUMA nodes (kernel.numa_balancing), and this is a large VM: looking for pages to move stops \
                 its guest"
                    .to_owned(),
                true,
                "sysctl kernel.numa_balancing=0: its vCPUs stay where they are",
            );
        }
        if let Some(problem) = locality.memory_problem() {
            lines.add(problem, true, locality.memory_cure());
        }
        if let Some(problem) = locality.devices_problem() {
            let cure = "a topologyManagerPolicy other than none, then restart the container (/usr/share/doc/steliad/locality.md)";
            lines.add(problem, true, cure);
        }
    }
    lines.0
}

fn state(instance: &Instance, lines: &mut Lines) {
    if let Some(why) = not_isolated(instance) {
        let effect = match instance.state {
            State::Waiting => "its vCPUs share CPUs with other tasks",
            _ => "unbound kernel workers and other slices may run on its CPUs",
        };
        lines.add(format!("{}: {effect} ({})", instance.state, why.text), true, &why.cure);
    }
    for reason in &instance.degraded {
        lines.add(format!("isolation degraded: {reason}"), true, &reason.fix);
    }
}

/// What the vCPUs waited for their CPUs.
fn waits(rates: &InstanceRates, lines: &mut Lines) {
    let delay = |one: &&crate::shared::kernel::rates::VcpuRates| one.rates.delay_percent.unwrap_or(0.0);
    let worst = rates.vcpus.iter().max_by(|a, b| delay(a).total_cmp(&delay(b)));
    let Some(worst) = worst.filter(|worst| delay(worst) > 0.0) else {
        return;
    };
    let preempted = worst.rates.involuntary_per_second.unwrap_or(0.0);
    lines.add(
        format!(
            "vCPU {} waited {:.1} % of the time for a CPU, the most of all, and was preempted {preempted:.0} times a second",
            worst.name,
            delay(&worst)
        ),
        delay(&worst) >= HIGH_DELAY_PERCENT,
        "the next lines show what took the CPU; steliactl top shows it live",
    );
}

/// Core scheduling (Cloud Hypervisor's default) lets nobody else run beside a vCPU: siblings with other tasks stand idle.
fn forced_idle(before: &Sample, now: &Sample, pod: &str, seconds: f64, lines: &mut Lines) {
    let (Some(before), Some(now)) = (before.instances.get(pod), now.instances.get(pod)) else {
        return;
    };
    let grown = now.vcpus.iter().filter_map(|(index, now)| {
        let before = before.vcpus.get(index)?;
        now.forced_idle_ns?
            .checked_sub(before.forced_idle_ns.filter(|_| before.task == now.task)?)
    });
    let grown: u64 = grown.sum();
    if grown == 0 || seconds <= 0.0 {
        return;
    }
    let percent = grown as f64 / 1e7 / seconds;
    lines.add(
        format!("core scheduling kept siblings of its CPUs idle, {percent:.1} % of one CPU, while its vCPUs ran"),
        percent >= HIGH_FORCED_IDLE_PERCENT,
        "whole cores for it (full-pcpus-only of kubelet, FullPCPUs of steliad), or Cloud Hypervisor's --cpus core_scheduling=off",
    );
}

/// The other tasks on its CPUs: those that could run elsewhere, and the kernel's bound ones.
fn ran(others: &[OtherTask], seconds: f64, lines: &mut Lines) {
    let kinds = [
        (
            false,
            "other tasks",
            "steliactl verify; steliactl why CPU shows what may run there",
        ),
        (
            true,
            "the kernel's bound threads",
            "they cannot be moved: keep interrupts off these CPUs (steliactl noise, steliactl doctor)",
        ),
    ];
    for (bound, who, cure) in kinds {
        let these: Vec<&OtherTask> = others.iter().filter(|one| one.bound == bound).collect();
        let percent = |ns: u64| if seconds > 0.0 { ns as f64 / 1e7 / seconds } else { 0.0 };
        let all = percent(these.iter().map(|one| one.ns).sum());
        if these.is_empty() {
            continue;
        }
        let named = these.iter().take(MAX_NAMED_TASKS);
        let named = named.map(|one| format!("{} ({}) on {}", one.name, one.tid, one.cpu));
        let named: Vec<String> = named.collect();
        let more = match these.len().saturating_sub(MAX_NAMED_TASKS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        lines.add(
            format!(
                "{who} ran on its CPUs, {all:.1} % of one CPU: {}{more}",
                named.join(", ")
            ),
            all >= HIGH_OTHER_TASKS_PERCENT,
            cure,
        );
    }
}

fn throttled(before: &Reading, now: &Reading, seconds: f64, lines: &mut Lines) {
    let of = ["the whole VM", "everything but its vCPUs"];
    for (what, (before, now)) in of.into_iter().zip(before.throttled.iter().zip(&now.throttled)) {
        let times = now.times.saturating_sub(before.times);
        if times == 0 || seconds <= 0.0 {
            continue;
        }
        let percent = now.us.saturating_sub(before.us) as f64 / 1e4 / seconds;
        lines.add(
            format!("{what} was throttled {times} times, {percent:.1} % of the time, by its CPU limit"),
            percent >= HIGH_THROTTLED_PERCENT,
            "a higher CPU limit of the container, or fewer threads beside the VM's vCPUs",
        );
    }
}

/// What of the CPUs' time went elsewhere.
fn shares(before: &Reading, now: &Reading, instance: &Instance, lines: &mut Lines) {
    if let Some(load) = share(before, now, &instance.float, |time| time.busy) {
        let much = load >= HIGH_LOAD_PERCENT;
        lines.add(
            format!(
                "the shared CPUs that the rest of its VMM runs on, {}, were {load:.0} % busy",
                instance.float
            ),
            much,
            "more shared CPUs (float-policy), less on them, or --iothread-cpus of the runner for its I/O threads",
        );
    }
    let stolen = share(before, now, &instance.exclusive, |time| time.stolen);
    if let Some(stolen) = stolen.filter(|stolen| *stolen > 0.0) {
        lines.add(
            format!("a hypervisor below this host took {stolen:.1} % of its CPUs' time"),
            stolen >= HIGH_STOLEN_PERCENT,
            "this host is a VM itself: check its host",
        );
    }
}

/// CPUs on several NUMA nodes matter where the guest does not know it.
fn spread(description: &Description, instance: &Instance, guest: &[GuestNode], lines: &mut Lines) {
    let host = nodes(&description.node.topology, &instance.exclusive);
    if host.len() < 2 {
        return;
    }
    let spread = guest.iter().any(|node| node.spread);
    let words = if spread {
        "a NUMA node of the guest is spread over several of them"
    } else {
        "each NUMA node of the guest is within one of them"
    };
    lines.add(
        format!("its CPUs are on the NUMA nodes {}: {words}", list(&host)),
        spread,
        "NUMA nodes for the guest (QEMU's -numa, Cloud Hypervisor's --numa), or CPUs of one NUMA node: topologyManagerPolicy single-numa-node",
    );
}

fn siblings(description: &Description, instance: &Instance, lines: &mut Lines) {
    let topology = &description.node.topology;
    let mut foreign: BTreeSet<u32> = BTreeSet::new();
    for cpu in instance.exclusive.iter() {
        let own = owner(description, cpu);
        let others = topology.siblings(cpu);
        foreign.extend(
            others
                .iter()
                .filter(|other| pod_of(&owner(description, *other)) != pod_of(&own)),
        );
    }
    if foreign.is_empty() {
        return;
    }
    lines.add(
        format!("CPUs {} share cores with its own and are not its own", list(&foreign)),
        true,
        "full-pcpus-only of kubelet, or the bind policy FullPCPUs of steliad",
    );
}
