//! The merges of the Topology Manager, as values that serialize.

use serde::Serialize;
use stelia_cpus::NodeSet;
use stelia_node_plan::Subject;
use stelia_node_plan::hints::{self, MergeReport, ResourceHints};

/// One merge of the Topology Manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Merged {
    /// Null: the pod as a whole.
    pub(super) container: Option<String>,
    pub(super) hints: Vec<Hinted>,
    /// The chosen NUMA nodes; null: any.
    pub(super) numa_nodes: Option<NodeSet>,
    /// Whether every resource prefers exactly these.
    pub(super) preferred: bool,
    /// Resources whose preference is not known.
    pub(super) unplaced: Vec<String>,
}

/// The hints for one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Hinted {
    pub(super) resource: String,
    /// Preferred sets of NUMA nodes, the first ones.
    pub(super) preferred: Vec<NodeSet>,
    pub(super) preferred_sets: u64,
    /// Other sets that have enough.
    pub(super) other_sets: u64,
    pub(super) free: Vec<Free>,
    #[serde(skip)]
    pub(super) words: [String; 3],
}

/// What is free on a NUMA node before the pod: CPUs, devices, bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Free {
    pub(super) node: u32,
    pub(super) amount: u64,
}

pub(super) fn merges(subject: &Subject, merges: &[kubelet_planner::Merge]) -> Vec<Merged> {
    let hinted = |one: ResourceHints| Hinted {
        words: [
            one.preferred.words(),
            one.others.words(),
            hints::free_words(&one.resource, &one.free),
        ],
        resource: one.resource,
        preferred: one.preferred.listed,
        preferred_sets: one.preferred.count,
        other_sets: one.others.count,
        free: one
            .free
            .into_iter()
            .map(|(node, amount)| Free { node, amount })
            .collect(),
    };
    let merged = |merge: MergeReport| Merged {
        container: merge.container,
        hints: merge.resources.into_iter().map(hinted).collect(),
        numa_nodes: merge.nodes,
        preferred: merge.preferred,
        unplaced: merge.unplaced,
    };
    MergeReport::all(subject, merges).into_iter().map(merged).collect()
}
