//! The reasons of degradation of an instance, in words; none where everything promised holds.

use stelia_api::{Reason, ReasonCode, ThreadRole};
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_model::record::Phase;

use super::derived::Blocked;
use super::entitlement::{Entitlement, Eviction, Shrink};
use super::steps::too_much_memory;
use super::{Assessment, Derived, Instance, Snapshot};

/// The reasons of one instance as they are found.
struct Reasons<'a> {
    pod: &'a PodUid,
    found: Vec<Reason>,
}

impl Reasons<'_> {
    fn own(&mut self, code: ReasonCode, text: impl Into<String>) {
        self.found.push(Reason::of(self.pod, code, text));
    }
}

/// The reasons, in the order of what an operator should look at first.
pub(super) fn degraded(
    snapshot: &Snapshot,
    facts: &Derived,
    instance: &Instance,
    assessment: &Assessment,
) -> Vec<Reason> {
    let record = &instance.record;
    let mut reasons = Reasons {
        pod: &record.pod,
        found: Vec::new(),
    };
    if let Some(float) = assessment.float.as_ref().filter(|_| snapshot.kubelet.is_ok()) {
        astray(snapshot, instance, float, &mut reasons);
    }
    cpus(snapshot, instance, assessment, &mut reasons);
    container(instance, &assessment.entitlement, &mut reasons);
    if record.phase.has_vcpus() && !instance.is_over() {
        vcpus(snapshot, facts, instance, !assessment.must_float, &mut reasons);
        reasons
            .found
            .extend(snapshot.disturbances.of(&record.pod, &record.exclusive));
    }
    if let Some(own) = instance
        .unwatched
        .as_ref()
        .filter(|own| snapshot.unwatched.as_ref() != Some(own))
    {
        reasons.own(ReasonCode::NotWatched, own);
    }
    reasons.found
}

/// The vCPUs do not run on what kubelet's file gives the container.
fn cpus(snapshot: &Snapshot, instance: &Instance, assessment: &Assessment, reasons: &mut Reasons<'_>) {
    let record = &instance.record;
    if let Some(Eviction { cpus, to, .. }) = &assessment.eviction {
        let text = format!("kubelet gave the CPUs {cpus} to pod {to}");
        reasons.found.push(Reason::of(to, ReasonCode::Evicted, text));
    }
    if let Some(Blocked { cpus, by, .. }) = &assessment.blocked {
        let text = format!("the CPUs {cpus} are assigned to it, and pod {by} has not left them");
        reasons.found.push(Reason::of(by, ReasonCode::CpusInUse, text));
    }
    match &assessment.entitlement {
        // With the origin gone too, kubelet is not about to write an entry.
        Entitlement::Gone if snapshot.unsettled.contains(&record.pod) && instance.origin_procs.is_some() => {}
        Entitlement::Gone if assessment.eviction.is_some() => {}
        Entitlement::Gone => reasons.own(
            ReasonCode::NoAssignment,
            format!(
                "kubelet assigns no CPUs to container {} any more; the VM keeps {}",
                record.container, record.exclusive
            ),
        ),
        Entitlement::Unusable(entry) => reasons.own(
            ReasonCode::NoAssignment,
            format!(
                "kubelet assigned {entry} to container {}, and other containers of its pod use all of that; the VM keeps {}",
                record.container, record.exclusive
            ),
        ),
        _ => {}
    }
}

/// A command that sets the CPUs online.
fn set_online(offline: &CpuSet) -> String {
    let numbers: Vec<String> = offline.iter().map(|cpu| cpu.to_string()).collect();
    match numbers.as_slice() {
        [one] => format!("echo 1 > /sys/devices/system/cpu/cpu{one}/online"),
        many => format!(
            "for n in {}; do echo 1 > /sys/devices/system/cpu/cpu$n/online; done",
            many.join(" ")
        ),
    }
}

/// The list, or "empty".
fn or_empty(cpus: &CpuSet) -> String {
    if cpus.is_empty() {
        "empty".to_owned()
    } else {
        cpus.to_string()
    }
}

