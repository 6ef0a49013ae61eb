//! The distances between NUMA nodes, averaged as kubelet does.

use std::collections::BTreeMap;

use super::TopologyRefusal;
use super::mask::NodeMask;

/// Rows by node id.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Distances(Vec<Vec<f64>>);

impl Distances {
    /// The distances of these nodes, if kubelet finds them all.
    pub(super) fn new(nodes: NodeMask, given: &BTreeMap<u32, Vec<u64>>) -> Result<Self, TopologyRefusal> {
        let Some(highest) = nodes.nodes().last() else {
            return Ok(Self(Vec::new()));
        };
        let mut rows = vec![Vec::new(); highest as usize + 1];
        for node in nodes.nodes() {
            let row = given.get(&node).map_or(&[][..], Vec::as_slice);
            if row.len() <= highest as usize {
                return Err(TopologyRefusal::Distances {
                    node,
                    distances: row.len(),
                    highest,
                });
            }
            rows[node as usize] = row.iter().map(|distance| *distance as f64).collect();
        }
        Ok(Self(rows))
    }

    /// From each of the nodes to each, themselves included, there and back. The order of the sum is kubelet's, since these are
    /// floating-point numbers.
    pub(super) fn average(&self, mask: NodeMask) -> f64 {
        let row = |from: u32| self.0.get(from as usize).into_iter();
        let sum: f64 = mask
            .nodes()
            .flat_map(row)
            .flat_map(|row| mask.nodes().filter_map(|to| row.get(to as usize)))
            .sum();
        sum / f64::from(mask.len() * mask.len())
    }
}
