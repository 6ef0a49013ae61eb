//! How vCPUs are placed on the exclusive CPUs: the names of the policies.

use stelia_cpus::text::named;

named! {
    pub enum PlacementPolicy {
        /// The guest's own topology on the host's: SMT siblings on SMT siblings, sockets and NUMA nodes on NUMA nodes.
        Guest = "guest",
        /// Ascending vCPU index on physical cores, each filled before the next: as few cores as possible.
        FullPcpus = "full-pcpus",
        /// Ascending vCPU index on one thread of every physical core first: as many cores as possible.
        SpreadByPcpus = "spread-by-pcpus",
        /// Ascending vCPU index on ascending CPU number.
        Linear = "linear",
    }
}
