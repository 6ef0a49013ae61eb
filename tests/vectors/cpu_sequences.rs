//! kubelet's static CPU manager policy, step by step: every step of a sequence must match, its hints and its state too.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use kubelet_planner::cpus::{CpuRefusal, CpuState, Kubelet, StaticPolicy};
use kubelet_planner::merge::NodeMask;
use kubelet_planner::{Amounts, Container, ContainerKind, Pod, Resources};
use serde::Deserialize;
use serde_json::Value;
use stelia_cpus::CpuSet;
use stelia_kubelet::QosClass;

use crate::Verdict;
use crate::cpus::{Machines, mask, options, refused};

#[derive(Deserialize)]
struct Sequence {
    topology: String,
    options: Vec<String>,
    reserved_count: usize,
    reserved_set: CpuSet,
    reserved: CpuSet,
    pods: BTreeMap<String, SequencePod>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct SequencePod {
    guaranteed: bool,
    containers: Vec<SequenceContainer>,
}

#[derive(Deserialize)]
struct SequenceContainer {
    name: String,
    kind: String,
    cpu_milli: u64,
}

#[derive(Deserialize)]
struct Step {
    op: String,
    pod: Option<String>,
    container: Option<String>,
    /// Of a restart.
    reserved: Option<CpuSet>,
    numa_affinity: Option<Vec<u32>>,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Outcome {
    hints: Option<Vec<(u64, u8)>>,
    error: Option<String>,
    error_text: Option<String>,
    default: CpuSet,
    entries: BTreeMap<String, BTreeMap<String, CpuSet>>,
    #[serde(default, rename = "unsafe")]
    not_safe: bool,
}

fn pod(uid: &str, pod: &SequencePod) -> anyhow::Result<Pod> {
    let container = |container: &SequenceContainer| {
        let kind = match container.kind.as_str() {
            "init" => ContainerKind::Init,
            "sidecar" => ContainerKind::Sidecar,
            "app" => ContainerKind::App,
            kind => bail!("kind {kind:?}"),
        };
        let requests = Amounts {
            milli_cpus: Some(container.cpu_milli),
            memory: Some(1 << 30),
            ..Amounts::default()
        };
        let resources = if pod.guaranteed {
            Resources::guaranteed(requests)
        } else {
            Resources {
                requests,
                limits: Amounts::default(),
            }
        };
        Ok(Container::new(&container.name, kind, resources))
    };
    let read = Pod {
        uid: uid.to_owned(),
        resources: None,
        containers: pod.containers.iter().map(container).collect::<Result<_, _>>()?,
    };
    ensure!(
        (read.qos() == QosClass::Guaranteed) == pod.guaranteed,
        "{uid}: its class differs"
    );
    Ok(read)
}

pub(crate) fn judge(machines: &Machines, case: &Value) -> anyhow::Result<Verdict> {
    let sequence = Sequence::deserialize(case)?;
    let topology = machines.get(&sequence.topology).context("topology")?;
    let options = options(&sequence.options)?;
    options.check(topology)?;
    let pods = sequence
        .pods
        .iter()
        .map(|(uid, given)| Ok((uid.as_str(), pod(uid, given)?)));
    let pods: BTreeMap<&str, Pod> = pods.collect::<anyhow::Result<_>>()?;
    let new = |count, reserved: &CpuSet| StaticPolicy::new(topology, options, Kubelet::default(), count, reserved);
    let mut policy = new(sequence.reserved_count, &sequence.reserved_set)?;
    if *policy.reserved() != sequence.reserved {
        return Ok(Verdict::Differs {
            expected: format!("{} reserved", sequence.reserved),
            got: policy.reserved().to_string(),
        });
    }
    let mut state = CpuState::default();
    for (index, step) in sequence.steps.iter().enumerate() {
        let (uid, name) = (step.pod.as_deref(), step.container.as_deref());
        let asked = || {
            let pod = pods.get(uid?)?;
            let name = name?;
            Some((pod, pod.containers.iter().find(|container| container.name == name)?))
        };
        let mut hints = None;
        let done: Result<(), CpuRefusal> = match step.op.as_str() {
            "start" => policy.start(&mut state),
            "restart" => {
                let given = step.reserved.as_ref();
                let count = given.map_or(sequence.reserved_count, CpuSet::len);
                let fresh = new(count, given.unwrap_or(&sequence.reserved_set));
                fresh.and_then(|fresh| fresh.start(&mut state).map(|()| policy = fresh))
            }
            "remove" => {
                let (uid, name) = uid.zip(name).context("what to remove")?;
                policy.remove(&mut state, uid, name);
                Ok(())
            }
            "allocate" | "reject" => {
                let (pod, container) = asked().context("which container")?;
                let given = policy.hints(&state, pod, Some(container));
                hints = given.map(|hints| {
                    hints
                        .iter()
                        .map(|hint| (hint.nodes.map_or(0, NodeMask::bits), hint.preferred.into()))
                        .collect()
                });
                let affinity = step.numa_affinity.as_deref().map(mask);
                match step.op.as_str() {
                    "reject" => Ok(()),
                    _ => policy.allocate(&mut state, pod, container, affinity).map(|_| ()),
                }
            }
            op => bail!("op {op:?}"),
        };
        let (error, error_text) = done.as_ref().err().map_or((None, None), refused);
        let got = Outcome {
            hints,
            error,
            error_text,
            default: state.default.clone(),
            entries: state.entries.clone(),
            not_safe: !state.conflicts(policy.reserved()).is_empty(),
        };
        if got != step.outcome {
            return Ok(Verdict::Differs {
                expected: format!("step {index}: {:?}", step.outcome),
                got: format!("{got:?}"),
            });
        }
    }
    Ok(Verdict::Match)
}
