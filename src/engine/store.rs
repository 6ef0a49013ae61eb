//! The one writer of records.

use stelia_node::System;
use stelia_node::cgroup::{CgroupError, CgroupPath};
use stelia_record::Record;

/// Write what of `next` differs from `former` to the scope's attributes, in the order that leaves something to go on from
/// wherever it is cut off; all of it for a scope without a record.
///
/// # Errors
/// The kernel refused; what came before is written.
pub(super) fn write(
    system: &System,
    scope: &CgroupPath,
    former: Option<&Record>,
    next: &Record,
) -> Result<(), CgroupError> {
    let had = former.map(Record::attributes).unwrap_or_default();
    let attributes = next.attributes();
    for (name, value) in &attributes {
        if had.iter().any(|(known, was)| known == name && was == value) {
            continue;
        }
        system.cgroups.set_attribute(scope, name, value)?;
    }
    for (name, _) in &had {
        if !attributes.iter().any(|(now, _)| now == name) {
            system.cgroups.remove_attribute(scope, name)?;
        }
    }
    Ok(())
}
