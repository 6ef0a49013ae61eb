//! The static policy: kubelet's operations on its state.

use std::collections::BTreeMap;

use stelia_kubelet::memory::MemoryBlock;

use super::hints::{check_kinds, free, in_other_group};
use super::refusal::MemoryRefusal;
use super::requests::{Requests, of_container};
use super::state::{MemoryState, give_back, take};
use crate::merge::{Hint, Merged, NodeMask};
use crate::pod::{Container, ContainerKind, Pod};

/// Bytes by NUMA nodes and kind.
type Reusable = BTreeMap<(NodeMask, String), u64>;

/// One kubelet's policy object, from its start to its end.
#[derive(Debug, Clone, Default)]
pub(crate) struct StaticPolicy {
    /// The feature gates `PodLevelResources` and `PodLevelResourceManagers` are on.
    pub(super) pod_level: bool,
    /// The last pod allocated to, and the memory of its init containers. A restart of kubelet loses it.
    reusable: Option<(String, Reusable)>,
}

impl StaticPolicy {
    /// The policy; `pod_level`: the feature gates `PodLevelResources` and `PodLevelResourceManagers` are on.
    pub(crate) fn new(pod_level: bool) -> Self {
        Self {
            pod_level,
            reusable: None,
        }
    }

    /// Allocates a container's memory, from the hint's NUMA nodes and as many more as are needed. `None`: it has none
    /// here.
    ///
    /// # Errors
    /// The container is rejected, or kubelet crashes; the state is unchanged.
    pub(crate) fn allocate(
        &mut self,
        state: &mut MemoryState,
        pod: &Pod,
        container: &Container,
        hint: Merged,
    ) -> Result<Option<Vec<MemoryBlock>>, MemoryRefusal> {
        if !pod.is_guaranteed() || self.hidden(pod) {
            return Ok(None);
        }
        if let Some(blocks) = state.entry(&pod.uid, &container.name).map(<[_]>::to_vec) {
            self.remember(pod, container, &blocks);
            return Ok(Some(blocks));
        }
        let requests = of_container(pod, container, self.pod_level);
        let mask = self.nodes(state, pod, &requests, hint)?;
        let nodes: Vec<u32> = mask.nodes().collect();
        let mut blocks = Vec::new();
        for (kind, size) in requests {
            let again = self.reusable(&pod.uid, mask, &kind);
            let nodes = nodes.clone();
            let block = MemoryBlock { nodes, kind, size };
            take(&mut state.nodes, &block, size.saturating_sub(again));
            blocks.push(block);
        }
        self.remember(pod, container, &blocks);
        state.set(&pod.uid, &container.name, blocks.clone());
        for block in &blocks {
            take_off_init_containers(state, pod, container, block);
        }
        Ok(Some(blocks))
    }

    /// Removes a container; the memory of a pod with memory of its own is released with its last container.
    pub(crate) fn remove(&self, state: &mut MemoryState, pod: &str, container: &str) {
        let Some(entries) = state.entries.get_mut(pod) else {
            return;
        };
        let blocks = entries.remove(container);
        let last = entries.is_empty();
        if last {
            state.entries.remove(pod);
        }
        let blocks = if !(self.pod_level && state.pods.contains_key(pod)) {
            blocks
        } else if last {
            state.pods.remove(pod)
        } else {
            None
        };
        for block in blocks.iter().flatten() {
            give_back(&mut state.nodes, block);
        }
    }

    /// Whether the pod has pod-level resources that kubelet does not manage.
    pub(super) fn hidden(&self, pod: &Pod) -> bool {
        pod.own().is_some() && !self.pod_level
    }

    /// The memory of the pod's init containers, on exactly these NUMA nodes, that its later containers may use.
    pub(super) fn reusable(&self, pod: &str, nodes: NodeMask, kind: &str) -> u64 {
        let own = self.reusable.as_ref().filter(|(uid, _)| uid == pod);
        let memory = own.and_then(|(_, memory)| memory.get(&(nodes, kind.to_owned())));
        memory.copied().unwrap_or(0)
    }

