//! What slows a VM down: a sample of a second, and what is known of where it runs. What the guest does not notice is not said.

use std::collections::BTreeMap;
use std::time::Duration;

use stelia_api::ThreadRole;
use stelia_api::reason::RECREATE;
use stelia_cpus::{CpuSet, MAX_CPUS, Topology};
use stelia_kernel::cgroup::{Cgroups, File, KernelCgroups, value};
use stelia_kernel::counters;
use stelia_kernel::counters::cpu_time::{self, CpuTime};
use stelia_kernel::counters::interrupts::Table;
use stelia_kernel::locality::{Locality, nodes};
use stelia_model::Instance;

use super::NOT_COUNTED;
use crate::check::first_few;
use crate::shared::daemon::{Description, Pod, Rows, own_cpus};
use crate::shared::kernel::interrupts::{fired_between, named, read_table};
use crate::shared::kernel::rates::{HIGH_FORCED_IDLE_PERCENT, HIGH_THROTTLED_PERCENT, rates, worst};
use crate::shared::kernel::sample::Sample;
use crate::shared::kernel::{Roots, threads};

/// Time that a hypervisor below this host took the CPUs (steal), in percent.
const HIGH_STOLEN_PERCENT: f64 = 1.0;
/// Load of the shared CPUs, in percent: above this the VMM's threads other than vCPUs wait for a CPU.
const HIGH_LOAD_PERCENT: f64 = 80.0;
const RAISE: &str = "raise the container's CPU limit";
const WHOLE_CORES: &str = "assign whole cores (kubelet's full-pcpus-only, steliad's FullPCPUs), or set Cloud Hypervisor's --cpus core_scheduling=off";

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
    facts: &mut Rows,
    description: &Description,
    (pod, instance): (&Pod, &Instance),
    (before, now): (&Reading, &Reading),
) -> bool {
    const BUSY: &str = "add shared CPUs (float-policy), take load off them, or set --iothread-cpus of the runner";
    const SPREAD: &str = "give the guest NUMA nodes (QEMU's -numa, Cloud Hypervisor's --numa), or set topologyManagerPolicy: single-numa-node";
    const CORES: &str = "set kubelet's full-pcpus-only, or steliad's bind policy FullPCPUs";
    // kubelet chooses devices when it admits a pod.
    let recreate = pod.in_fix(format!("set a topologyManagerPolicy other than none, then {RECREATE}"));
    let sampled = rates(&before.sample, &now.sample);
    let seconds = sampled.seconds.max(0.001);
    let measured = sampled.instances.iter().find(|one| one.pod.pod_uid == pod.pod_uid);
    let (own, float, topology) = (&own_cpus(instance), &instance.float, &description.node.topology);
    let limit = |percent: f64, of: &str| {
        let is_high = percent >= HIGH_THROTTLED_PERCENT;
        is_high.then(|| format!("its CPU limit throttled {of} {percent:.0} % of the time"))
    };
    let rest = now.throttled_us.saturating_sub(before.throttled_us) as f64 / 1e4 / seconds;
    let locality = description.locality.instances.get(&pod.pod_uid);
    let tables = before.interrupts.as_ref().zip(now.interrupts.as_ref());
    let fired = tables.map(|(before, now)| fired_between(before, now, Duration::from_secs_f64(seconds)));
    let interrupts = fired.as_ref().map(|fired| named(fired, own, locality));
    let interrupts = interrupts
        .filter(|lines| !lines.is_empty())
        .map(|lines| first_few(&lines));
    let load = share(before, now, float, |time| time.busy).filter(|load| *load >= HIGH_LOAD_PERCENT);
    let stolen = share(before, now, own, |time| time.stolen).filter(|stolen| *stolen >= HIGH_STOLEN_PERCENT);
    let cores = own
        .iter()
        .fold(CpuSet::new(), |all, cpu| all.union(&topology.siblings(cpu)));
    let foreign = cores.difference(own);
    let foreign =
        (!foreign.is_empty()).then(|| format!("CPUs {foreign}, which are not its own, share cores with its CPUs"));
    let worst = measured.and_then(|one| worst(&one.vcpus));
    let watch = format!("steliactl ledger {pod} --watch 10s");
    let is_forced_idle = worst.is_some_and(|worst| worst.rates.forced_idle_percent >= Some(HIGH_FORCED_IDLE_PERCENT));
    let slow = [
        (
            worst.map(|worst| format!("vCPU {} {}", worst.name, worst.note)),
            if is_forced_idle { WHOLE_CORES } else { &watch },
        ),
        (
            measured.and_then(|one| limit(one.throttled_percent?, "the whole VM")),
            RAISE,
        ),
        (interrupts, &format!("steliactl noise {pod}")),
        (limit(rest, "its other threads"), RAISE),
        (
            load.map(|load| format!("shared CPUs {float} are {load:.0} % busy")),
            BUSY,
        ),
        (
            stolen.map(|stolen| format!("a hypervisor below this host took {stolen:.1} % of its CPUs' time")),
            "check the host of this host",
        ),
        (spread(instance, topology), SPREAD),
        (foreign, CORES),
        (
            locality.and_then(Locality::memory_problem),
            &locality.map(Locality::memory_cure).unwrap_or_default(),
        ),
        (locality.and_then(Locality::devices_problem), &recreate),
    ];
    for (text, fix) in slow {
        text.iter().for_each(|text| facts.finding("Slow", text, "", fix));
    }
    let no_stat = before.cpus.is_empty() || now.cpus.is_empty();
    let mut vcpus = measured.into_iter().flat_map(|one| &one.vcpus);
    let is_unread = vcpus.any(|vcpu| vcpu.rates.delay_percent.is_none());
    let unread = [
        ("Devices", NOT_COUNTED, fired.is_none()),
        ("CPU time", "not measured: /proc/stat cannot be read", no_stat),
        (
            "vCPUs",
            "not all measured: a thread ended, or its file in /proc cannot be read",
            is_unread,
        ),
    ];
    for (label, text, _) in unread.iter().filter(|(.., is_unread)| *is_unread) {
        facts.say(label, *text);
    }
    unread.iter().all(|(.., is_unread)| !is_unread)
}

/// That a NUMA node that the guest sees is on several of the host. To a guest that is shown none all vCPUs are alike.
fn spread(instance: &Instance, topology: &Topology) -> Option<String> {
    let mut by_node: BTreeMap<Option<u32>, CpuSet> = BTreeMap::new();
    for pinned in &instance.vcpus {
        if let ThreadRole::Vcpu(_) = pinned.thread.role {
            let own = pinned.thread.cpu.map(|cpu| std::iter::once(cpu).collect());
            let cpus = by_node.entry(pinned.guest_node).or_default();
            cpus.union_with(own.as_ref().unwrap_or(&instance.exclusive));
        }
    }
    let host = nodes(topology, &instance.exclusive);
    let is_spread = by_node.values().any(|cpus| nodes(topology, cpus).len() > 1);
    is_spread.then(|| format!("a NUMA node of the guest is spread over NUMA nodes {host}"))
}
