//! Steps that change the record, other than its phase. They come before what they describe, so that after a crash the next daemon goes on
//! from the record.

use stelia_api::ThreadRole;
use stelia_cpus::CpuSet;
use stelia_model::PinnedReason;
use stelia_model::record::{Phase, VcpuThread};
use stelia_settings::{Partition, Policies};

use super::Step;
use crate::entitlement::Entitlement;
use crate::partition_kind::{forbidden_by_now, partition_kind, retry};
use crate::vcpu_placement::place;
use crate::{Assessment, Instance, Snapshot, VcpuNow, pod_pool};

/// After this many consecutive refusals of a partition the instance is pinned instead.
pub(super) const MAX_PARTITION_REFUSALS: u32 = 2;

pub(super) fn record_steps(
    snapshot: &Snapshot,
    policies: &Policies,
    instance: &Instance,
    assessment: &Assessment,
) -> Vec<Step> {
    let record = &instance.record;
    if record.phase == Phase::Leaving {
        return Vec::new();
    }
    let scope = || instance.scope().clone();
    if instance.is_over() {
        return vec![Step::Enter(scope(), Phase::Leaving)];
    }
    if let Entitlement::Changed { entry, own } = &assessment.entitlement {
        return vec![Step::Entitle {
            scope: scope(),
            entry: entry.clone(),
            own: own.clone(),
        }];
    }
    if let Some(why) = forbidden_by_now(snapshot, policies, record) {
        return vec![instance.behaviour().without_partition(instance, why)];
    }
    let asks = matches!(record.phase, Phase::Attaching | Phase::Pinned) && record.has_partition();
    if asks && instance.refusals >= MAX_PARTITION_REFUSALS {
        return vec![instance.behaviour().without_partition(instance, PinnedReason::Refused)];
    }
    if let Some(partition) = retry(snapshot, policies, instance).filter(|_| !assessment.must_float) {
        return vec![Step::Retry(scope(), partition)];
    }
    if let Some(pool) = pod_pool::of(snapshot, instance)
        && record.pod_pool.as_ref() != Some(&pool)
    {
        return vec![Step::Share(scope(), pool)];
    }
    let living = living(instance);
    let is_living = |role: ThreadRole| living.iter().any(|thread| thread.role == role);
    let mut guest = record.guest();
    guest.retain(|vcpu| is_living(vcpu.index.into()));
    let fits = guest.len() <= record.exclusive.len();
    let misplaced = |thread: &VcpuThread| match thread.cpu {
        Some(cpu) => !record.exclusive.contains(cpu),
        None => fits,
    };
    if let Some(vcpus) = repinned(instance) {
        return vec![Step::Place(scope(), vcpus, record.partition)];
    }
    if instance.behaviour().leaves_pins(record) || !record.phase.has_vcpus() || !record.vcpus.iter().any(misplaced) {
        return Vec::new();
    }
    let placement = place(
        record.placement,
        &guest,
        living.iter().map(|thread| thread.role),
        &record.exclusive,
        &snapshot.topology,
    );
    // Not by the last kind: it is `root` where the vCPUs shared CPUs, and `isolated` again once each has one of its own.
    let kind = partition_kind(snapshot, policies, instance);
    let kind = if record.has_partition() && kind.is_partition() {
        kind
    } else {
        record.partition
    };
    let (vcpus, partition) = placed(&living, &placement.pins, kind);
    if vcpus == record.vcpus {
        return Vec::new();
    }
    vec![Step::Place(scope(), vcpus, partition)]
}

/// The threads to place: without those that ended, whose vCPUs were unplugged. They would take CPUs from the others until the rest is attached
/// again. A VM whose vCPUs have all ended comes to its own end.
fn living(instance: &Instance) -> Vec<VcpuThread> {
    let threads = &instance.record.vcpus;
    let known = threads.iter().zip(&instance.vcpus);
    let living: Vec<VcpuThread> = known
        .filter_map(|(thread, now)| now.is_some().then_some(*thread))
        .collect();
    if living.iter().any(|thread| matches!(thread.role, ThreadRole::Vcpu(_))) {
        living
    } else {
        threads.clone()
    }
}

/// The vCPUs of a VM that is to run where others pin it (libvirt's `vcpupin`), where somebody has moved one since; each must have
/// a CPU of its own among the instance's. Else the recorded CPUs hold, and are restored.
fn repinned(instance: &Instance) -> Option<Vec<VcpuThread>> {
    let record = &instance.record;
    let settled = matches!(record.phase, Phase::Isolated | Phase::Pinned);
    if !settled || !record.keeps_pins() {
        return None;
    }
    let now = |(thread, now): (&VcpuThread, &Option<VcpuNow>)| {
        let affinity = &now.as_ref().filter(|now| instance.has(&now.cgroup))?.affinity;
        let cpu = affinity.iter().next().filter(|_| affinity.len() == 1)?;
        record.exclusive.contains(cpu).then_some(VcpuThread {
            cpu: Some(cpu),
            ..*thread
        })
    };
    let found: Vec<VcpuThread> = record
        .vcpus
        .iter()
        .zip(&instance.vcpus)
        .map(now)
        .collect::<Option<_>>()?;
    let used: CpuSet = found.iter().filter_map(|thread| thread.cpu).collect();
    (used.len() == found.len() && found != record.vcpus).then_some(found)
}

/// The threads with the CPUs chosen for them. An I/O thread without a CPU is left out: it floats. vCPUs that share CPUs
/// need the scheduler's load balancing, so their partition is `root`.
pub(crate) fn placed(
    vcpus: &[VcpuThread],
    pins: &[(ThreadRole, Option<u32>)],
    partition: Partition,
) -> (Vec<VcpuThread>, Partition) {
    let pin = |role: ThreadRole| pins.iter().find(|(other, _)| *other == role).and_then(|(_, cpu)| *cpu);
    let vcpus: Vec<VcpuThread> = vcpus
        .iter()
        .map(|thread| VcpuThread {
            cpu: pin(thread.role),
            ..*thread
        })
        .filter(|thread| thread.cpu.is_some() || matches!(thread.role, ThreadRole::Vcpu(_)))
        .collect();
    let shared = vcpus.iter().any(|thread| thread.cpu.is_none());
    let partition = match partition {
        Partition::Isolated if shared => Partition::Root,
        other => other,
    };
    (vcpus, partition)
}
