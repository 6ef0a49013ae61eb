//! Pod-level resources: one allocation for the pod, divided among its containers (Topology Manager's scope pod, feature
//! gate `PodLevelResourceManagers`). Not in scope container: there containers are allocated one by one, and those that
//! are not themselves Guaranteed run on the node's shared pool.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;

use super::assign::{AssignedCpus, take};
use super::policy::StaticPolicy;
use super::refusal::CpuRefusal;
use super::state::CpuState;
use crate::merge::NodeMask;
use crate::pod::{ContainerKind, Pod};

impl StaticPolicy<'_> {
    /// Allocates a pod with pod-level resources its CPUs and divides them: exclusive slices for its Guaranteed
    /// containers, and one pool that all others share. An init container has everything except the slices of the
    /// sidecars before it. `None`: the pod runs on the node's shared pool.
    ///
    /// The answer has the pod's CPUs, the state each container's. Faults in the division are among the answer's faults.
    ///
    /// # Errors
    /// The pod is rejected. Where the division fails, kubelet leaves the pod's CPUs in the state, and so does this.
    pub fn allocate_pod(
        &mut self,
        state: &mut CpuState,
        pod: &Pod,
        affinity: Option<NodeMask>,
    ) -> Result<Option<AssignedCpus>, CpuRefusal> {
        let count = self.exclusive_in_all(pod);
        if count == 0 || pod.own().is_none() {
            return Ok(None);
        }
        self.check_pools(pod)?;
        self.check_cores(state, count)?;
        let mut answer = self.allocate_cpus(state, count, affinity, &CpuSet::new())?;
        state.pods.insert(pod.uid.clone(), answer.cpus.clone());
        let mut slices = BTreeMap::new();
        // What sidecars and containers have not taken yet.
        let mut pool = answer.cpus.clone();
        for container in &pod.containers {
            let count = self.exclusive(pod, container);
            if count == 0 {
                if container.kind == ContainerKind::Init {
                    slices.insert(container.name.as_str(), pool.clone());
                }
                continue;
            }
            let slice = take(self.topology, self.options, self.kubelet, &pool, count)?;
            if container.kind != ContainerKind::Init {
                pool = pool.difference(&slice.cpus);
            }
            slices.insert(container.name.as_str(), slice.cpus);
            answer.faults.extend(slice.faults);
        }
        for container in &pod.containers {
            let cpus = slices.get(container.name.as_str()).unwrap_or(&pool);
            state.set(&pod.uid, &container.name, cpus.clone());
        }
        Ok(Some(answer))
    }

    /// Checks that every container without exclusive CPUs has a pool to run on, and every init container its CPUs.
    pub(super) fn check_pools(&self, pod: &Pod) -> Result<(), CpuRefusal> {
        let total = self.exclusive_in_all(pod);
        let (mut running, mut sharing) = (0, false);
        for container in &pod.containers {
            let count = self.exclusive(pod, container);
            match container.kind {
                ContainerKind::Init if count + running > total && count > 0 => {
                    let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
                    return Err(CpuRefusal::InitContainerTooLarge {
                        requested: count,
                        available: signed(total) - signed(running),
                    });
                }
                ContainerKind::Init if count == 0 && running >= total => {
                    return Err(CpuRefusal::EmptyPoolOfInitContainers);
                }
                ContainerKind::Init => {}
                ContainerKind::Sidecar | ContainerKind::App if count == 0 => sharing = true,
                ContainerKind::Sidecar | ContainerKind::App => running += count,
            }
        }
        if sharing && running >= total {
            Err(CpuRefusal::EmptyPodSharedPool)
        } else {
            Ok(())
        }
    }
}
