//! Machines, and versions of kubelet, on which cores and NUMA nodes are counted differently.

use std::collections::BTreeMap;

use stelia_cpus::testing::Shape;
use stelia_cpus::{Cpu, CpuSet, Topology};

use super::super::*;
use crate::merge::NodeMask;

/// The node of Kubernetes issue 139430: 4 NUMA nodes of 64 CPUs. Up to 1.36 a request takes as few NUMA nodes as can give it,
/// from 1.37 on as many as the Topology Manager chose, where so many can.
#[test]
fn the_topology_managers_nodes_are_the_least_from_1_37_on() {
    let topology = crate::testing::groups(Shape::new(4, 32, 2).interleaved());
    let options = CpuOptions {
        distribute_cpus_across_numa: true,
        ..CpuOptions::default()
    };
    let by_node = |minor: u32, affinity: Option<u64>, count: usize| -> Vec<usize> {
        let request = ExclusiveRequest {
            available: &topology.cpus(),
            reusable: &CpuSet::new(),
            count,
            affinity: affinity.map(NodeMask::from_bits),
        };
        let kubelet = Kubelet {
            combinations_copied: true,
            ..Kubelet::default()
        };
        let answer = allocate(&topology, options, kubelet.of_version(minor), &request).unwrap();
        let on = |node: u32| answer.cpus.iter().filter(|cpu| topology.node_of(*cpu) == node).count();
        (0..4).map(on).filter(|count| *count > 0).collect()
    };
    assert_eq!(by_node(36, Some(0b1111), 176).len(), 3);
    assert_eq!(by_node(37, Some(0b1111), 176), [44; 4]);
    assert_eq!(by_node(37, Some(0b0111), 30), [10; 3]);
    // No node is asked for, or there are fewer CPUs than nodes: as before.
    assert_eq!(by_node(37, None, 176).len(), 3);
    assert_eq!(by_node(37, Some(0b1111), 3), by_node(36, Some(0b1111), 3));
}

/// An Opteron 6200: `core_id` 0 to 3 in each of two dies of a socket, which are NUMA nodes, and one thread a core.
#[test]
fn cores_of_two_dies_with_the_same_core_id_are_two() {
    let place = |cpu: u32| Cpu {
        package: cpu / 8,
        core: cpu % 4,
        node: cpu / 4,
    };
    let cpus = (0..16).map(|cpu| (cpu, place(cpu))).collect();
    let topology = CpuGroups::new(&Topology { cpus }, &BTreeMap::new());
    assert_eq!(topology.cpus_per_core(), 1);
    assert_eq!(topology.siblings(&"1".parse().unwrap()).to_string(), "1");
    assert_eq!((topology.nodes().len(), topology.sockets()), (4, 2));
}
