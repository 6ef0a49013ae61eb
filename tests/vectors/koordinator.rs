//! Koordinator's `takeCPUs` and `takePreferredCPUs`: `tests/data/vectors/koordinator/README.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow};
use serde::Deserialize;
use serde_json::Value;
use steliad::alloc::{
    CpuBindPolicy, CpuExclusivePolicy, Host, InUse, NumaAllocateStrategy, Refusal, Usage, Wanted, take_cpus,
    take_preferred_cpus,
};
use steliad::cpuset::CpuSet;
use steliad::topology::{Cpu, Topology};

use crate::{Judge, Verdict};

#[derive(Deserialize)]
struct Machine {
    name: String,
    cpus: Vec<MachineCpu>,
}

#[derive(Deserialize)]
struct MachineCpu {
    cpu: u32,
    socket: u32,
    numa: u32,
    raw_core: u32,
}

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
    #[serde(rename = "ref")]
    refs: u32,
    exclusive: String,
}

#[derive(Deserialize)]
struct Expected {
    cpus: Option<CpuSet>,
    error: Option<String>,
}

/// Requests, and sequences of them through the original's resource manager, which are not compared.
pub(crate) fn open(folder: &Path, first: &Value) -> Option<anyhow::Result<Judge>> {
    if first["steps"].is_array() && first.get("node_strategy_label").is_some() {
        return Some(Ok(Box::new(|_| {
            Ok(Verdict::LeftOut("a sequence, see docs/allocator.md"))
        })));
    }
    let ours = ["takeCPUs", "takePreferredCPUs"].map(Some);
    ours.contains(&first["call"].as_str()).then(|| {
        let hosts = hosts(folder)?;
        let judge: Judge = Box::new(move |case| judge(&hosts, case));
        Ok(judge)
    })
}

/// The folder's hosts; where it brings none, those of our own copy.
fn hosts(folder: &Path) -> anyhow::Result<BTreeMap<String, Host>> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors/koordinator/topologies.json");
    let brought = folder.join("topologies.json");
    let path = if brought.exists() { brought } else { own };
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let machines: Vec<Machine> = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let host = |machine: Machine| {
        let describe = |cpu: &MachineCpu| {
            let described = Cpu {
                package: cpu.socket,
                core: cpu.raw_core,
                node: cpu.numa,
            };
            (cpu.cpu, described)
        };
        let topology = Topology {
            cpus: machine.cpus.iter().map(describe).collect(),
        };
        (machine.name, Host::new(&topology))
    };
    Ok(machines.into_iter().map(host).collect())
}

/// The policy of an allocation; no name is no policy.
fn exclusive(name: &str) -> anyhow::Result<CpuExclusivePolicy> {
    match name {
        "" => Ok(CpuExclusivePolicy::None),
        name => CpuExclusivePolicy::parse(name).with_context(|| format!("exclusive policy {name:?}")),
    }
}

fn judge(hosts: &BTreeMap<String, Host>, case: &Value) -> anyhow::Result<Verdict> {
    let case = Case::deserialize(case)?;
    let host = hosts
        .get(&case.topology)
        .with_context(|| format!("topology {:?}", case.topology))?;
    let strategy =
        NumaAllocateStrategy::parse(&case.strategy).with_context(|| format!("strategy {:?}", case.strategy))?;
    if strategy == NumaAllocateStrategy::DistributeEvenly {
        return Ok(Verdict::LeftOut("DistributeEvenly, see docs/allocator.md"));
    }
    let in_use = case.allocated.into_iter().map(|group| {
        Ok(InUse {
            cpus: group.cpus,
            refs: group.refs,
            exclusive: exclusive(&group.exclusive)?,
        })
    });
    let usage = Usage {
        max_ref_count: case.max_ref_count,
        in_use: in_use.collect::<anyhow::Result<_>>()?,
    };
    let wanted = Wanted {
        count: case.count,
        bind: CpuBindPolicy::parse(&case.bind).with_context(|| format!("bind policy {:?}", case.bind))?,
        exclusive: exclusive(&case.exclusive)?,
        strategy,
    };
    let got = match case.call.as_str() {
        "takeCPUs" => take_cpus(host, &usage, &case.available, wanted),
        "takePreferredCPUs" => take_preferred_cpus(host, &usage, &case.available, &case.preferred, wanted),
        call => return Err(anyhow!("call {call:?}")),
    };
    // The original has one error only.
    Ok(match (&got, &case.expected.cpus) {
        (Ok(got), Some(expected)) if got == expected => Verdict::Match,
        (Err(Refusal::NotEnough { .. }), None) if case.expected.error.is_some() => Verdict::Match,
        _ => Verdict::Differs {
            expected: case
                .expected
                .cpus
                .map_or_else(|| case.expected.error.unwrap_or_default(), |cpus| cpus.to_string()),
            got: got.map_or_else(|refusal| refusal.to_string(), |cpus| cpus.to_string()),
        },
    })
}
