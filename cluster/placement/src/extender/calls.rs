//! filter, prioritize, preempt, bind.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use stelia_cpus::text::excerpt;
use stelia_kubelet::Uid;
use stelia_placement_rules::cluster::NodeVerdict;
use stelia_placement_rules::request::Request;
use stelia_placement_rules::score;

use super::types::{
    ExtenderArgs, ExtenderBindingResult, ExtenderFilterResult, ExtenderPreemptionArgs, ExtenderPreemptionResult,
    HostPriority, MetaVictims,
};
use crate::apiserver::ToBind;
use crate::apiserver::parse::{self, ParsedPod};
use crate::placer::{NotReady, Placer};

/// Limit of the nodes of a call.
const MAX_CALL_NODES: usize = 50_000;

/// Limit of the nodes that an answer names, which kube-scheduler then scores and sends to prioritize: as many as it scores at least
/// where it does not look at all nodes (its `minFeasibleNodesToFind`).
pub(super) const MAX_FIT_NODES: usize = 100;

/// What is wrong with a call.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("it is not what kube-scheduler sends: {0}")]
    Syntax(String),
    #[error("it has no NodeNames: the extender's nodeCacheCapable must be true")]
    NoNames,
    #[error("it has no NodeNameToMetaVictims: the extender's nodeCacheCapable must be true")]
    NoVictims,
    #[error("{0} nodes are more than {MAX_CALL_NODES}")]
    TooMany(usize),
    #[error("the pod: {0}")]
    Pod(String),
    /// Another instance may answer, or this one later.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("{0}")]
    Unwritten(#[from] serde_json::Error),
}

fn syntax(cause: serde_json::Error) -> CallError {
    CallError::Syntax(excerpt::cause(&cause))
}

/// What a pod requests.
enum PodNeeds {
    /// No CPUs of its own, and no VM.
    Nothing,
    Room(Option<ParsedPod>, Box<Request>),
    /// Something that no node has; the reason.
    Impossible(String),
}

/// The nodes that a call names, and what its pod requests.
fn parse_call<'a>(placer: &Placer, body: &'a [u8]) -> Result<(Vec<&'a str>, PodNeeds), CallError> {
    let args: ExtenderArgs<'a> = serde_json::from_slice(body).map_err(syntax)?;
    let names = args.node_names.ok_or(CallError::NoNames)?;
    let needs = pod_needs(placer, names.len(), args.pod)?;
    Ok((names, needs))
}

/// What the pod of a call about this many nodes requests.
fn pod_needs(placer: &Placer, nodes: usize, pod: &RawValue) -> Result<PodNeeds, CallError> {
    if nodes > MAX_CALL_NODES {
        return Err(CallError::TooMany(nodes));
    }
    placer.ready()?;
    let document = serde_json::from_str(pod.get()).map_err(|cause| CallError::Pod(excerpt::cause(&cause)))?;
    let pod = parse::pod_of(&document);
    Ok(match placer.request(&document, pod.as_ref()) {
        Ok(None) => PodNeeds::Nothing,
        Ok(Some(request)) => PodNeeds::Room(pod, Box::new(request)),
        Err(cause) => PodNeeds::Impossible(excerpt::cause(&cause)),
    })
}

/// `ExtenderFilterResult`, JSON: of many nodes with room the best ones. Nodes with room that it does not name are no refusals. What is wrong with the call is its `Error`, and the scheduler tries again after its backoff.
///
/// All refusals are unresolvable by preemption: kube-scheduler chooses victims by its own filters, which the nodes of a call have passed, so it would find
/// none on them, and treats that as an error.
pub(super) fn filter(placer: &Placer, body: &[u8]) -> Result<Vec<u8>, CallError> {
    let impossible;
    let answered_at = placer.now();
    let mut result = ExtenderFilterResult::default();
    match parse_call(placer, body) {
        Err(cause) => result.error = format!("stelia-placement: {cause}"),
        Ok((names, PodNeeds::Nothing)) => result.node_names = Some(names),
        Ok((names, PodNeeds::Impossible(why))) => {
            impossible = why;
            result.node_names = Some(Vec::new());
            result.failed_and_unresolvable_nodes = names.into_iter().map(|name| (name, &*impossible)).collect();
        }
        Ok((names, PodNeeds::Room(pod, request))) => {
            let mut fit = Vec::with_capacity(names.len());
            for (name, answer) in names.iter().zip(placer.evaluate_nodes(&request, &names)) {
                match answer {
                    NodeVerdict::Fits(total) => fit.push((total, *name)),
                    NodeVerdict::Refused(why) => drop(result.failed_and_unresolvable_nodes.insert(name, why)),
                }
            }
            if let Some(pod) = pod.as_ref().filter(|_| fit.is_empty()) {
                placer.add_waiting(pod, *request, answered_at, &names);
            }
            let number = pod.map_or(0, |pod| pod.uid.0);
            result.node_names = Some(best_nodes(fit, number));
        }
    }
    Ok(serde_json::to_vec(&result)?)
}

