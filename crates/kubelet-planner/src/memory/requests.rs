//! What a container or a pod requests of the memory manager.

use std::collections::BTreeMap;

use super::state::kind;
use crate::pod::{Amounts, Container, Pod, together};

/// Bytes by kind.
pub(super) type Requests = BTreeMap<String, u64>;

fn of(amounts: &Amounts) -> Requests {
    let pages = amounts.huge_pages.iter();
    let pages = pages.map(|(size, bytes)| (kind(Some(*size)), *bytes));
    pages.chain(amounts.memory.map(|bytes| (kind(None), bytes))).collect()
}

/// The memory that a container gets for itself; with pod-level resources none, unless it is itself Guaranteed.
pub(super) fn of_container(pod: &Pod, container: &Container, pod_level: bool) -> Requests {
    match pod_level && pod.own().is_some() && !container.resources.is_guaranteed() {
        true => Requests::new(),
        false => of(&container.resources.requests),
    }
}

/// What the pod needs as a whole: its own request, or what its containers need at the same time. Kinds that only init
/// containers and sidecars request are forgotten, as in kubelet.
pub(super) fn of_pod(pod: &Pod, pod_level: bool) -> Requests {
    if let (true, Some(own)) = (pod_level, pod.own()) {
        return of(&own.requests).into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    }
    let containers: Vec<_> = pod
        .containers
        .iter()
        .map(|container| (container.kind, of_container(pod, container, pod_level)))
        .collect();
    let apps = containers.iter().filter(|(kind, _)| *kind == crate::ContainerKind::App);
    let kinds: Vec<&String> = apps.flat_map(|(_, requests)| requests.keys()).collect();
    let sum = |kind: &String| {
        let amounts = containers.iter();
        together(
            amounts.map(|(of, requests)| (*of, requests.get(kind).copied().unwrap_or(0))),
            u64::saturating_add,
        )
    };
    kinds.into_iter().map(|kind| (kind.clone(), sum(kind))).collect()
}
