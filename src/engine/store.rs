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
    for (name, value) in next.attributes() {
        if had.iter().any(|(known, was)| *known == name && *was == value) {
            continue;
        }
        system.cgroups.set_attribute(scope, name, &value)?;
    }
    Ok(())
}
