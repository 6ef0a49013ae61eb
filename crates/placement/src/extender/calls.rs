//! filter, prioritize, preempt, bind.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use stelia_text::excerpt;

use super::types::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult, ExtenderPreemptionArgs,
    ExtenderPreemptionResult, HostPriority, MetaVictims,
};
use crate::placer::{Answer, Placer, ToBind, to_its_end};
use crate::request::Request;
use crate::reservations::Uid;
use crate::score;

/// Most nodes of a call.
const MOST_NODES: usize = 50_000;

/// What is wrong with a call.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("it is not what kube-scheduler sends: {0}")]
    Syntax(String),
    #[error("it has no NodeNames: the extender's nodeCacheCapable must be true")]
    NoNames,
    #[error("it has neither NodeNameToMetaVictims nor NodeNameToVictims")]
    NoVictims,
    #[error("{0} nodes are more than {MOST_NODES}")]
    TooMany(usize),
    #[error("the pod: {0}")]
    Pod(String),
    #[error(transparent)]
    NotReady(#[from] crate::placer::NotReady),
}

fn syntax(cause: serde_json::Error) -> CallError {
    CallError::Syntax(excerpt::cause(&cause))
}

/// The nodes that were named, and what the pod asks; `None` of one that gets no CPUs of its own.
fn read<'a>(placer: &Placer, body: &'a [u8]) -> Result<(Vec<&'a str>, Option<Request>), CallError> {
    let args: ExtenderArgs<'a> = serde_json::from_slice(body).map_err(syntax)?;
    let names = match (args.node_names, args.nodes) {
        (Some(names), _) => names,
        (None, _) => return Err(CallError::NoNames),
    };
    let request = asked(placer, names.len(), args.pod)?;
    Ok((names, request))
}

/// What the pod asks, where so many nodes are asked about it.
fn asked(placer: &Placer, nodes: usize, pod: &RawValue) -> Result<Option<Request>, CallError> {
    if nodes > MOST_NODES {
        return Err(CallError::TooMany(nodes));
    }
    placer.ready()?;
    placer
        .asked_for(pod.get())
        .map_err(|cause| CallError::Pod(excerpt::excerpt(&cause.to_string())))
}

/// `ExtenderFilterResult`, JSON. What is wrong is its `Error`, so the pod waits and the scheduler tells why.
pub(super) fn filter(placer: &Placer, body: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let mut result = ExtenderFilterResult::default();
    match read(placer, body) {
        Err(cause) => result.error = format!("stelia-placement: {cause}"),
        Ok((names, None)) => result.node_names = Some(names),
        Ok((names, Some(request))) => {
            let mut fit = Vec::with_capacity(names.len());
            placer.answers(&request, &names, |name, answer| match answer {
                Answer::Fits(_) => fit.push(name),
                Answer::Full(why) => drop(result.failed_nodes.insert(name, why)),
                Answer::Closed(why) => drop(result.failed_and_unresolvable_nodes.insert(name, why)),
            });
            result.node_names = Some(fit);
        }
    }
    serde_json::to_vec(&result)
}

/// `HostPriorityList`, JSON.
pub(super) fn prioritize(placer: &Placer, body: &[u8]) -> Result<Vec<u8>, CallError> {
    let (names, request) = read(placer, body)?;
    let mut list = Vec::with_capacity(names.len());
    match request {
        None => list.extend(names.into_iter().map(|host| HostPriority { host, score: 0 })),
        Some(request) => placer.answers(&request, &names, |host, answer| {
            let score = match answer {
                Answer::Fits(total) => i64::from(score::priority(total)),
                Answer::Full(_) | Answer::Closed(_) => 0,
            };
            list.push(HostPriority { host, score });
        }),
    }
    serde_json::to_vec(&list).map_err(syntax)
}

/// `ExtenderPreemptionResult`, JSON: the nodes where the pod finds room once their victims are gone, with these victims. It has no place for an
/// error.
pub(super) fn preempt(placer: &Placer, body: &[u8]) -> Result<Vec<u8>, CallError> {
    let args: ExtenderPreemptionArgs<'_> = serde_json::from_slice(body).map_err(syntax)?;
    let mut all: BTreeMap<&str, MetaVictims<'_>> = match (args.node_name_to_meta_victims, args.node_name_to_victims) {
        (Some(victims), _) => victims
            .into_iter()
            .map(|(name, victims)| (name, victims.unwrap_or_default()))
            .collect(),
        (None, Some(victims)) => victims
            .into_iter()
            .map(|(name, victims)| (name, victims.unwrap_or_default().into()))
            .collect(),
        (None, None) => return Err(CallError::NoVictims),
    };
    // A pod that gets no CPUs of its own finds room wherever counting says so.
    if let Some(request) = asked(placer, all.len(), args.pod)? {
        let uids = |victims: &MetaVictims<'_>| {
            let pods = victims.pods.iter().flatten();
            pods.filter_map(|pod| Uid::parse(pod.uid)).collect()
        };
        let nodes: Vec<(&str, Vec<Uid>)> = all.iter().map(|(name, victims)| (*name, uids(victims))).collect();
        placer.answers_without(&request, nodes, |name, answer| {
            if !matches!(answer, Answer::Fits(_)) {
                all.remove(name);
            }
        });
    }
    let result = ExtenderPreemptionResult {
        node_name_to_meta_victims: all,
    };
    serde_json::to_vec(&result).map_err(syntax)
}

/// `ExtenderBindingResult`, JSON.
pub(super) async fn bind(placer: &Arc<Placer>, body: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let error = match serde_json::from_slice::<ExtenderBindingArgs>(body) {
        Err(cause) => format!("stelia-placement: {}", syntax(cause)),
        Ok(args) => {
            let to = ToBind {
                namespace: args.pod_namespace,
                name: args.pod_name,
                uid: args.pod_uid,
                node: args.node.into(),
            };
            match to_its_end(placer.clone(), to).await {
                Ok(()) => String::new(),
                Err(cause) => format!("stelia-placement: {cause}"),
            }
        }
    };
    serde_json::to_vec(&ExtenderBindingResult { error })
}