/// Reasons in the container: its cgroup, its anchor, its limits.
fn container(instance: &Instance, entitlement: &Entitlement, reasons: &mut Reasons<'_>) {
    let record = &instance.record;
    if instance.origin_procs.is_none() {
        reasons.own(
            ReasonCode::CgroupGone,
            format!("the container cgroup {} is gone", record.origin),
        );
    } else {
        if let Some(anchor) = record.anchor.filter(|_| !instance.anchor_lives) {
            reasons.own(
                ReasonCode::PlaceholderEnded,
                format!("the placeholder process {} ended", anchor.id),
            );
        }
        // The runtime follows kubelet's entry before a VM does that gives up vCPUs, or has given them up just now.
        let is_followed = match entitlement {
            Entitlement::Shrinks(Shrink { entry, .. }) | Entitlement::Changed { entry, .. } => {
                *entry == instance.origin_cpus
            }
            _ => false,
        };
        if record.allocation.is_none() && instance.origin_cpus != record.entry && !is_followed {
            let text = format!(
                "container cpuset is {}, kubelet assigned {}",
                or_empty(&instance.origin_cpus),
                record.entry
            );
            reasons.own(ReasonCode::CpusetChanged, text);
        }
    }
    if let Some((limit, held)) = too_much_memory(instance) {
        let now = instance.scope_limits.memory_max;
        let now = now.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"));
        let text =
            format!("the memory limit was lowered to {limit} bytes, and {held} bytes are held; {now} is in force");
        reasons.own(ReasonCode::MemoryHeld, text);
    }
}

/// An LS instance that runs on the whole shared pool, because its NUMA node's has no CPU.
fn astray(snapshot: &Snapshot, instance: &Instance, float: &CpuSet, reasons: &mut Reasons<'_>) {
    let allocation = instance.record.allocation.as_ref();
    let Some(node) = allocation.and_then(|allocation| allocation.numa_node) else {
        return;
    };
    let on_node = |cpu: u32| snapshot.topology.cpus.get(&cpu).is_some_and(|cpu| cpu.node == node);
    if float.iter().any(|cpu| !on_node(cpu)) {
        reasons.own(ReasonCode::NumaPoolEmpty, format!("NUMA node {node} has no shared CPU"));
    }
}

/// Reasons in its vCPU threads. `is_held`: they do not have to run on shared CPUs, for which steliad gives up the partition.
fn vcpus(snapshot: &Snapshot, facts: &Derived, instance: &Instance, is_held: bool, reasons: &mut Reasons<'_>) {
    let record = &instance.record;
    for (thread, now) in record.vcpus.iter().zip(&instance.vcpus) {
        if now.is_none() {
            let text = format!("thread {} of {} ended", thread.task.id, thread.role);
            reasons.own(ReasonCode::ThreadEnded, text);
        }
        if let Some(now) = now.as_ref().filter(|now| !instance.has(&now.cgroup)) {
            let text = format!(
                "thread {} of {} is in {}, outside the container",
                thread.task.id, thread.role, now.cgroup
            );
            reasons.own(ReasonCode::ThreadMoved, text);
        }
    }
    let offline = record.exclusive.difference(facts.online());
    let none_online = !offline.is_empty() && offline == record.exclusive;
    if !offline.is_empty() {
        let until = if none_online {
            ": its threads run on shared CPUs until one of them is online"
        } else {
            ""
        };
        let text = format!("CPUs {offline} are offline{until}");
        let reason = Reason::of(&record.pod, ReasonCode::CpusOffline, text);
        reasons.found.push(reason.with_fix(set_online(&offline)));
    }
    let shares = instance.tree.has_float() && !record.vcpus.is_empty();
    if shares && record.vcpus.iter().all(|thread| thread.cpu.is_none()) {
        let why = if snapshot.unplug_overdue.contains(&record.pod) {
            "; the guest did not give up vCPUs in time"
        } else {
            ""
        };
        let vcpus = record
            .vcpus
            .iter()
            .filter(|thread| matches!(thread.role, ThreadRole::Vcpu(_)));
        let text = format!("{} vCPUs share the CPUs {}{why}", vcpus.count(), record.exclusive);
        reasons.own(ReasonCode::TooManyVcpus, text);
    }
    if record.phase == Phase::Isolated && is_held && !none_online {
        let partition = instance.vcpu().map_or("absent", |vcpu| &vcpu.partition);
        if partition != record.partition.name() {
            let text = format!(
                "the partition reads {partition:?}, expected {:?}",
                record.partition.name()
            );
            reasons.own(ReasonCode::PartitionChanged, text);
        }
    }
}
