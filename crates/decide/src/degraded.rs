//! The reasons of degradation of an instance, in words; none where everything promised holds.

use stelia_api::{Reason, ReasonKind, ThreadRole};
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
    fn own(&mut self, kind: ReasonKind, text: impl Into<String>) {
        self.found.push(Reason::of(self.pod, kind, text));
    }

    fn node(&mut self, kind: ReasonKind, text: impl Into<String>) {
        self.found.push(Reason::of_node(kind, text));
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
    match (&snapshot.kubelet, assessment.float.as_ref()) {
        (Err(reason), _) if instance.is_container() => reasons.node(
            ReasonKind::KubeletUnusable,
            format!("kubelet's state cannot be used, the container keeps its CPUs: {reason}"),
        ),
        (Ok(_), None) if instance.is_container() => {}
        (Err(reason), _) => reasons.node(
            ReasonKind::KubeletUnusable,
            format!("kubelet's state cannot be used, float keeps its CPUs: {reason}"),
        ),
        (Ok(_), None) => reasons.node(
            ReasonKind::NothingShared,
            "the shared pool is empty, float keeps its CPUs",
        ),
        (Ok(_), Some(float)) => astray(snapshot, instance, float, &mut reasons),
    }
    if let Ok(kubelet) = &snapshot.kubelet
        && !kubelet.unknown_keys.is_empty()
    {
        let keys = kubelet.unknown_keys.join(", ");
        reasons.node(
            ReasonKind::KubeletStateHasMore,
            format!("kubelet's state has keys that steliad does not know ({keys}); its entries are followed"),
        );
    }
    cpus(snapshot, instance, assessment, &mut reasons);
    container(instance, &assessment.entitlement, &mut reasons);
    if record.phase.has_vcpus() && !instance.is_over() {
        vcpus(
            facts,
            instance,
            snapshot.unplug_overdue.contains(&record.pod),
            &mut reasons,
        );
        reasons
            .found
            .extend(snapshot.disturbances.of(&record.pod, &record.exclusive));
    }
    match (&instance.unwatched, &snapshot.unwatched) {
        (Some(own), nodes) if nodes.as_ref() != Some(own) => reasons.own(ReasonKind::Unwatched, own),
        (_, Some(nodes)) => reasons.node(ReasonKind::Unwatched, nodes),
        (_, None) => {}
    }
    reasons.found
}

/// The vCPUs do not run on what kubelet's file gives the container.
fn cpus(snapshot: &Snapshot, instance: &Instance, assessment: &Assessment, reasons: &mut Reasons<'_>) {
    let record = &instance.record;
    if let Some(Eviction { cpus, to, .. }) = &assessment.eviction {
        let where_now = if instance.is_container() {
            "the container has no partition any more"
        } else {
            "the vCPUs run on shared CPUs"
        };
        let text = format!("kubelet gave the CPUs {cpus} to pod {to}: {where_now}");
        reasons.found.push(Reason::of(to, ReasonKind::Evicted, text));
    }
    if let Some(Blocked { cpus, by, .. }) = &assessment.blocked {
        let text = if instance.is_container() {
            format!("the CPUs {cpus} are given to this container, and pod {by} has not left them: its partition waits")
        } else {
            format!(
                "the CPUs {cpus} are given to this VM, and pod {by} has not left them: the vCPUs stay where they were"
            )
        };
        reasons.found.push(Reason::of(by, ReasonKind::Evicted, text));
    }
    match &assessment.entitlement {
        // With the origin gone too, kubelet is not about to write an entry.
        Entitlement::Gone if snapshot.unsettled.contains(&record.pod) && instance.origin_procs.is_some() => {}
        Entitlement::Gone if assessment.eviction.is_some() => {}
        Entitlement::Gone => reasons.own(
            ReasonKind::EntryGone,
            format!(
                "kubelet has no entry for container {} any more; the VM keeps the CPUs {}",
                record.container, record.exclusive
            ),
        ),
        Entitlement::Unusable(entry) => reasons.own(
            ReasonKind::EntryGone,
            format!(
                "kubelet's entry for container {} is {entry} now, and other containers of its pod use all of that; the VM keeps the CPUs {}",
                record.container, record.exclusive
            ),
        ),
        _ => {}
    }
}

