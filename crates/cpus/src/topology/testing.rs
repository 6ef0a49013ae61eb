//! Made-up hosts for tests of decisions.

use proptest::prelude::*;

use crate::{Cpu, Topology};

/// A regular host.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// NUMA nodes.
    pub nodes: u32,
    /// Cores of each node.
    pub cores: u32,
    /// Hardware threads of each core.
    pub threads: u32,
    /// Whether all first siblings are numbered before all second ones, as Linux mostly finds them.
    pub interleaved: bool,
}

impl Shape {
    /// With the siblings of a core numbered one after the other.
    pub const fn new(nodes: u32, cores: u32, threads: u32) -> Self {
        Self {
            nodes,
            cores,
            threads,
            interleaved: false,
        }
    }

    /// The same with all first siblings before all second ones.
    pub const fn interleaved(mut self) -> Self {
        self.interleaved = true;
        self
    }

    /// The host of this shape, every CPU of it online.
    pub fn topology(self) -> Topology {
        let all_cores = self.nodes * self.cores;
        let describe = |cpu: u32| {
            let core = if self.interleaved {
                cpu % all_cores
            } else {
                cpu / self.threads
            };
            let node = core / self.cores;
            let described = Cpu {
                package: node,
                core: core % self.cores,
                node,
            };
            (cpu, described)
        };
        Topology {
            cpus: (0..all_cores * self.threads).map(describe).collect(),
        }
    }
}

/// 1 to 8 NUMA nodes, with and without SMT, up to 1024 CPUs.
pub fn shapes() -> impl Strategy<Value = Shape> {
    let threads = prop_oneof![Just(1u32), Just(2), Just(4)];
    (1u32..=8, 1u32..=32, threads, any::<bool>()).prop_map(|(nodes, cores, threads, interleaved)| Shape {
        nodes,
        cores,
        threads,
        interleaved,
    })
}