    /// The NUMA nodes to take the memory from: those of the hint, or the best ones where it names none
    /// (`getDefaultHint`). If they have too little, the best of the larger sets that include them
    /// (`extendTopologyManagerHint`).
    pub(super) fn nodes(
        &self,
        state: &MemoryState,
        pod: &Pod,
        requests: &Requests,
        hint: Merged,
    ) -> Result<NodeMask, MemoryRefusal> {
        check_kinds(state, requests)?;
        let (mut nodes, preferred) = match hint.nodes {
            Some(nodes) => (nodes, hint.preferred),
            None => {
                let sets = self.node_sets(state, &pod.uid, requests, Default::default())?;
                let found = best(sets.into_iter()).ok_or(MemoryRefusal::NoNodes)?;
                if hint.preferred && !found.1 {
                    return Err(MemoryRefusal::NotPreferred);
                }
                found
            }
        };
        let has = |(kind, wanted): (&String, &u64)| {
            let amounts = nodes.nodes().filter_map(|node| state.nodes.get(&node));
            amounts.fold(0u64, |sum, node| sum.wrapping_add(free(node, kind))) >= *wanted
        };
        if !requests.iter().all(has) {
            let around = self.node_sets(state, &pod.uid, requests, (NodeMask::default(), nodes))?;
            let found = best(around.into_iter()).ok_or(MemoryRefusal::NoExtension)?;
            if preferred && !found.1 {
                return Err(MemoryRefusal::ExtensionNotPreferred);
            }
            nodes = found.0;
        }
        let chosen = nodes.nodes().filter_map(|id| Some((id, state.nodes.get(&id)?)));
        if in_other_group(&chosen.collect::<Vec<_>>()) {
            Err(MemoryRefusal::OtherGroup)
        } else {
            Ok(nodes)
        }
    }

    /// The pod's later containers may reuse an init container's memory until another container has it. That of other
    /// pods is forgotten (`updatePodReusableMemory`).
    fn remember(&mut self, pod: &Pod, container: &Container, blocks: &[MemoryBlock]) {
        let own = self.reusable.take().filter(|(uid, _)| *uid == pod.uid);
        let mut memory = own.map(|(_, memory)| memory).unwrap_or_default();
        for block in blocks {
            let key = (block.nodes.iter().copied().collect(), block.kind.clone());
            let bytes = memory.entry(key).or_insert(0);
            *bytes = match container.kind {
                ContainerKind::Init => block.size.max(*bytes),
                ContainerKind::Sidecar | ContainerKind::App => bytes.saturating_sub(block.size),
            };
        }
        self.reusable = Some((pod.uid.clone(), memory));
    }
}

/// Preferred hints before others, then the fewest NUMA nodes, then the mask of lower value (`findBestHint`); returns
/// also whether the best is preferred.
fn best(hints: impl Iterator<Item = Hint>) -> Option<(NodeMask, bool)> {
    let sets = hints.filter_map(|hint| Some((!hint.preferred, hint.nodes?.len(), hint.nodes?)));
    sets.min().map(|(not_preferred, _, nodes)| (nodes, !not_preferred))
}

/// Memory that a container reuses from earlier init containers is counted once: it is subtracted from their blocks
/// (`updateInitContainersMemoryBlocks`).
fn take_off_init_containers(state: &mut MemoryState, pod: &Pod, container: &Container, block: &MemoryBlock) {
    let before = pod.containers.iter().take_while(|other| other.name != container.name);
    let Some(entries) = state.entries.get_mut(&pod.uid) else {
        return;
    };
    let mut size = block.size;
    for init in before.filter(|other| other.kind == ContainerKind::Init) {
        let own = entries.get_mut(&init.name).into_iter().flatten();
        for own in own.filter(|own| own.kind == block.kind && own.nodes == block.nodes) {
            let again = size.min(own.size);
            own.size -= again;
            size -= again;
        }
    }
}
