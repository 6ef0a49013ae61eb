//! A node for tests.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_cpus::testing::Shape;
use stelia_kubelet::PodUid;

use crate::numa::{Memory, NumaNode, Pages};
use crate::{Alignment, Facts, Kubelet, PodAllocation};

/// A CPU list.
#[allow(clippy::unwrap_used)]
pub fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn pages(total: u64, free: u64) -> Pages {
    Pages {
        total,
        reserved: 0,
        free,
    }
}

/// NUMA nodes of 16 GiB, each 21 away from the others.
pub fn numa(nodes: u32) -> BTreeMap<u32, NumaNode> {
    let node = |id: u32| NumaNode {
        distances: (0..nodes)
            .map(|other| (other, if other == id { 10 } else { 21 }))
            .collect(),
        memory: Some(Memory {
            total: 16 << 30,
            ..Memory::default()
        }),
        huge_pages: BTreeMap::from([(2 << 20, pages(1024, 512)), (1 << 30, pages(0, 0))]),
    };
    (0..nodes).map(|id| (id, node(id))).collect()
}

/// Two nodes of four CPUs: 0 reserved, kubelet's pod on 2-3, steliad's on 4-5.
#[allow(clippy::unwrap_used)]
pub fn facts() -> Facts {
    let topology = Shape {
        nodes: 2,
        cores: 2,
        threads: 2,
        interleaved: false,
    };
    let allocation = |uid: &str, list: &str, by_kubelet| PodAllocation {
        pod: PodUid::parse(uid).unwrap(),
        name: None,
        cpus: cpus(list),
        by_kubelet,
    };
    Facts {
        name: "worker-1".to_owned(),
        topology: topology.topology(),
        numa: numa(2),
        reserved: cpus("0"),
        exclusive: cpus("2-5"),
        shared: cpus("0-1,6-7"),
        allocations: vec![
            allocation("3ceda12c-3ee9-40fa-9f42-61428fe654a6", "2-3", true),
            allocation("416de7c2-21de-472d-817c-fa9d4306cb7d", "4-5", false),
        ],
        kubelet: Kubelet {
            cpu_policy: "static".to_owned(),
            cpu_options: BTreeMap::from([("full-pcpus-only".to_owned(), "true".to_owned())]),
            reserved: cpus("0"),
            alignment: Some(Alignment {
                policy: "single-numa-node".to_owned(),
                scope: "pod".to_owned(),
            }),
            max_numa_nodes: None,
        },
        allocator: None,
        pods: None,
        devices: BTreeMap::new(),
        problems: Vec::new(),
    }
}
