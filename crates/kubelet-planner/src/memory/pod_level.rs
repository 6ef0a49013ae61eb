//! Pod-level resources: one allocation for the pod, divided among its containers (Topology Manager's scope pod, feature gate
//! `PodLevelResourceManagers`).

use std::collections::BTreeMap;

use stelia_kubelet::memory::MemoryBlock;

use super::policy::StaticPolicy;
use super::refusal::MemoryRefusal;
use super::requests::{Requests, of_container, of_pod};
use super::state::{MemoryState, take};
use crate::merge::Merged;
use crate::pod::{ContainerKind, Pod};

impl StaticPolicy {
    /// Allocates a pod with pod-level resources its memory and divides it: blocks of their own for its Guaranteed
    /// containers, the rest for all others together. An init container without its own has everything except that of
    /// the sidecars before it. `false`: the pod has no memory here.
    ///
    /// # Errors
    /// The pod is rejected, or kubelet crashes; the state is unchanged.
    pub(crate) fn allocate_pod(
        &mut self,
        state: &mut MemoryState,
        pod: &Pod,
        hint: Merged,
    ) -> Result<bool, MemoryRefusal> {
        if !pod.is_guaranteed() {
            return Ok(false);
        }
        let total = of_pod(pod, self.pod_level);
        self.check_pools(pod)?;
        let nodes: Vec<u32> = self.nodes(state, pod, &total, hint)?.nodes().collect();
        let block = |(kind, size): (&String, &u64)| MemoryBlock {
            nodes: nodes.clone(),
            kind: kind.clone(),
            size: *size,
        };
        let blocks = |requests: &Requests| -> Vec<MemoryBlock> {
            let some = requests.iter().filter(|(_, bytes)| **bytes > 0);
            some.map(block).collect()
        };
        let (mut pool, mut own) = (total.clone(), BTreeMap::new());
        for container in &pod.containers {
            let requests = of_container(pod, container, self.pod_level);
            if requests.is_empty() {
                if container.kind == ContainerKind::Init {
                    own.insert(container.name.as_str(), blocks(&pool));
                }
                continue;
            }
            own.insert(container.name.as_str(), blocks(&requests));
            if container.kind != ContainerKind::Init {
                take_from(&mut pool, &requests, container.kind);
            }
        }
        let shared = blocks(&pool);
        let whole: Vec<MemoryBlock> = total.iter().map(block).collect();
        for block in &whole {
            take(&mut state.nodes, block, block.size);
        }
        state.pods.insert(pod.uid.clone(), whole);
        for container in &pod.containers {
            let blocks = own.remove(container.name.as_str()).unwrap_or_else(|| shared.clone());
            state.set(&pod.uid, &container.name, blocks);
        }
        Ok(true)
    }

    /// Checks that every container without memory of its own has a pool to use, and every init container its memory.
    pub(super) fn check_pools(&self, pod: &Pod) -> Result<(), MemoryRefusal> {
        let total = of_pod(pod, self.pod_level);
        let (mut running, mut sharing) = (Requests::new(), false);
        let used = |running: &Requests, kind: &String| running.get(kind).copied().unwrap_or(0);
        for container in &pod.containers {
            let requests = of_container(pod, container, self.pod_level);
            if container.kind != ContainerKind::Init {
                sharing |= requests.is_empty();
                for (kind, bytes) in requests {
                    let sum = running.entry(kind).or_insert(0);
                    *sum = sum.wrapping_add(bytes);
                }
                continue;
            }
            for (kind, total) in &total {
                let available = total.wrapping_sub(used(&running, kind));
                let requested = used(&requests, kind);
                if requests.is_empty() && used(&running, kind) >= *total {
                    return Err(MemoryRefusal::EmptyPoolOfInitContainers(kind.clone()));
                }
                if requested > available {
                    let kind = kind.clone();
                    return Err(MemoryRefusal::InitContainerTooLarge {
                        kind,
                        requested,
                        available,
                    });
                }
            }
        }
        let full = total.iter().find(|(kind, total)| used(&running, kind) >= **total);
        match full.filter(|_| sharing) {
            Some((kind, _)) => Err(MemoryRefusal::EmptyPodSharedPool(kind.clone())),
            None => Ok(()),
        }
    }
}

/// Takes from the pool; below zero it wraps around. A sidecar's kinds that the pod does not have are ignored.
fn take_from(pool: &mut Requests, requests: &Requests, of: ContainerKind) {
    for (kind, bytes) in requests {
        match pool.get_mut(kind) {
            Some(available) => *available = available.wrapping_sub(*bytes),
            None if of == ContainerKind::App && *bytes > 0 => {
                pool.insert(kind.clone(), 0u64.wrapping_sub(*bytes));
            }
            None => {}
        }
    }
}
