//! What slows a VM down: a sample of a second, and what is known of where it runs. What the guest does not notice is not said.

use std::collections::BTreeMap;
use std::time::Duration;

use stelia_api::ThreadRole;
use stelia_cpus::{CpuSet, MAX_CPUS, Topology};
use stelia_kernel::cgroup::{Cgroups, File, KernelCgroups, value};
use stelia_kernel::counters;
use stelia_kernel::counters::cpu_time::{self, CpuTime};
use stelia_kernel::counters::interrupts::Table;
use stelia_kernel::locality::{Locality, nodes};
use stelia_model::Instance;

use super::{Answer, NOT_COUNTED};
use crate::check::first_few;
use crate::shared::daemon::{Description, Pod};
use crate::shared::kernel::interrupts::{fired_between, named, read_table};
use crate::shared::kernel::rates::{HIGH_FORCED_IDLE_PERCENT, HIGH_THROTTLED_PERCENT, InstanceRates, rates, worst};
use crate::shared::kernel::sample::Sample;
use crate::shared::kernel::{Roots, threads};

/// Time that a hypervisor below this host took the CPUs (steal), in percent.
const HIGH_STOLEN_PERCENT: f64 = 1.0;
/// Load of the shared CPUs, in percent: above this the VMM's threads other than vCPUs wait for a CPU.
const HIGH_LOAD_PERCENT: f64 = 80.0;
const RAISE: &str = "raise the container's CPU limit";

/// The kernel's counters at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    sample: Sample,
    cpus: BTreeMap<u32, CpuTime>,
    interrupts: Option<Table>,
    /// How long everything but the vCPUs was throttled, microseconds.
    throttled_us: u64,
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
            interrupts: read_table(&roots.proc),
            throttled_us: throttled_us.unwrap_or_default(),
            sample: Sample::read(&one, roots, at),
        }
    }
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

/// Tells what two readings, a second apart, and the daemon's view say of a VM. Returns whether everything could be read; what could not is told.
pub(super) fn slowdowns(
    answer: &mut Answer,
    description: &Description,
    (pod, instance): (&Pod, &Instance),
    (before, now): (&Reading, &Reading),
) -> bool {
    const BUSY: &str = "add shared CPUs (float-policy), take load off them, or set --iothread-cpus of the runner";
    const SPREAD: &str = "give the guest NUMA nodes (QEMU's -numa, Cloud Hypervisor's --numa), or set topologyManagerPolicy: single-numa-node";
    const CORES: &str = "set kubelet's full-pcpus-only, or steliad's bind policy FullPCPUs";
    const DEVICES: &str = "set a topologyManagerPolicy other than none, then restart the container";
    let sampled = rates(&before.sample, &now.sample);
    let seconds = sampled.seconds.max(0.001);
    let measured = sampled.instances.iter().find(|one| one.pod.pod_uid == pod.pod_uid);
    if let Some(measured) = measured {
        worst_vcpu(answer, measured);
    }
    let (own, float, topology) = (&instance.exclusive, &instance.float, &description.node.topology);
    let above = |value: Option<f64>, least: f64| value.filter(|value| *value >= least);
    let limit = |percent: Option<f64>, of: &str| {
        let percent = above(percent, HIGH_THROTTLED_PERCENT)?;
        Some(format!("its CPU limit throttled {of} {percent:.0} % of the time"))
    };
    let rest = now.throttled_us.saturating_sub(before.throttled_us) as f64 / 1e4 / seconds;
    let locality = description.locality.instances.get(&pod.pod_uid);
    let tables = before.interrupts.as_ref().zip(now.interrupts.as_ref());
    let disturbing = tables.map(|(before, now)| {
        let fired = fired_between(before, now, Duration::from_secs_f64(seconds));
        named(&fired, own, locality)
    });
    let interrupts = disturbing.as_ref().filter(|lines| !lines.is_empty());
    let interrupts = interrupts.map(|lines| first_few(lines));
    let load = above(share(before, now, float, |time| time.busy), HIGH_LOAD_PERCENT);
    let load = load.map(|load| format!("shared CPUs {float} are {load:.0} % busy"));
    let stolen = above(share(before, now, own, |time| time.stolen), HIGH_STOLEN_PERCENT);
    let stolen = stolen.map(|stolen| format!("a hypervisor below this host took {stolen:.1} % of its CPUs' time"));
    let host = nodes(topology, own).to_string();
    let spread =
        is_spread(instance, topology).then(|| format!("a NUMA node of the guest is spread over NUMA nodes {host}"));
    let cores: CpuSet = own
        .iter()
        .fold(CpuSet::new(), |all, cpu| all.union(&topology.siblings(cpu)));
    let foreign = Some(cores.difference(own)).filter(|foreign| !foreign.is_empty());
    let foreign = foreign.map(|cpus| format!("CPUs {cpus}, which are not its own, share cores with its CPUs"));
    let memory_fix = locality.map(Locality::memory_cure).unwrap_or_default();
    for (text, fix) in [
        (
            measured.and_then(|one| limit(one.throttled_percent, "the whole VM")),
            RAISE,
        ),
        (interrupts, &format!("steliactl noise {pod}")),
        (limit(Some(rest), "its other threads"), RAISE),
        (load, BUSY),
        (stolen, "check the host of this host"),
        (spread, SPREAD),
        (foreign, CORES),
        (locality.and_then(Locality::memory_problem), memory_fix.as_str()),
        (locality.and_then(Locality::devices_problem), DEVICES),
    ] {
        if let Some(text) = text {
            answer.slow(text, fix);
        }
    }
    let mut vcpus = measured.into_iter().flat_map(|one| &one.vcpus);
    let unread = [
        ("Devices", NOT_COUNTED, disturbing.is_none()),
        (
            "CPU time",
            "not measured: /proc/stat cannot be read",
            before.cpus.is_empty() || now.cpus.is_empty(),
        ),
        (
            "vCPUs",
            "not all measured: a thread ended, or its file in /proc cannot be read",
            vcpus.any(|vcpu| vcpu.rates.delay_percent.is_none()),
        ),
    ];
    for (label, text, _) in unread.iter().filter(|(.., is_unread)| *is_unread) {
        answer.say(label, *text);
    }
    unread.iter().all(|(.., is_unread)| !is_unread)
}

/// Whether a NUMA node that the guest sees is on several of the host. To a guest that is shown none all vCPUs are alike.
fn is_spread(instance: &Instance, topology: &Topology) -> bool {
    let mut by_node: BTreeMap<Option<u32>, CpuSet> = BTreeMap::new();
    for pinned in &instance.vcpus {
        if let ThreadRole::Vcpu(_) = pinned.thread.role {
            let own = pinned.thread.cpu.map(|cpu| std::iter::once(cpu).collect());
            let cpus = by_node.entry(pinned.guest_node).or_default();
            cpus.union_with(own.as_ref().unwrap_or(&instance.exclusive));
        }
    }
    by_node.values().any(|cpus| nodes(topology, cpus).len() > 1)
}

/// The vCPU that is disturbed most.
fn worst_vcpu(answer: &mut Answer, own: &InstanceRates) {
    if let Some(worst) = worst(&own.vcpus) {
        let fix = if worst.rates.forced_idle_percent >= Some(HIGH_FORCED_IDLE_PERCENT) {
            "assign whole cores (kubelet's full-pcpus-only, steliad's FullPCPUs), or set Cloud Hypervisor's --cpus core_scheduling=off"
        } else {
            &format!("steliactl ledger {} --watch 10s", own.pod)
        };
        answer.slow(format!("vCPU {} {}", worst.name, worst.note), fix);
    }
}
