//! What a scheduler chose for a pod before it came here (Koordinator's annotation `scheduling.koordinator.sh/resource-status`).
//! A pod hands it over, so it is a wish like any other: it is followed where it can be, and refused with the reason where not.

use std::collections::BTreeSet;

use stelia_cpus::CpuSet;

use crate::Host;

/// The choice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The CPUs.
    pub cpus: Option<CpuSet>,
    /// The NUMA nodes that CPUs, or the pool, must be of.
    pub nodes: Option<BTreeSet<u32>>,
}

impl Schedule {
    /// Whether nothing was chosen.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// How CPUs that were given to the container are not what was chosen for it.
    pub fn contradicts(&self, host: &Host, given: &CpuSet) -> Option<String> {
        if let Some(chosen) = self.cpus.as_ref().filter(|chosen| *chosen != given) {
            return Some(format!(
                "the scheduler chose the CPUs {chosen}, the container has {given}"
            ));
        }
        let nodes = self.nodes.as_ref()?;
        let on = host.nodes_of(given);
        (!on.is_subset(nodes)).then(|| {
            format!(
                "the scheduler named NUMA nodes {}, the CPUs {given} are of {}",
                list(nodes),
                list(&on)
            )
        })
    }
}

/// `0,2`.
pub(super) fn list(nodes: &BTreeSet<u32>) -> String {
    let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
    nodes.join(",")
}
