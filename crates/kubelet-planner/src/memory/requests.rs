//! What a container or a pod requests of the memory manager.

use std::collections::BTreeMap;

use super::state::kind;
use crate::pod::{Amounts, Container, ContainerKind, Pod, together};

/// Bytes by kind.
pub(super) type Requests = BTreeMap<String, u64>;

fn of(amounts: &Amounts) -> Requests {
    let pages = amounts.huge_pages.iter();
    let pages = pages.map(|(size, bytes)| (kind(Some(*size)), *bytes));
    pages.chain(amounts.memory.map(|bytes| (kind(None), bytes))).collect()
}

/// The memory that a container gets for itself; with pod-level resources none, unless it is itself Guaranteed.
pub(super) fn of_container(pod: &Pod, container: &Container, pod_level: bool) -> Requests {
    if pod_level && pod.own().is_some() && !container.resources.is_guaranteed() {
        Requests::new()
    } else {
        of(&container.resources.requests)
    }
}

/// What the pod needs as a whole: its own request, or what its containers need at the same time. Kinds that only init
/// containers and sidecars request are forgotten, as in kubelet.
pub(super) fn of_pod(pod: &Pod, pod_level: bool) -> Requests {
    if let (true, Some(own)) = (pod_level, pod.own()) {
        return of(&own.requests).into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    }
    let containers = pod.containers.iter();
    let requests = containers.map(|container| (container.kind, of_container(pod, container, pod_level)));
    let requests: Vec<_> = requests.collect();
    let apps = requests.iter().filter(|(kind, _)| *kind == ContainerKind::App);
    let sum = |kind: &String| {
        let amounts = requests.iter();
        let amounts = amounts.map(|(of, own)| (*of, own.get(kind).copied().unwrap_or(0)));
        together(amounts, u64::saturating_add)
    };
    let kinds = apps.flat_map(|(_, own)| own.keys());
    kinds.map(|kind| (kind.clone(), sum(kind))).collect()
}
