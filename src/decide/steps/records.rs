//! Steps that change the record. They come before what they describe, so that after a crash the next daemon goes on
//! from the record.

use stelia_api::ThreadRole;
use stelia_record::{Phase, VcpuThread};
use stelia_settings::Partition;

use super::Step;
use crate::decide::entitlement::Entitlement;
use crate::decide::placement::place;
use crate::decide::{Assessment, Instance, Snapshot, pod_pool};

/// After so many refusals of a partition in a row the instance is contained instead.
pub(super) const REFUSALS: u32 = 2;

pub(super) fn record_steps(snapshot: &Snapshot, instance: &Instance, assessment: &Assessment) -> Vec<Step> {
    let record = &instance.record;
    if record.phase == Phase::Leaving {
        return Vec::new();
    }
    let scope = || instance.scope().clone();
    if let Entitlement::Changed { entry, exclusive } = &assessment.entitlement {
        return vec![Step::Entitle {
            scope: scope(),
            entry: entry.clone(),
            exclusive: exclusive.clone(),
        }];
    }
    if record.phase == Phase::Attaching && record.partition != Partition::Member && instance.refusals >= REFUSALS {
        return vec![Step::Contain(scope())];
    }
    if let Some(pool) = pod_pool::of(snapshot, instance)
        && record.pod_pool.as_ref() != Some(&pool)
    {
        return vec![Step::Share(scope(), pool)];
    }
    let guest = record.guest();
    let fits = guest.len() <= record.exclusive.len();
    let misplaced = |thread: &VcpuThread| match thread.cpu {
        Some(cpu) => !record.exclusive.contains(cpu),
        None => fits,
    };
    if !record.phase.has_vcpus() || !record.vcpus.iter().any(misplaced) {
        return Vec::new();
    }
    let placement = place(
        record.placement,
        &guest,
        record.vcpus.iter().map(|thread| thread.role),
        &record.exclusive,
        &snapshot.topology,
    );
    let (vcpus, partition) = placed(&record.vcpus, &placement.pins, record.partition);
    if vcpus == record.vcpus {
        return Vec::new();
    }
    vec![Step::Place(scope(), vcpus, partition)]
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
