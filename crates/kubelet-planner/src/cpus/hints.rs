//! The CPU manager's hints for the Topology Manager.

use std::collections::BTreeMap;
use std::slice;

use stelia_cpus::CpuSet;

use super::combinations::Combinations;
use super::policy::StaticPolicy;
use super::state::CpuState;
use super::topology::{Level, distinct};
use crate::merge::{Hint, NodeMask};
use crate::pod::{Container, Pod};

/// CPUs of the pod's init containers that a container has to use again, so that its CPUs are bound to their NUMA nodes: kubelet
/// makes no hint without all of these nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// These CPUs.
    pub cpus: CpuSet,
    /// Their NUMA nodes.
    pub nodes: NodeMask,
    /// The NUMA nodes that the container would prefer without them; never what it prefers with them.
    pub otherwise: Vec<NodeMask>,
}

impl StaticPolicy<'_> {
    /// The hints for a container, or for the pod as a whole (Topology Manager's scope pod), in kubelet's order: `None`
    /// where it has no preference, an empty list where it cannot be satisfied. There may be one for each set of NUMA
    /// nodes.
    pub fn hints(&self, state: &CpuState, pod: &Pod, container: Option<&Container>) -> Option<Vec<Hint>> {
        let (count, containers) = match container {
            Some(container) => (self.exclusive(pod, container), slice::from_ref(container)),
            None => (self.exclusive_in_all(pod), pod.containers.as_slice()),
        };
        if count == 0 {
            return None;
        }
        if container.is_none() && pod.own().is_some() && self.check_pools(pod).is_err() {
            return Some(Vec::new());
        }
        let mut own = CpuSet::new();
        for container in containers {
            if let Some(cpus) = state.entry(&pod.uid, &container.name) {
                if cpus.len() != self.exclusive(pod, container) {
                    return Some(Vec::new());
                }
                own.union_with(cpus);
            }
        }
        Some(if own.len() == count {
            self.hints_for(&own, &CpuSet::new(), count)
        } else {
            self.hints_for(&self.available(state), &self.reusable(&pod.uid).union(&own), count)
        })
    }

    /// What binds the hints for a container to NUMA nodes: CPUs of its pod's init containers. `None` where it would prefer the
    /// same without them.
    pub(crate) fn bound(&self, state: &CpuState, pod: &Pod, container: &Container) -> Option<Bound> {
        let reusable = self.reusable(&pod.uid);
        let count = self.exclusive(pod, container);
        if reusable.is_empty() || count == 0 || state.entry(&pod.uid, &container.name).is_some() {
            return None;
        }
        let available = self.available(state);
        let preferred = |hints: Vec<Hint>| -> Vec<NodeMask> {
            let preferred = hints.into_iter().filter(|hint| hint.preferred);
            preferred.filter_map(|hint| hint.nodes).collect()
        };
        let bound = preferred(self.hints_for(&available, &reusable, count));
        let otherwise = preferred(self.hints_for(&available.union(&reusable), &CpuSet::new(), count));
        (bound != otherwise).then(|| Bound {
            nodes: self.topology.nodes_of(&reusable).iter().collect(),
            cpus: reusable,
            otherwise,
        })
    }

    /// `generateCPUTopologyHints`
    fn hints_for(&self, available: &CpuSet, reusable: &CpuSet, count: usize) -> Vec<Hint> {
        let nodes = self.topology.nodes();
        let count_by_node = |cpus: &CpuSet| {
            let mut counts = BTreeMap::<u32, usize>::new();
            for cpu in cpus.iter() {
                *counts.entry(self.topology.node_of(cpu)).or_default() += 1;
            }
            counts
        };
        let (available, reusable) = (count_by_node(available), count_by_node(reusable));
        let (mut fewest, mut hints) = (nodes.len(), Vec::new());
        for size in 1..=nodes.len() {
            let Ok(()) = Combinations::new(nodes.len(), size).each(|chosen| {
                let sizes = chosen
                    .iter()
                    .map(|node| self.topology.members(Level::Node, *node).len());
                if sizes.sum::<usize>() >= count {
                    fewest = fewest.min(size);
                }
                let mask: NodeMask = chosen.iter().map(|node| nodes[*node]).collect();
                let in_mask = |counts: &BTreeMap<u32, usize>| -> usize {
                    let inside = counts.iter().filter(|(node, _)| mask.contains(**node));
                    inside.map(|(_, count)| count).sum()
                };
                let elsewhere = reusable.keys().any(|node| !mask.contains(*node));
                if !elsewhere && in_mask(&available) + in_mask(&reusable) >= count {
                    hints.push((mask, size, chosen.to_vec()));
                }
                Ok::<_, std::convert::Infallible>(true)
            });
        }
        let hint = |(mask, size, chosen): (NodeMask, usize, Vec<usize>)| {
            let aligned = || self.options.align_by_socket && self.socket_aligned(&chosen, fewest);
            Hint::on(mask, size == fewest || aligned())
        };
        hints.into_iter().map(hint).collect()
    }

    /// Whether the NUMA nodes touch as few sockets as `fewest` NUMA nodes fill (`isHintSocketAligned`).
    fn socket_aligned(&self, nodes: &[usize], fewest: usize) -> bool {
        let per_socket = self.topology.nodes().len().checked_div(self.topology.sockets());
        let sockets = nodes.iter().flat_map(|node| self.topology.sockets_of_node(*node));
        let touched = distinct(sockets).len();
        per_socket.is_some_and(|per_socket| per_socket > 0 && touched == fewest.div_ceil(per_socket))
    }
}
