//! filter, prioritize, bind.

use std::sync::Arc;

use stelia_text::excerpt;

use super::types::{ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult, HostPriority};
use crate::placer::{Answer, Placer, ToBind, to_its_end};
use crate::request::Request;
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
    if names.len() > MOST_NODES {
        return Err(CallError::TooMany(names.len()));
    }
    placer.ready()?;
    let request = placer
        .asked_for(args.pod.get())
        .map_err(|cause| CallError::Pod(excerpt::excerpt(&cause.to_string())))?;
    Ok((names, request))
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
