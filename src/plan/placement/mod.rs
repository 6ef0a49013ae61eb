//! Which vCPU goes on which of the instance's CPUs.

mod guest;
mod order;

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_cpus::Topology;

/// How vCPUs are laid on the exclusive CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The guest's own topology on the host's: SMT siblings on SMT siblings, sockets and NUMA nodes on NUMA nodes.
    #[default]
    Guest,
    /// Ascending vCPU index on physical cores, each filled before the next: as few cores as possible.
    FullPcpus,
    /// Ascending vCPU index on one thread of every physical core first: as many cores as possible.
    SpreadByPcpus,
    /// Ascending vCPU index on ascending CPU number.
    Linear,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Guest, Self::FullPcpus, Self::SpreadByPcpus, Self::Linear];

    /// The name used in configuration and on D-Bus.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::FullPcpus => "full-pcpus",
            Self::SpreadByPcpus => "spread-by-pcpus",
            Self::Linear => "linear",
        }
    }

    /// The policy of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == text)
    }
}

/// From this index on it is no vCPU but an I/O thread that was given to be pinned too.
pub const IOTHREADS: u32 = 1 << 31;

/// Whether an index is an I/O thread's.
pub fn is_iothread(index: u32) -> bool {
    index >= IOTHREADS
}

/// A vCPU as QEMU describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vcpu {
    /// `cpu-index`.
    pub index: u32,
    /// `props` of `query-cpus-fast`: `socket-id`, `core-id`, `thread-id`, `node-id` and the like.
    pub props: BTreeMap<String, i64>,
}

/// Where the vCPUs go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// (vCPU index, CPU) in ascending index; no CPU where there are more vCPUs than CPUs.
    pub pins: Vec<(u32, Option<u32>)>,
    /// In words, what the policy could not do.
    pub note: Option<String>,
}

/// Choose a CPU for every vCPU: distinct, within `cpus`, offline ones last. I/O threads get what online CPUs the vCPUs leave
/// over, in ascending order, as far as they go. The answer depends on nothing but the arguments' values.
pub fn place(policy: Policy, vcpus: &[Vcpu], cpus: &CpuSet, topology: &Topology) -> Placement {
    let mut all: Vec<&Vcpu> = vcpus.iter().collect();
    all.sort_by_key(|vcpu| vcpu.index);
    let (vcpus, iothreads): (Vec<&Vcpu>, Vec<&Vcpu>) = all.into_iter().partition(|vcpu| !is_iothread(vcpu.index));
    let mut placement = place_vcpus(policy, vcpus, cpus, topology);
    let used: CpuSet = placement.pins.iter().filter_map(|(_, cpu)| *cpu).collect();
    let crowded = placement.pins.iter().any(|(_, cpu)| cpu.is_none());
    let free = cpus.intersection(&topology.online()).difference(&used);
    let mut free = free.iter().filter(|_| !crowded);
    let pins = iothreads.into_iter().map(|iothread| (iothread.index, free.next()));
    placement.pins.extend(pins);
    placement
}

fn place_vcpus(policy: Policy, vcpus: Vec<&Vcpu>, cpus: &CpuSet, topology: &Topology) -> Placement {
    if vcpus.len() > cpus.len() {
        return Placement {
            pins: vcpus.iter().map(|vcpu| (vcpu.index, None)).collect(),
            note: Some(format!("{} vCPUs for {} CPUs: none is pinned", vcpus.len(), cpus.len())),
        };
    }
    let online = cpus.intersection(&topology.online());
    let cores = order::cores(&online, topology);
    let (online_order, note) = match policy {
        Policy::Guest => return guest::place(&vcpus, &cores, &cpus.difference(&online)),
        Policy::FullPcpus => (order::full_cores_first(cores), None),
        Policy::SpreadByPcpus => (order::one_of_each_core_first(cores), None),
        Policy::Linear => (online.iter().collect(), None),
    };
    let offline = cpus.difference(&online);
    let order = online_order.into_iter().chain(offline.iter());
    Placement {
        pins: vcpus.iter().map(|vcpu| vcpu.index).zip(order.map(Some)).collect(),
        note,
    }
}

#[cfg(test)]
mod tests;
