//! Koordinator's `takeCPUs` and `takePreferredCPUs`: `tests/data/vectors/koordinator/README.md`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, anyhow};
use serde::Deserialize;
use serde_json::Value;
use stelia_cpus::{CpuSet, Topology};
use stelia_koordinator::allocator::{
    CpuBindPolicy, CpuExclusivePolicy, HostTables, InUse, NumaAllocateStrategy, TakeCriteria, Unsatisfied, Usage,
    take_preferred_cpus,
};

use crate::{Judge, Machine, Verdict, machines};

#[derive(Deserialize)]
struct Case {
    call: String,
    topology: String,
    max_ref_count: u32,
    available: CpuSet,
    preferred: CpuSet,
    allocated: Vec<Group>,
    count: usize,
    bind: String,
    exclusive: String,
    strategy: String,
    expected: Expected,
}

#[derive(Deserialize)]
struct Group {
    cpus: CpuSet,
    exclusive: String,
}

#[derive(Deserialize)]
struct Expected {
    cpus: Option<CpuSet>,
    error: Option<String>,
}

/// Requests.
pub(crate) fn open(folder: &Path, first: &Value) -> Option<anyhow::Result<Judge>> {
    let calls = ["takeCPUs", "takePreferredCPUs"].map(Some);
    if !calls.contains(&first["call"].as_str()) {
        return None;
    }
    let named = |machine: Machine| (machine.name.clone(), machine.topology());
    let topologies = machines(folder, "koordinator").map(|all| all.into_iter().map(named).collect());
    Some(topologies.map(|topologies| -> Judge { Box::new(move |case| judge(&topologies, case)) }))
}

/// The policy of an allocation; no name is no policy.
fn exclusive(name: &str) -> anyhow::Result<CpuExclusivePolicy> {
    match name {
        "" => Ok(CpuExclusivePolicy::None),
        name => CpuExclusivePolicy::parse(name).with_context(|| format!("exclusive policy {name:?}")),
    }
}

fn bind(name: &str) -> anyhow::Result<CpuBindPolicy> {
    CpuBindPolicy::parse(name).with_context(|| format!("bind policy {name:?}"))
}

fn strategy(name: &str) -> anyhow::Result<NumaAllocateStrategy> {
    NumaAllocateStrategy::parse(name).with_context(|| format!("strategy {name:?}"))
}

fn in_use(groups: Vec<Group>) -> anyhow::Result<Vec<InUse>> {
    let held = groups.into_iter().map(|group| {
        Ok(InUse {
            cpus: group.cpus,
            exclusive: exclusive(&group.exclusive)?,
        })
    });
    held.collect()
}

fn judge(topologies: &BTreeMap<String, Topology>, case: &Value) -> anyhow::Result<Verdict> {
    let case = Case::deserialize(case)?;
    let topology = topologies.get(&case.topology);
    let host = HostTables::new(topology.with_context(|| format!("topology {:?}", case.topology))?);
    let strategy = strategy(&case.strategy)?;
    if strategy == NumaAllocateStrategy::DistributeEvenly {
        return Ok(Verdict::LeftOut("DistributeEvenly, see docs/allocator-derivation.md"));
    }
    if case.max_ref_count != 1 {
        return Ok(Verdict::LeftOut("CPUs that several pods hold"));
    }
    let usage = Usage {
        in_use: in_use(case.allocated)?,
    };
    let wanted = TakeCriteria {
        count: case.count,
        bind: bind(&case.bind)?,
        exclusive: exclusive(&case.exclusive)?,
        strategy,
    };
    let got = match case.call.as_str() {
        "takeCPUs" => take_preferred_cpus(&host, &usage, &case.available, &CpuSet::new(), wanted),
        "takePreferredCPUs" => take_preferred_cpus(&host, &usage, &case.available, &case.preferred, wanted),
        call => return Err(anyhow!("call {call:?}")),
    };
    // The original has one error only.
    Ok(match (&got, &case.expected.cpus) {
        (Ok(got), Some(expected)) if got == expected => Verdict::Match,
        (Err(Unsatisfied::NotEnough { .. }), None) if case.expected.error.is_some() => Verdict::Match,
        _ => Verdict::Differs {
            expected: case
                .expected
                .cpus
                .map_or_else(|| case.expected.error.unwrap_or_default(), |cpus| cpus.to_string()),
            got: got.map_or_else(|refusal| refusal.to_string(), |cpus| cpus.to_string()),
        },
    })
}