/// Reasons in the container: its cgroup, its anchor, its limits.
fn container(instance: &Instance, entitlement: &Entitlement, reasons: &mut Reasons<'_>) {
    let record = &instance.record;
    if instance.origin_procs.is_none() {
        reasons.own(
            ReasonKind::OriginGone,
            format!("the container's own cgroup {} is gone", record.origin),
        );
    } else {
        if let Some(anchor) = record.anchor.filter(|_| !instance.anchor_lives) {
            reasons.own(
                ReasonKind::AnchorEnded,
                format!("the anchor (process {}) ended", anchor.id),
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
                "{} has cpuset.cpus {:?}, kubelet's entry was {}",
                record.origin,
                instance.origin_cpus.to_string(),
                record.entry
            );
            reasons.own(ReasonKind::OriginDiffers, text);
        }
    }
    if let Some((limit, held)) = too_much_memory(instance) {
        let now = instance.scope_limits.memory_max;
        let now = now.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"));
        let text = format!(
            "the container's memory limit is {limit} bytes now, and {held} bytes are held: the limit stays as it was ({now}) until the \
             new one fits"
        );
        reasons.own(ReasonKind::MemoryHeld, text);
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
        reasons.own(
            ReasonKind::NodesPoolEmpty,
            format!("nothing is left of the shared pool of NUMA node {node}: it runs on the whole shared pool"),
        );
    }
}

/// Reasons in its vCPU threads. `overdue`: they were not unplugged in time when its CPUs became fewer.
fn vcpus(facts: &Derived, instance: &Instance, overdue: bool, reasons: &mut Reasons<'_>) {
    let record = &instance.record;
    for (thread, now) in record.vcpus.iter().zip(&instance.vcpus) {
        if now.is_none() {
            let text = format!("the thread {} of {} ended", thread.task.id, thread.role);
            reasons.own(ReasonKind::ThreadEnded, text);
        }
        if let Some(now) = now.as_ref().filter(|now| !instance.has(&now.cgroup)) {
            let text = format!(
                "the thread {} of {} is in {}, outside of the container: it is not moved",
                thread.task.id, thread.role, now.cgroup
            );
            reasons.own(ReasonKind::ThreadElsewhere, text);
        }
    }
    let offline = record.exclusive.difference(facts.online());
    let none_online = !offline.is_empty() && offline == record.exclusive;
    if none_online {
        let until = if instance.is_container() {
            "the container has no partition until one of them is online"
        } else {
            "the vCPUs run on shared CPUs until one of them is online"
        };
        let text = format!("CPUs {offline} are offline: {until}");
        reasons.own(ReasonKind::CpusOffline, text);
    } else if !offline.is_empty() {
        reasons.own(ReasonKind::CpusOffline, format!("CPUs {offline} are offline"));
    }
    let shares = !record.is_container() && !record.vcpus.is_empty();
    if shares && record.vcpus.iter().all(|thread| thread.cpu.is_none()) {
        let why = if overdue {
            "; the guest did not give up vCPUs in time"
        } else {
            ""
        };
        let vcpus = record
            .vcpus
            .iter()
            .filter(|thread| matches!(thread.role, ThreadRole::Vcpu(_)));
        let text = format!(
            "{} vCPUs share the CPUs {}: none has one of its own{why}",
            vcpus.count(),
            record.exclusive
        );
        reasons.own(ReasonKind::CpusShared, text);
    }
    if record.phase == Phase::Isolated && !none_online {
        let partition = instance.vcpu().map_or("absent", |vcpu| &vcpu.partition);
        if partition != record.partition.name() {
            let text = format!(
                "the partition reads {partition:?} instead of {:?}",
                record.partition.name()
            );
            reasons.own(ReasonKind::PartitionDiffers, text);
        }
    }
}
