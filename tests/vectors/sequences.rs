//! Koordinator's resource manager, step by step: information, not a test, because it charges amounts apart from CPU sets
//! and has errors of its own (docs/allocator-derivation.md). Each request is made of the state recorded before it, so that one
//! difference does not lead to the next.

use std::collections::BTreeMap;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;
use stelia_cpus::{CpuSet, Topology};
use stelia_koordinator::allocator::{CpuSelection, HostTables, InUse, Usage, select_cpus};

use crate::Verdict;
use crate::koordinator::{Expected, Group, bind, exclusive, in_use, strategy};

#[derive(Deserialize)]
struct Sequence {
    topology: String,
    max_ref_count: u32,
    reserved: CpuSet,
    default_strategy: String,
    node_strategy_label: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    request: Option<Asked>,
    expected: Option<Expected>,
    /// After the step.
    available: CpuSet,
    allocated: Vec<Group>,
}

#[derive(Deserialize)]
struct Asked {
    count: usize,
    request_cpu_bind: bool,
    required_bind: bool,
    bind: String,
    exclusive: String,
    preferred: CpuSet,
    numa_affinity: Option<Vec<u32>>,
}

/// How many of a sequence's requests for CPUs are answered alike.
pub(crate) fn judge(topologies: &BTreeMap<String, Topology>, case: &Value) -> anyhow::Result<Verdict> {
    let sequence = Sequence::deserialize(case)?;
    let topology = topologies.get(&sequence.topology).context("topology")?;
    let (host, usable) = (
        HostTables::new(topology),
        topology.online().difference(&sequence.reserved),
    );
    let strategy = match sequence.node_strategy_label.as_str() {
        "" => strategy(&sequence.default_strategy)?,
        label => strategy(label)?,
    };
    let (mut available, mut held) = (usable.clone(), Vec::new());
    let (mut alike, mut asked) = (0, 0);
    for step in sequence.steps {
        let wanted = step.request.filter(|request| request.request_cpu_bind);
        if let Some((wanted, expected)) = wanted.zip(step.expected) {
            let usage = Usage {
                max_ref_count: sequence.max_ref_count,
                in_use: given_back(&held, &wanted.preferred),
            };
            let available = available.union(&wanted.preferred.intersection(&usable));
            let request = CpuSelection {
                count: wanted.count,
                bind: bind(&wanted.bind)?,
                required: wanted.required_bind,
                exclusive: exclusive(&wanted.exclusive)?,
                strategy,
                preferred: wanted.preferred,
                nodes: wanted.numa_affinity.map(|nodes| nodes.into_iter().collect()),
            };
            let got = select_cpus(&host, &usage, &available, &request).ok();
            asked += 1;
            alike += usize::from(got.map(|answer| answer.cpus) == expected.cpus);
        }
        available = step.available;
        held = in_use(step.allocated)?;
    }
    Ok(Verdict::Information { alike, asked })
}

/// The CPUs in use, where those a reservation gives back have one holder less.
fn given_back(held: &[InUse], back: &CpuSet) -> Vec<InUse> {
    let part = |cpus, refs, held: &InUse| InUse {
        cpus,
        refs,
        exclusive: held.exclusive,
    };
    let parts = held.iter().flat_map(|held| {
        let kept = part(held.cpus.difference(back), held.refs, held);
        [
            kept,
            part(held.cpus.intersection(back), held.refs.saturating_sub(1), held),
        ]
    });
    parts.filter(|held| held.refs > 0).collect()
}
