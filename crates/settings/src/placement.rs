//! How vCPUs are placed on the exclusive CPUs: the names of the policies.

use stelia_text::named;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// The guest's own topology on the host's: SMT siblings on SMT siblings, sockets and NUMA nodes on NUMA nodes.
    Guest,
    /// Ascending vCPU index on physical cores, each filled before the next: as few cores as possible.
    FullPcpus,
    /// Ascending vCPU index on one thread of every physical core first: as many cores as possible.
    SpreadByPcpus,
    /// Ascending vCPU index on ascending CPU number.
    Linear,
}

named!(PlacementPolicy {
    Guest = "guest",
    FullPcpus = "full-pcpus",
    SpreadByPcpus = "spread-by-pcpus",
    Linear = "linear"
});
