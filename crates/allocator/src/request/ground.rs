//! A node as the allocator regards it.

use stelia_cpus::{CpuSet, Topology};

use crate::{AllocatorPolicies, Held, Host, Pools, Usage};

/// A node where steliad chooses, as tables: any number of answers come from one.
#[derive(Debug, Clone)]
pub struct Ground {
    pub(super) host: Host,
    pub(super) online: CpuSet,
    pub(super) pools: Pools,
    pub(super) usage: Usage,
    pub(super) unreadable: Option<(String, String)>,
    pub(super) policies: AllocatorPolicies,
}

impl Ground {
    /// The tables of a node.
    pub fn new(topology: &Topology, pools: Pools, held: &Held, policies: AllocatorPolicies) -> Self {
        Self {
            host: Host::new(topology),
            online: topology.online(),
            pools,
            usage: held.usage(),
            unreadable: held.unreadable.clone(),
            policies,
        }
    }

    /// The online CPUs.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The CPUs that can be allocated at all.
    pub fn capacity(&self) -> CpuSet {
        self.online.difference(&self.policies.reserved)
    }

    /// The pools.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }
}
