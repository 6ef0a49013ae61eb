//! Whether an instance may be made in the container's own cgroup.

use stelia_kubelet::QosClass;
use stelia_model::PinnedReason;
use stelia_model::record::Record;
use stelia_settings::{Partition, Policies};

use super::Snapshot;
use super::partition_kind::forbidden;

/// # Errors
/// Why not.
pub fn in_place(snapshot: &Snapshot, policies: &Policies, record: &Record) -> Result<(), String> {
    // The levels above must be the pod's and kubepods' alone.
    let class = QosClass::of(record.origin.as_str());
    if class != QosClass::Guaranteed {
        return Err(format!("its pod is {}, not Guaranteed", class.name()));
    }
    // Nothing of the container is moved or confined: without a partition it runs on the CPUs that kubelet gave it. CPUs that steliad chose
    // are those of the partition alone.
    if record.is_container() && record.allocation.is_none() {
        return Ok(());
    }
    match forbidden(snapshot, policies, record) {
        // Its other threads have CPUs of their own among the container's: a partition would give them no others.
        Some(PinnedReason::Rule) if !record.spare.is_empty() => return Ok(()),
        // Without a partition everything of the container would be confined to the container's own CPUs.
        Some(why) => return Err(format!("it would get no partition ({})", why.name())),
        None => {}
    }
    if snapshot.safe_partition == Partition::Member {
        return Err("this kernel makes no partition".to_owned());
    }
    Ok(())
}
