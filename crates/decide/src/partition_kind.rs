//! The kind of partition that an instance gets, when the kernel is asked for it again, and why an instance is pinned instead.

use stelia_api::ThreadRole;
use stelia_koordinator::allocator::Qos;
use stelia_model::PinnedReason;
use stelia_model::record::{Phase, Record};
use stelia_settings::{Partition, Policies};

use super::{Instance, Snapshot, placed};

/// What forbids a partition to an instance whatever the kernel would say of its CPUs.
pub(super) fn forbidden(snapshot: &Snapshot, policies: &Policies, record: &Record) -> Option<PinnedReason> {
    match policies.partition {
        _ if record.qos() == Some(Qos::Lsr) => Some(PinnedReason::Class),
        _ if record.adopted.as_ref().is_some_and(|adopted| adopted.pinned) => Some(PinnedReason::Rule),
        Some(Partition::Member) => Some(PinnedReason::Setting),
        _ if !snapshot.has_partitions() => Some(PinnedReason::NoPartitions),
        _ => None,
    }
}

/// What forbids a pinned instance the partition that the kernel is being asked for again. Something else was the setting when
/// that was recorded.
pub(super) fn forbidden_by_now(snapshot: &Snapshot, policies: &Policies, record: &Record) -> Option<PinnedReason> {
    let asks = record.phase == Phase::Pinned && record.has_partition();
    asks.then(|| forbidden(snapshot, policies, record)).flatten()
}

/// The kind of partition that an instance is to have, by the settings and by what the kernel makes without danger; `Member` where
/// a partition is forbidden. vCPUs that share CPUs have another one: see [`super::placed`].
pub(super) fn partition_kind(snapshot: &Snapshot, policies: &Policies, instance: &Instance) -> Partition {
    let record = &instance.record;
    if forbidden(snapshot, policies, record).is_some() {
        return Partition::Member;
    }
    if let Some(kind) = instance.behaviour().only_kind() {
        return kind;
    }
    // An isolated partition that was made under another setting stays for the VM's life: on a kernel where making one is
    // dangerous, changing the kind of a live one is as dangerous.
    let is_isolated = |text: &str| text == Partition::Isolated.name();
    let has_isolated = instance.vcpu().is_some_and(|vcpu| is_isolated(&vcpu.partition));
    let auto = if record.partition == Partition::Isolated && has_isolated {
        Partition::Isolated
    } else {
        snapshot.safe_partition
    };
    policies.partition.unwrap_or(auto)
}

/// The kind of partition to ask the kernel for again, of an instance that is pinned because the kernel refused it. While the
/// other home's list has its CPUs, the kernel would refuse it again.
pub(super) fn retry(snapshot: &Snapshot, policies: &Policies, instance: &Instance) -> Option<Partition> {
    let record = &instance.record;
    if !instance.is_refused() || !instance.tries_again {
        return None;
    }
    let beside = instance.above().other().list(snapshot);
    if beside.is_some_and(|list| !list.is_disjoint(&record.exclusive)) {
        return None;
    }
    let (_, partition) = placed(
        &record.vcpus,
        &pins(record),
        partition_kind(snapshot, policies, instance),
    );
    Some(partition).filter(|partition| partition.is_partition())
}

fn pins(record: &Record) -> Vec<(ThreadRole, Option<u32>)> {
    record.vcpus.iter().map(|thread| (thread.role, thread.cpu)).collect()
}

/// By what holds now. The setting may have been another one when the instance was pinned.
pub(super) fn pinned(snapshot: &Snapshot, policies: &Policies, instance: &Instance) -> Option<PinnedReason> {
    let record = &instance.record;
    let why = || forbidden(snapshot, policies, record).unwrap_or(PinnedReason::Refused);
    (record.phase == Phase::Pinned).then(why)
}

#[cfg(test)]
mod tests {
    use stelia_model::record::Adopted;

    use super::*;
    use crate::steps::tests::isolated;

    #[test]
    fn each_reason_is_found_and_an_isolated_instance_has_none() {
        let mut snapshot = isolated();
        let mut policies = Policies::default();
        let why = |snapshot: &Snapshot, policies: &Policies| pinned(snapshot, policies, snapshot.first());
        assert_eq!(why(&snapshot, &policies), None);
        snapshot.first_mut().record.phase = Phase::Pinned;
        assert_eq!(why(&snapshot, &policies), Some(PinnedReason::Refused));
        let adopted = Adopted {
            rule: "kubevirt".into(),
            keeps: true,
            pinned: true,
        };
        snapshot.first_mut().record.adopted = Some(adopted);
        assert_eq!(why(&snapshot, &policies), Some(PinnedReason::Rule));
        snapshot.first_mut().record.adopted = None;
        policies.partition = Some(Partition::Member);
        // Who chose this is told so on every kernel.
        snapshot.slice.exclusive = None;
        assert_eq!(why(&snapshot, &policies), Some(PinnedReason::Setting));
        policies.partition = None;
        assert_eq!(why(&snapshot, &policies), Some(PinnedReason::NoPartitions));
    }
}
