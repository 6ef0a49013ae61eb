//! kubelet's static CPU manager policy: `tests/data/vectors/cpu-assignment/README.md`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use kubelet_planner::cpus::{
    AssignedCpus, CpuGroups, CpuOptions, CpuRefusal, ExclusiveRequest, Kubelet, allocate, take,
};
use kubelet_planner::merge::NodeMask;
use serde::Deserialize;
use serde_json::Value;
use stelia_cpus::CpuSet;

use crate::{Judge, Machine, Verdict, machines};

/// The topologies of a folder, by name.
pub(crate) type Machines = BTreeMap<String, CpuGroups>;

#[derive(Deserialize)]
struct Case {
    call: String,
    topology: String,
    options: Vec<String>,
    available: CpuSet,
    count: usize,
    numa_affinity: Option<Vec<u32>>,
    reserved: CpuSet,
    reusable: CpuSet,
    expected: Expected,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Expected {
    cpus: Option<CpuSet>,
    error: Option<String>,
    error_text: Option<String>,
    default_after: Option<CpuSet>,
    #[serde(default, rename = "unsafe")]
    not_safe: bool,
    /// A CPU set, `error: class` or `hang`.
    cpus_without_aliasing: Option<String>,
}

/// Single requests, and sequences of them.
pub(crate) fn open(folder: &Path, first: &Value) -> Option<anyhow::Result<Judge>> {
    let judge = match first {
        _ if ["take", "allocate"].map(Some).contains(&first["call"].as_str()) => judge,
        _ if first.get("affinity_source").is_some() => crate::cpu_sequences::judge,
        _ => return None,
    };
    let machines = machines(folder, "cpu-assignment");
    let groups: anyhow::Result<Machines> = machines.and_then(|all| all.iter().map(groups).collect());
    Some(groups.map(|machines| -> Judge { Box::new(move |case| judge(&machines, case)) }))
}

fn groups(machine: &Machine) -> anyhow::Result<(String, CpuGroups)> {
    let caches = machine.cpus.iter().map(|cpu| (cpu.cpu, cpu.uncore)).collect();
    let topology = CpuGroups::new(&machine.topology(), &caches);
    let cores = machine.cpus.iter().all(|cpu| topology.core(cpu.cpu) == Some(cpu.core));
    let counts = (topology.cpus_per_core(), topology.sockets()) == (machine.cpus_per_core, machine.num_sockets);
    ensure!(cores && counts, "{}: its cores are others", machine.name);
    Ok((machine.name.clone(), topology))
}

pub(crate) fn options(names: &[String]) -> anyhow::Result<CpuOptions> {
    let given = names.iter().map(|name| (name.clone(), "true".to_owned())).collect();
    Ok(CpuOptions::parse(&given)?)
}

pub(crate) fn mask(nodes: &[u32]) -> NodeMask {
    nodes.iter().copied().collect()
}

/// The name the recorded answers have for a refusal.
pub(crate) fn class(refusal: &CpuRefusal) -> &'static str {
    match refusal {
        CpuRefusal::NotEnough { .. } => "not-enough",
        CpuRefusal::Failed => "failed",
        CpuRefusal::TooFewTaken(_) => "accounting-not-enough",
        CpuRefusal::TooManyTaken(_) => "accounting-too-many",
        CpuRefusal::WouldNotReturn => "hang",
        CpuRefusal::NotWholeCores { .. } => "smt-not-multiple",
        CpuRefusal::TooFewCores { .. } => "smt-not-enough-physical",
        CpuRefusal::ReservedCount { .. } => "reserve-count",
        CpuRefusal::DefaultEmpty => "state-default-empty",
        CpuRefusal::ReservedInDefault { .. } => "state-strict-reserved-in-default",
        CpuRefusal::ReservedNotInDefault { .. } => "state-reserved-not-in-default",
        CpuRefusal::EntryInDefault { .. } => "state-overlap",
        CpuRefusal::OtherCpus { .. } => "state-cpus-differ",
        _ => "not recorded",
    }
}

/// A refusal's class, and its text where kubelet gives one.
pub(crate) fn refused(refusal: &CpuRefusal) -> (Option<String>, Option<String>) {
    let text = (*refusal != CpuRefusal::WouldNotReturn).then(|| refusal.to_string());
    (Some(class(refusal).to_owned()), text)
}

fn judge(machines: &Machines, case: &Value) -> anyhow::Result<Verdict> {
    let case = Case::deserialize(case)?;
    let topology = machines
        .get(&case.topology)
        .with_context(|| format!("topology {:?}", case.topology))?;
    let options = options(&case.options)?;
    let ask = |kubelet: Kubelet| {
        Ok(match case.call.as_str() {
            "take" => take(topology, options, kubelet, &case.available, case.count),
            "allocate" => {
                let request = ExclusiveRequest {
                    available: &case.available.difference(&case.reserved),
                    reusable: &case.reusable,
                    count: case.count,
                    affinity: case.numa_affinity.as_deref().map(mask),
                };
                allocate(topology, options, kubelet, &request)
            }
            call => bail!("call {call:?}"),
        })
    };
    let copied = Kubelet {
        combinations_copied: true,
        ..Kubelet::default()
    };
    let (released, copied) = (ask(Kubelet::default())?, shown(&ask(copied)?));
    let got = Expected {
        cpus: released.as_ref().ok().map(|answer| answer.cpus.clone()),
        error: released.as_ref().err().and_then(|refusal| refused(refusal).0),
        error_text: released.as_ref().err().and_then(|refusal| refused(refusal).1),
        // A request that kubelet hangs on has no state afterwards.
        default_after: match &released {
            _ if case.call == "take" => None,
            Ok(answer) => Some(case.available.difference(&answer.cpus)),
            Err(CpuRefusal::WouldNotReturn) => None,
            Err(_) => Some(case.available.clone()),
        },
        not_safe: released.as_ref().is_ok_and(|answer| !answer.is_safe()),
        cpus_without_aliasing: (copied != shown(&released)).then_some(copied),
    };
    Ok(if got == case.expected {
        Verdict::Match
    } else {
        Verdict::Differs {
            expected: format!("{:?}", case.expected),
            got: format!("{got:?}"),
        }
    })
}

fn shown(answer: &Result<AssignedCpus, CpuRefusal>) -> String {
    match answer {
        Ok(answer) => answer.cpus.to_string(),
        Err(CpuRefusal::WouldNotReturn) => "hang".to_owned(),
        Err(refusal) => format!("error: {}", class(refusal)),
    }
}
