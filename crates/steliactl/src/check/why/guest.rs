//! The guest's NUMA nodes over the host's.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stelia_api::ThreadRole;
use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::locality::{list, nodes};
use stelia_model::Instance;

/// A NUMA node that the guest sees, and where its vCPUs are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct GuestNode {
    /// `None`: QEMU shows the guest no NUMA nodes, so that all its vCPUs are alike to it.
    pub guest_node: Option<u32>,
    /// The vCPUs' numbers, as a list.
    pub vcpus: String,
    pub cpus: CpuSet,
    /// The host's NUMA nodes, as a list.
    pub host_nodes: String,
    /// They are more than one: memory that the guest takes for near may be far.
    pub spread: bool,
}

/// By the guest's node; empty before vCPUs are handed over.
pub(super) fn guest_nodes(topology: &Topology, instance: &Instance) -> Vec<GuestNode> {
    let mut found: BTreeMap<Option<u32>, (BTreeSet<u32>, CpuSet)> = BTreeMap::new();
    for pinned in &instance.vcpus {
        let ThreadRole::Vcpu(index) = pinned.thread.role else {
            continue;
        };
        let (vcpus, cpus) = found.entry(pinned.guest_node).or_default();
        vcpus.insert(index);
        match pinned.thread.cpu {
            Some(cpu) => {
                cpus.insert(cpu);
            }
            None => cpus.union_with(&instance.exclusive),
        }
    }
    let node = |(guest_node, (vcpus, cpus)): (Option<u32>, (BTreeSet<u32>, CpuSet))| {
        let host = nodes(topology, &cpus);
        GuestNode {
            guest_node,
            vcpus: list(&vcpus),
            host_nodes: list(&host),
            spread: host.len() > 1,
            cpus,
        }
    };
    found.into_iter().map(node).collect()
}

impl GuestNode {
    /// `guest node 0: vCPUs 0-3 on CPUs 4-7 of NUMA node 1`
    pub(super) fn in_words(&self) -> String {
        let whose = match self.guest_node {
            Some(node) => format!("guest node {node}: vCPUs {}", self.vcpus),
            None => format!("the guest sees no NUMA nodes: vCPUs {}", self.vcpus),
        };
        let spread = if self.spread { ", spread" } else { "" };
        format!("{whose} on CPUs {} of NUMA node {}{spread}", self.cpus, self.host_nodes)
    }
}

#[cfg(test)]
mod tests {
    use stelia_cpus::testing::Shape;
    use stelia_model::PinnedThread;
    use stelia_model::record::VcpuThread;

    use super::*;

    #[test]
    fn a_guest_node_on_two_of_the_hosts_is_spread() {
        let topology = Shape {
            nodes: 2,
            cores: 4,
            threads: 1,
            interleaved: false,
        }
        .topology();
        let pinned = |role: ThreadRole, guest_node: Option<u32>, cpu: Option<u32>| PinnedThread {
            thread: VcpuThread {
                role,
                cpu,
                ..VcpuThread::default()
            },
            guest_node,
        };
        let vcpu = |index: u32, guest_node, cpu| pinned(ThreadRole::Vcpu(index), guest_node, cpu);
        let mut instance = Instance {
            exclusive: "2-5".parse().unwrap(),
            vcpus: vec![
                vcpu(0, Some(0), Some(2)),
                vcpu(1, Some(0), Some(3)),
                vcpu(2, Some(1), Some(4)),
                pinned(ThreadRole::IoThread(0), None, Some(5)),
            ],
            ..Instance::default()
        };
        let told = |instance: &Instance| -> Vec<String> {
            let nodes = guest_nodes(&topology, instance);
            nodes.iter().map(GuestNode::in_words).collect()
        };
        assert_eq!(
            told(&instance),
            [
                "guest node 0: vCPUs 0-1 on CPUs 2-3 of NUMA node 0",
                "guest node 1: vCPUs 2 on CPUs 4 of NUMA node 1"
            ]
        );
        instance.vcpus = vec![vcpu(0, None, None)];
        assert_eq!(
            told(&instance),
            ["the guest sees no NUMA nodes: vCPUs 0 on CPUs 2-5 of NUMA node 0-1, spread"]
        );
    }
}
