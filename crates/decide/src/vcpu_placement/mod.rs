//! Which vCPU goes on which of the instance's CPUs.

mod guest_topology;
mod host_cores;

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::ThreadRole;
use stelia_cpus::{CpuSet, Topology};
use stelia_model::record::Vcpu;
use stelia_settings::PlacementPolicy;

/// Where the vCPUs go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    /// In ascending order; no CPU where there are more vCPUs than CPUs.
    pub pins: Vec<(ThreadRole, Option<u32>)>,
    /// What the policy could not do; `None` where it was kept.
    pub note: Option<String>,
}

/// Choose a CPU for every vCPU: distinct, within `cpus`, offline ones last. The I/O threads among `threads`, which are in
/// ascending order, get what online CPUs the vCPUs leave over, in ascending order, as far as they go. The answer depends on
/// nothing but the arguments' values.
pub(crate) fn place(
    policy: PlacementPolicy,
    guest: &[Vcpu],
    threads: impl IntoIterator<Item = ThreadRole>,
    cpus: &CpuSet,
    topology: &Topology,
) -> Placement {
    let mut vcpus: Vec<&Vcpu> = guest.iter().collect();
    vcpus.sort_by_key(|vcpu| vcpu.index);
    let mut placement = place_vcpus(policy, vcpus, cpus, topology);
    let used: CpuSet = placement.pins.iter().filter_map(|(_, cpu)| *cpu).collect();
    let crowded = placement.pins.iter().any(|(_, cpu)| cpu.is_none());
    let free = cpus.intersection(&topology.online()).difference(&used);
    let mut free = free.iter().filter(|_| !crowded);
    let iothreads = threads
        .into_iter()
        .filter(|role| matches!(role, ThreadRole::IoThread(_)));
    placement.pins.extend(iothreads.map(|role| (role, free.next())));
    placement
}

/// The CPU of every vCPU by what was found; `None` unless each has a CPU of its own among `cpus`.
pub(crate) fn pinned_cpus(
    pins: &BTreeMap<u32, u32>,
    guest: &[Vcpu],
    cpus: &CpuSet,
) -> Option<Vec<(ThreadRole, Option<u32>)>> {
    let pin = |vcpu: &Vcpu| pins.get(&vcpu.index).filter(|cpu| cpus.contains(**cpu)).copied();
    let used: BTreeSet<u32> = guest.iter().filter_map(pin).collect();
    let mut found: Vec<(ThreadRole, Option<u32>)> = guest.iter().map(|vcpu| (vcpu.index.into(), pin(vcpu))).collect();
    found.sort_by_key(|(role, _)| *role);
    (used.len() == guest.len()).then_some(found)
}

fn place_vcpus(policy: PlacementPolicy, vcpus: Vec<&Vcpu>, cpus: &CpuSet, topology: &Topology) -> Placement {
    if vcpus.len() > cpus.len() {
        return Placement {
            pins: vcpus.iter().map(|vcpu| (ThreadRole::Vcpu(vcpu.index), None)).collect(),
            note: Some(format!("{} vCPUs for {} CPUs: none is pinned", vcpus.len(), cpus.len())),
        };
    }
    let online = cpus.intersection(&topology.online());
    let cores = host_cores::cores(&online, topology);
    let online_order = match policy {
        PlacementPolicy::Guest => return guest_topology::place(&vcpus, &cores, &cpus.difference(&online)),
        PlacementPolicy::FullPcpus => host_cores::full_cores_first(cores),
        PlacementPolicy::SpreadByPcpus => host_cores::one_of_each_core_first(cores),
        PlacementPolicy::Linear => online.iter().collect(),
    };
    let offline = cpus.difference(&online);
    let order = online_order.into_iter().chain(offline.iter());
    let roles = vcpus.iter().map(|vcpu| ThreadRole::Vcpu(vcpu.index));
    Placement {
        pins: roles.zip(order.map(Some)).collect(),
        note: None,
    }
}

#[cfg(test)]
mod tests;
