//! Whether an instance may be made in the container's own cgroup.

use stelia_kubelet::QosClass;
use stelia_record::Record;
use stelia_settings::{Partition, Policies};

use super::Snapshot;
use super::contained::forbidden;

/// # Errors
/// Why not.
pub(crate) fn in_place(snapshot: &Snapshot, policies: &Policies, record: &Record) -> Result<(), String> {
    // The levels above must be the pod's and kubepods' alone.
    let class = QosClass::of(record.origin.as_str());
    if class != QosClass::Guaranteed {
        return Err(format!("its pod is {}, not Guaranteed", class.name()));
    }
    // Without a partition everything of the container would be confined to the container's own CPUs.
    if let Some(why) = forbidden(snapshot, policies, record) {
        return Err(format!("it would get no partition ({})", why.name()));
    }
    if snapshot.safe_partition == Partition::Member {
        return Err("this kernel makes no partition".to_owned());
    }
    Ok(())
}
