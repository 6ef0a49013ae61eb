//! The nodes and pods of both benchmarks: 256 CPUs with some 30 VMs each, every node in another state.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stelia_cpus::CpuSet;
use stelia_cpus::testing::Shape;
use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource, HeldCpus};
use stelia_koordinator::report::numa::{KernelNumaNode, NumaMemory, Pages};
use stelia_koordinator::report::{Alignment, Allocator, Facts, Kubelet, Managers, PodAllocation};
use stelia_placement_rules::testing::{published, uid};

/// Kinds of pods that are asked about.
pub const KINDS: usize = 20;

/// Numbers that look random and are the same each time.
pub struct Dice(pub u64);

impl Dice {
    /// From 0 to less than `most`.
    pub fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }
}

/// A node's object.
pub fn object(name: &str, dice: &mut Dice, by_kubelet: bool) -> String {
    let shape = Shape {
        nodes: 2,
        cores: 64,
        threads: 2,
        interleaved: true,
    };
    let topology = shape.topology();
    let core = |core: u32| [core, core + 128];
    let reserved: CpuSet = [0, 1, 64, 65].into_iter().flat_map(core).collect();
    let mut free: Vec<Vec<u32>> = vec![(2..64).collect(), (66..128).collect()];
    let mut allocations = Vec::new();
    let mut given = [0u64; 2];
    for number in 0..25 + dice.below(8) {
        let node = dice.below(2);
        let mut cpus = CpuSet::new();
        for _ in 0..[1, 1, 2, 2, 3, 4, 8][dice.below(7)] {
            if free[node].is_empty() {
                break;
            }
            let at = dice.below(free[node].len());
            cpus.union_with(&core(free[node].swap_remove(at)).into_iter().collect());
        }
        if !cpus.is_empty() {
            given[node] += 4 << 30;
            allocations.push(PodAllocation {
                pod: uid(u128::from(dice.0) << 64 | number as u128),
                name: None,
                cpus,
                by_kubelet,
            });
        }
    }
    let exclusive: CpuSet = allocations.iter().flat_map(|one| one.cpus.iter()).collect();
    let pages = |total| Pages {
        total,
        reserved: 0,
        free: total,
    };
    let numa = |id: u32| KernelNumaNode {
        distances: (0..2).map(|other| (other, if other == id { 10 } else { 21 })).collect(),
        memory: Some(NumaMemory {
            total: 512 << 30,
            reserved: 2 << 30,
            assigned: if by_kubelet { given[id as usize] } else { 0 },
        }),
        huge_pages: BTreeMap::from([(2 << 20, pages(1024)), (1 << 30, pages(0))]),
    };
    let policies = AllocatorPolicies {
        source: CpuSource::Steliad,
        reserved: reserved.clone(),
        ..AllocatorPolicies::default()
    };
    let used = |id: u32| given[id as usize] > 0;
    let options = by_kubelet.then(|| ("full-pcpus-only".to_owned(), "true".to_owned()));
    let facts = Facts {
        name: name.to_owned(),
        numa: (0..2).map(|id| (id, numa(id))).collect(),
        containers: BTreeSet::new(),
        shared: topology.online().difference(&exclusive),
        kubelet: Kubelet {
            cpu_policy: if by_kubelet { "static" } else { "none" }.to_owned(),
            cpu_options: options.into_iter().collect(),
            reserved: reserved.clone(),
            alignment: Some(Alignment {
                policy: "single-numa-node".to_owned(),
                scope: "pod".to_owned(),
            }),
            max_numa_nodes: Some(8),
            managers: Managers {
                memory_groups: by_kubelet.then(|| (0..2).filter(|id| used(*id)).map(|id| (id, [id].into())).collect()),
                ..Managers::default()
            },
        },
        allocator: (!by_kubelet).then(|| Allocator {
            policies,
            held: HeldCpus::default(),
            lsr: CpuSet::new(),
        }),
        pods: None,
        devices: BTreeMap::new(),
        problems: Vec::new(),
        topology,
        reserved,
        exclusive,
        allocations,
    };
    published(&facts)
}

/// A pod as the scheduler sends it.
pub fn pod(kind: usize) -> Value {
    let cpus = [1, 2, 2, 4, 4, 6, 8, 8, 10, 12, 14, 16, 16, 20, 24, 28, 32, 40, 48, 64][kind];
    let limits = json!({"cpu": cpus.to_string(), "memory": format!("{}Gi", 2 + kind), "stelia.io/vm": "1"});
    let command = "stelia-runner run --resource-status=/etc/podinfo/status -- qemu-system-x86_64";
    let command: Vec<&str> = command.split(' ').collect();
    let vm = json!({"name": "vm", "image": "vm", "command": command, "resources": {"limits": limits}});
    json!({"metadata": {"name": "vm", "namespace": "tenant", "labels": {"app": "vm"}}, "spec": {"containers": [vm]}})
}
