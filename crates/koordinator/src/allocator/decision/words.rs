//! An allocation in words.

use stelia_cpus::CpuSet;

use crate::allocator::request::numbers;
use crate::allocator::{Allocation, Exclusivity, HostTables};

/// Whether the exclusive policy was kept; `None` where none was asked for.
pub(super) fn exclusivity_conflicts(allocation: &Allocation) -> Option<String> {
    let policy = allocation.exclusive.name();
    match allocation.exclusivity {
        Exclusivity::NotAsked => None,
        Exclusivity::Honored => Some(format!("exclusive policy {policy}: kept")),
        Exclusivity::Downgraded => Some(format!(
            "exclusive policy {policy}: a NUMA node is shared with an instance of the same policy, no core is"
        )),
        Exclusivity::Dropped => Some(format!(
            "exclusive policy {policy}: could not be kept, a core is shared with an instance of the same policy"
        )),
    }
}

/// `0: 2-3 (2 CPUs); 1: 4-7 (4 CPUs)`.
pub(super) fn by_node(host: &HostTables, cpus: &CpuSet) -> String {
    let by_node = host.by_node(cpus);
    if by_node.is_empty() {
        return "none".to_owned();
    }
    let parts: Vec<String> = by_node
        .iter()
        .map(|(node, cpus)| format!("{node}: {cpus} ({} CPUs)", cpus.len()))
        .collect();
    parts.join("; ")
}

/// `0-3: 2 whole cores on NUMA node 0`.
pub(super) fn layout(host: &HostTables, cpus: &CpuSet) -> String {
    let whole = host.whole_cores(cpus);
    let cores = whole.len() / host.threads().max(1);
    let single = cpus.len() - whole.len();
    format!(
        "{cpus}: {cores} whole cores and {single} CPUs of others, NUMA nodes {}",
        numbers(&host.nodes_of(cpus))
    )
}
