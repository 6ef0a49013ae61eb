//! The host's cores within a set of CPUs, and the orders to fill them in.

use std::collections::BTreeMap;

use stelia_cpus::{CpuSet, Topology};

/// A physical core, with the CPUs of it that are in the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Core {
    /// NUMA node and socket: the place whose memory and cache the core shares.
    pub(super) place: (u32, u32),
    /// Ascending; never empty.
    pub(super) cpus: Vec<u32>,
}

/// The cores of a set, by NUMA node, socket and lowest CPU.
pub(super) fn cores(cpus: &CpuSet, topology: &Topology) -> Vec<Core> {
    let mut by_core: BTreeMap<(u32, u32, u32), Vec<u32>> = BTreeMap::new();
    for cpu in cpus.iter() {
        if let Some(described) = topology.cpus.get(&cpu) {
            let key = (described.node, described.package, described.core);
            by_core.entry(key).or_default().push(cpu);
        }
    }
    let mut cores: Vec<Core> = by_core
        .into_iter()
        .map(|((node, package, _), cpus)| Core {
            place: (node, package),
            cpus,
        })
        .collect();
    cores.sort_by(|a, b| (a.place, &a.cpus).cmp(&(b.place, &b.cpus)));
    cores
}

/// Siblings one after the other, the cores with most of them in the set first.
pub(super) fn full_cores_first(mut cores: Vec<Core>) -> Vec<u32> {
    // The sort is stable: cores of one size stay in the order of their places.
    cores.sort_by_key(|core| std::cmp::Reverse(core.cpus.len()));
    cores.into_iter().flat_map(|core| core.cpus).collect()
}

/// The first sibling of every core, then the second of those that have one, and so on.
pub(super) fn one_of_each_core_first(cores: Vec<Core>) -> Vec<u32> {
    let most = cores.iter().map(|core| core.cpus.len()).max().unwrap_or(0);
    (0..most)
        .flat_map(|sibling| cores.iter().filter_map(move |core| core.cpus.get(sibling).copied()))
        .collect()
}
