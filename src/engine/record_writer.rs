//! The one writer of records.

use stelia_kernel::System;
use stelia_kernel::cgroup::CgroupError;
use stelia_model::record::{Record, RecordPlace};

/// Write what of `next` differs from `former` to the record's attributes, in the order that leaves something to go on from
/// wherever it is cut off; all of it where there is no record.
///
/// # Errors
/// The kernel refused; what came before is written.
pub(super) fn write(
    system: &System,
    place: &RecordPlace,
    former: Option<&Record>,
    next: &Record,
) -> Result<(), CgroupError> {
    let had = former.map(Record::attributes).unwrap_or_default();
    let attributes = next.attributes();
    for (name, value) in &attributes {
        if had.iter().any(|(known, was)| known == name && was == value) {
            continue;
        }
        system.cgroups.set_attribute(place.cgroup(), &place.name(name), value)?;
    }
    for (name, _) in &had {
        if !attributes.iter().any(|(now, _)| now == name) {
            system.cgroups.remove_attribute(place.cgroup(), &place.name(name))?;
        }
    }
    Ok(())
}
