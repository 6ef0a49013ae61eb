//! A node for tests.

use std::collections::{BTreeMap, BTreeSet};

use crate::allocator::{AllocatorPolicies, CpuSource, HeldCpus};
use stelia_cpus::CpuSet;
use stelia_cpus::testing::Shape;
use stelia_kubelet::{PodName, PodUid};

use crate::report::numa::{KernelNumaNode, NumaMemory, Pages};
use crate::report::{Alignment, Allocator, Facts, Kubelet, Managers, PodAllocation, ReportedPod};

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
pub fn numa(nodes: u32) -> BTreeMap<u32, KernelNumaNode> {
    let node = |id: u32| KernelNumaNode {
        distances: (0..nodes)
            .map(|other| (other, if other == id { 10 } else { 21 }))
            .collect(),
        memory: Some(NumaMemory {
            total: 16 << 30,
            ..NumaMemory::default()
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
        containers: BTreeSet::new(),
        kubelet: Kubelet {
            cpu_policy: "static".to_owned(),
            cpu_options: BTreeMap::from([("full-pcpus-only".to_owned(), "true".to_owned())]),
            reserved: cpus("0"),
            alignment: Some(Alignment {
                policy: "single-numa-node".to_owned(),
                scope: "pod".to_owned(),
            }),
            max_numa_nodes: None,
            managers: Managers::default(),
        },
        allocator: None,
        pods: None,
        devices: BTreeMap::new(),
        problems: Vec::new(),
    }
}

/// 256 CPUs on two nodes: 32 VMs of three cores each, and 100 pods beside them.
#[allow(clippy::unwrap_used)]
pub fn large() -> Facts {
    let topology = Shape {
        nodes: 2,
        cores: 64,
        threads: 2,
        interleaved: true,
    }
    .topology();
    // VMs take whole cores, in turns from either node.
    let mut cores: Vec<CpuSet> = topology.cpus.keys().map(|cpu| topology.siblings(*cpu)).collect();
    cores.sort_by_key(|core| core.iter().next());
    cores.dedup();
    let (reserved, others) = cores.split_at(4);
    let union = |cores: &[CpuSet]| cores.iter().fold(CpuSet::new(), |all, core| all.union(core));
    let uid = |number: usize| {
        // As spread as random ones.
        let number = (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let digits = format!("{number:032x}");
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        PodUid::parse(&parts.join("-")).unwrap()
    };
    let name = |number: usize| PodName::new("tenant-a", &format!("virt-launcher-vm-{number:02}-x7k2p"));
    let allocations: Vec<PodAllocation> = others
        .chunks(3)
        .take(32)
        .enumerate()
        .map(|(number, cores)| PodAllocation {
            pod: uid(number),
            name: name(number),
            cpus: union(cores),
            by_kubelet: false,
        })
        .collect();
    let exclusive = allocations.iter().fold(CpuSet::new(), |all, one| all.union(&one.cpus));
    let pods = (0..132).map(|number| {
        let pod = ReportedPod {
            name: name(number),
            exclusive: number < 32,
        };
        (uid(number), pod)
    });
    let reserved = union(reserved);
    Facts {
        numa: numa(2),
        shared: topology.online().difference(&exclusive),
        kubelet: Kubelet {
            max_numa_nodes: Some(8),
            reserved: reserved.clone(),
            ..facts().kubelet
        },
        allocator: Some(Allocator {
            policies: AllocatorPolicies {
                source: CpuSource::Steliad,
                reserved: reserved.clone(),
                ..AllocatorPolicies::default()
            },
            held: HeldCpus {
                pcpu_level: exclusive.clone(),
                ..HeldCpus::default()
            },
            lsr: CpuSet::new(),
        }),
        pods: Some(pods.collect()),
        topology,
        reserved,
        exclusive,
        allocations,
        ..facts()
    }
}