/// The nodes with the highest scores. Which of equal nodes are among them is not the same for each pod, by its `number`.
pub(super) fn best_nodes(mut fit: Vec<(u16, &str)>, number: u128) -> Vec<&str> {
    if fit.len() > MAX_FIT_NODES {
        let first = usize::try_from(number % fit.len() as u128).unwrap_or_default();
        fit.rotate_left(first);
        fit.sort_by_key(|(score, _)| Reverse(*score));
        fit.truncate(MAX_FIT_NODES);
    }
    fit.into_iter().map(|(_, name)| name).collect()
}

/// `HostPriorityList`, JSON.
pub(super) fn prioritize(placer: &Placer, body: &[u8]) -> Result<Vec<u8>, CallError> {
    let (names, needs) = parse_call(placer, body)?;
    let answers = match needs {
        PodNeeds::Nothing | PodNeeds::Impossible(_) => vec![NodeVerdict::Fits(0); names.len()],
        PodNeeds::Room(_, request) => placer.evaluate_nodes(&request, &names),
    };
    let list = names.into_iter().zip(answers).map(|(host, answer)| {
        let score = match answer {
            NodeVerdict::Fits(total) => i64::from(score::priority(total)),
            NodeVerdict::Refused(_) => 0,
        };
        HostPriority { host, score }
    });
    Ok(serde_json::to_vec(&list.collect::<Vec<_>>())?)
}

/// `ExtenderPreemptionResult`, JSON: the nodes where the pod finds room once their victims are gone, with these victims. It has no place for an
/// error.
pub(super) fn preempt(placer: &Placer, body: &[u8]) -> Result<Vec<u8>, CallError> {
    let args: ExtenderPreemptionArgs<'_> = serde_json::from_slice(body).map_err(syntax)?;
    let all = args.node_name_to_meta_victims.ok_or(CallError::NoVictims)?;
    let all = all.into_iter();
    let all = all.map(|(name, victims)| (name, victims.unwrap_or_default()));
    let mut all: BTreeMap<&str, MetaVictims<'_>> = all.collect();
    // kube-scheduler's counting suffices for a pod that gets no CPUs of its own.
    let needs = pod_needs(placer, all.len(), args.pod)?;
    if let PodNeeds::Impossible(why) = needs {
        return Err(CallError::Pod(why));
    }
    if let PodNeeds::Room(pod, request) = needs {
        // kube-scheduler tries the pod again when its victim is deleted, which is before the node's object shows the room: another victim is not needed.
        let nominated = pod.and_then(|pod| pod.nominated_node);
        if nominated.is_some_and(|node| placer.fits_without_departed(&request, &node)) {
            all.clear();
        }
        let uids = |victims: &MetaVictims<'_>| {
            let pods = victims.pods.iter().flatten();
            pods.filter_map(|pod| Uid::parse(pod.uid)).collect()
        };
        let nodes: Vec<(&str, Vec<Uid>)> = all.iter().map(|(name, victims)| (*name, uids(victims))).collect();
        let mut answers = placer.evaluate_nodes_without(&request, &nodes).into_iter();
        all.retain(|_, _| matches!(answers.next(), Some(NodeVerdict::Fits(_))));
    }
    let result = ExtenderPreemptionResult {
        node_name_to_meta_victims: all,
    };
    Ok(serde_json::to_vec(&result)?)
}

/// `ExtenderBindingResult`, JSON.
pub(super) async fn bind(placer: &Arc<Placer>, body: &[u8]) -> Result<Vec<u8>, CallError> {
    let outcome = match serde_json::from_slice::<ToBind>(body) {
        Err(cause) => Err(syntax(cause).to_string()),
        Ok(to) => {
            let bound = placer.bind(&to).await;
            bound.map_err(|cause| format!("pod {} to node {}: {cause}", to.pod(), to.node))
        }
    };
    let error = outcome.err().map(|cause| format!("stelia-placement: {cause}"));
    let error = error.unwrap_or_default();
    Ok(serde_json::to_vec(&ExtenderBindingResult { error })?)
}
