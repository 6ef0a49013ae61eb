//! The pools of CPUs that Koordinator's QoS classes run on.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use stelia_cpus::{CpuSet, Topology};

use crate::allocator::{HostTables, NumaAllocateStrategy, Qos, Unsatisfied};

/// A NUMA node's part of the shared pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedPool {
    /// Socket of the node's first CPU.
    pub socket: u32,
    /// May be empty.
    pub cpus: CpuSet,
}

/// The online CPUs, divided.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pools {
    /// What new LSE and LSR instances may get: the shared pool without what is reserved.
    pub allocatable: CpuSet,
    /// CPUs of LSE, LSR and kubelet's Guaranteed pods.
    pub exclusive: CpuSet,
    /// Where LS and Burstable pods run: everything else, reserved CPUs included.
    pub shared: CpuSet,
    /// The shared pool by NUMA node.
    #[serde(deserialize_with = "by_node")]
    pub shared_by_node: BTreeMap<u32, SharedPool>,
    /// Where BE and BestEffort pods run: everything but the CPUs of LSE and of kubelet's Guaranteed pods.
    pub be_shared: CpuSet,
}

/// Where these members are flattened into another object, serde hands the numbers of nodes over as texts.
fn by_node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u32, SharedPool>, D::Error> {
    let by_text = BTreeMap::<String, SharedPool>::deserialize(deserializer)?;
    let by_node = by_text.into_iter();
    by_node
        .map(|(node, pool)| Ok((node.parse().map_err(D::Error::custom)?, pool)))
        .collect()
}

impl Pools {
    /// Divide the online CPUs: `closed` are those of LSE, of kubelet and of whoever else shares with nobody, `lsr` those of LSR.
    pub fn new(topology: &Topology, reserved: &CpuSet, closed: &CpuSet, lsr: &CpuSet) -> Self {
        Self::on(&HostTables::new(topology), reserved, closed, lsr)
    }

    /// The same for a host whose tables exist already.
    pub fn on(host: &HostTables, reserved: &CpuSet, closed: &CpuSet, lsr: &CpuSet) -> Self {
        let online = host.online();
        let exclusive = closed.union(lsr).intersection(online);
        let shared = online.difference(&exclusive);
        let pool = |(id, socket, cpus): (u32, u32, &CpuSet)| {
            let cpus = shared.intersection(cpus);
            (id, SharedPool { socket, cpus })
        };
        let shared_by_node = host.nodes().map(pool).collect();
        Self {
            allocatable: shared.difference(reserved),
            be_shared: online.difference(closed),
            exclusive,
            shared,
            shared_by_node,
        }
    }

    /// The CPUs that an instance of a class runs on; `own`: its exclusive ones.
    pub fn cpus_of<'a>(&'a self, qos: Qos, own: &'a CpuSet) -> &'a CpuSet {
        match qos {
            Qos::Lse | Qos::Lsr => own,
            Qos::Ls => &self.shared,
            Qos::Be => &self.be_shared,
        }
    }
}

/// The NUMA node whose shared pool an LS instance with the policy ConstrainedBurst runs on: the first, in the
/// strategy's order and then by id, whose pool has CPUs for the limit. Its CPUs change with the pool.
///
/// # Errors
/// No node's pool is large enough.
pub fn constrained_burst(limit_milli: u64, strategy: NumaAllocateStrategy, pools: &Pools) -> Result<u32, Unsatisfied> {
    let wanted = usize::try_from(limit_milli.div_ceil(1000)).unwrap_or(usize::MAX).max(1);
    let size = |pool: &SharedPool| pool.cpus.len();
    pools
        .shared_by_node
        .iter()
        .filter(|(_, pool)| size(pool) >= wanted)
        .min_by_key(|(node, pool)| (strategy.rank(size(pool)), **node))
        .map(|(node, _)| *node)
        .ok_or_else(|| Unsatisfied::NoSharedPool {
            wanted,
            largest: pools.shared_by_node.values().map(size).max().unwrap_or(0),
        })
}
