//! Topology Manager's `Policy.Merge`: `tests/data/vectors/topology-merge/README.md`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use kubelet_planner::merge::{Hint, HintList, MergeOptions, Merged, Merger, NodeMask, Policy};
use serde::Deserialize;
use serde_json::Value;
use stelia_cpus::NodeSet;

use crate::{Judge, Verdict};

/// Mask and preferred.
type RecordedHint = (Option<u64>, u8);

#[derive(Deserialize)]
struct Case {
    policy: String,
    prefer_closest: bool,
    nodes: Vec<u32>,
    distances: Option<Vec<Vec<u64>>>,
    lists: Vec<Option<Vec<RecordedHint>>>,
    expected: Expected,
}

#[derive(Deserialize)]
struct Expected {
    mask: Option<Vec<u32>>,
    preferred: bool,
    admit: bool,
}

pub(crate) fn open(_: &Path, first: &Value) -> Option<anyhow::Result<Judge>> {
    let ours = first.get("policy").is_some() && first.get("lists").is_some();
    ours.then(|| -> anyhow::Result<Judge> { Ok(Box::new(judge)) })
}

fn judge(case: &Value) -> anyhow::Result<Verdict> {
    let case = Case::deserialize(case)?;
    let options = MergeOptions {
        prefer_closest_numa_nodes: case.prefer_closest,
        // The merge itself looks at no limit.
        max_allowable_numa_nodes: case.nodes.len(),
    };
    let policy = Policy::parse(&case.policy).with_context(|| format!("policy {:?}", case.policy))?;
    let nodes: NodeSet = case.nodes.iter().copied().collect();
    let distances: BTreeMap<u32, Vec<u64>> = case
        .nodes
        .into_iter()
        .zip(case.distances.into_iter().flatten())
        .collect();
    let merger = Merger::new(policy, options, &nodes, &distances)?;
    let got = merger.merge(&case.lists.into_iter().map(hints).collect::<Vec<_>>());
    let nodes = case.expected.mask.map(|nodes| nodes.into_iter().collect::<NodeSet>());
    let expected = Merged {
        nodes: nodes.map(|nodes| NodeMask::try_from(&nodes)).transpose()?,
        preferred: case.expected.preferred,
        admitted: case.expected.admit,
    };
    Ok(if got == expected {
        Verdict::Match
    } else {
        Verdict::Differs {
            expected: format!("{expected:?}"),
            got: format!("{got:?}"),
        }
    })
}

fn hints(list: Option<Vec<RecordedHint>>) -> HintList {
    let hint = |(mask, preferred): RecordedHint| Hint {
        nodes: mask.map(NodeMask::from_bits),
        preferred: preferred == 1,
    };
    list.map(|hints| hints.into_iter().map(hint).collect())
}
