//! Whether another program than kubelet's CPU manager gives CPUs to containers: a DRA driver.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stelia_kernel::dra::cpu_drivers;
use stelia_koordinator::allocator::CpuSource;

use super::Facts;
use super::checks::{Finding, failed, ok, warning};
use crate::shared::files::without_root;

/// The drivers by name, each with the file that shows it.
pub(crate) type Drivers = BTreeMap<String, PathBuf>;

/// Looks for them; `folder` is kubelet's root directory below `root`.
pub(super) fn read(root: &Path, folder: &Path) -> Drivers {
    let found = cpu_drivers(root, folder).into_iter();
    found.map(|(name, path)| (name, without_root(root, &path))).collect()
}

/// Two programs that give exclusive CPUs of one node give the same CPU twice.
pub(super) fn check(facts: &Facts) -> Finding {
    let named = facts
        .dra
        .iter()
        .map(|(name, file)| format!("{name} ({})", file.display()));
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        return ok("none that assigns CPUs");
    }
    let found = named.join(", ");
    if facts.allocator.source == CpuSource::Steliad {
        return failed(
            format!("{found}, beside cpu-source = \"steliad\": each would assign CPUs that the other has assigned"),
            "remove the driver from this node and drain it, or set cpu-source = \"kubelet\"; until then no VM is admitted, and running ones keep their CPUs",
        );
    }
    warning(
        format!("{found}: it assigns CPUs that kubelet's CPU manager does not know"),
        "steliad reads kubelet's CPU manager alone (allocator.md, \"Beside a DRA driver\"): VMs whose CPUs come from this driver are not isolated, \
         and floats may run on CPUs that it assigned to others; keep VMs on nodes without it",
    )
}
