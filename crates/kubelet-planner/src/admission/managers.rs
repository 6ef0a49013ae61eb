//! kubelet's managers during an admission.

use std::collections::BTreeMap;

use stelia_kubelet::memory::MemoryBlock;

use super::{Admission, Cause, ContainerAllocation, Cpus, Merge, Rejection};
use crate::cpus::Fault;
use crate::devices::{Chosen, DeviceManager};
use crate::merge::{HintList, Merged, Policy, Scope};
use crate::node::{Node, NodeState};
use crate::pod::{Container, Pod};
use crate::{cpus, memory};

/// The answer of `GetAffinity` where nothing was merged.
pub(super) const NO_HINT: Merged = Merged {
    nodes: None,
    preferred: false,
    admitted: true,
};

/// kubelet's managers, and what they have allocated to the pod so far.
pub(super) struct Managers<'a> {
    node: &'a Node,
    pod: &'a Pod,
    devices: DeviceManager,
    cpu_policy: Option<cpus::StaticPolicy<'a>>,
    memory_policy: Option<memory::StaticPolicy>,
    state: NodeState,
    containers: Vec<ContainerAllocation>,
    merges: Vec<Merge>,
    faults: Vec<(Option<String>, Fault)>,
}

impl<'a> Managers<'a> {
    pub(super) fn new(node: &'a Node, pod: &'a Pod) -> Result<Self, Box<Rejection>> {
        Ok(Self {
            node,
            pod,
            cpu_policy: node
                .cpu_policy()
                .map_err(|refusal| Rejection::of(Cause::Cpus(refusal)))?,
            devices: DeviceManager::default(),
            memory_policy: node.memory_policy(),
            state: node.state.clone(),
            containers: Vec::new(),
            merges: Vec::new(),
            faults: Vec::new(),
        })
    }

    pub(super) fn admission(self) -> Admission {
        Admission {
            containers: self.containers,
            merges: self.merges,
            faults: self.faults,
            node: Node {
                state: self.state,
                ..self.node.clone()
            },
        }
    }

    /// Allocates for one container after the other, with the given hint, or with a merged one for each.
    pub(super) fn each_container(&mut self, given: Option<Merged>) -> Result<(), Box<Rejection>> {
        for container in &self.pod.containers {
            let hint = match given {
                Some(hint) => hint,
                None => self.merge(Some(container))?,
            };
            self.allocate(container, hint)?;
        }
        Ok(())
    }

    pub(super) fn pod_as_a_whole(&mut self) -> Result<(), Box<Rejection>> {
        let hint = self.merge(None)?;
        match self.is_divided() {
            true => self.allocate_pod(hint),
            false => self.each_container(Some(hint)),
        }
    }

    /// Whether the pod is allocated its resources as a whole, to be divided among its containers.
    fn is_divided(&self) -> bool {
        let scoped =
            self.node.settings.topology_policy != Policy::None && self.node.settings.topology_scope == Scope::Pod;
        scoped && self.node.settings.kubelet.pod_level_resource_managers && self.pod.own().is_some()
    }

    /// The merged hint for a container, or for the pod.
    fn merge(&mut self, container: Option<&Container>) -> Result<Merged, Box<Rejection>> {
        let mut lists = self.device_hints(container);
        lists.extend(self.cpu_hints(container));
        lists.extend(self.memory_hints(container)?);
        let (names, hints): (Vec<String>, Vec<HintList>) = lists.into_iter().unzip();
        let merged = self.node.merger.merge(&hints);
        let named = names.into_iter().zip(hints);
        self.merges.push(Merge {
            container: container.map(|container| container.name.clone()),
            hints: named.filter_map(|(name, hints)| Some((name, hints?))).collect(),
            merged,
        });
        match merged.admitted {
            true => Ok(merged),
            false => Err(self.not_aligned()),
        }
    }

    fn device_hints(&self, container: Option<&Container>) -> Vec<(String, HintList)> {
        let (state, nodes) = (&self.state.devices, self.node.nodes());
        match container {
            Some(container) => self.devices.hints(state, nodes, self.pod, container),
            None => self.devices.pod_hints(state, nodes, self.pod),
        }
    }

    fn cpu_hints(&self, container: Option<&Container>) -> Option<(String, HintList)> {
        let (policy, state) = (self.cpu_policy.as_ref()?, &self.state.cpus);
        let hints = match container {
            Some(container) => policy.hints(state, self.pod, container),
            None => policy.pod_hints(state, self.pod),
        };
        Some((CPU.to_owned(), hints))
    }

    fn memory_hints(&mut self, container: Option<&Container>) -> Result<Vec<(String, HintList)>, Box<Rejection>> {
        let Some(policy) = &self.memory_policy else {
            return Ok(Vec::new());
        };
        let hints = match container {
            Some(container) => policy.hints(&self.state.memory, self.pod, container),
            None => policy.pod_hints(&self.state.memory, self.pod),
        };
        hints.map_err(|refusal| self.refused(Cause::Memory(refusal), container, MEMORY))
    }

    /// The rejection of the last merge's outcome.
    fn not_aligned(&mut self) -> Box<Rejection> {
        let merges = std::mem::take(&mut self.merges);
        let (last, policy) = (merges.last(), self.node.settings.topology_policy);
        let cause = match self.is_divided() {
            true => Cause::PodTopology,
            false => Cause::Topology,
        };
        Box::new(Rejection {
            cause,
            container: last.and_then(|merge| merge.container.clone()),
            resource: last.and_then(|merge| merge.lacking(policy)).map(str::to_owned),
            merges,
        })
    }

    /// Allocates for one container, asking the managers in kubelet's order.
    fn allocate(&mut self, container: &Container, hint: Merged) -> Result<(), Box<Rejection>> {
        let devices = self.allocate_devices(container, hint)?;
        let cpus = self.allocate_cpus(container, hint)?;
        let memory = self.allocate_memory(container, hint)?;
        self.containers.push(ContainerAllocation {
            container: container.name.clone(),
            hint,
            cpus,
            memory,
            devices,
        });
        Ok(())
    }

    fn allocate_devices(
        &mut self,
        container: &Container,
        hint: Merged,
    ) -> Result<BTreeMap<String, Chosen>, Box<Rejection>> {
        let chosen = self
            .devices
            .allocate(&mut self.state.devices, &self.pod.uid, container, hint);
        chosen.map_err(|(resource, refusal)| self.refused(Cause::Devices(refusal), Some(container), &resource))
    }

    fn allocate_cpus(&mut self, container: &Container, hint: Merged) -> Result<Cpus, Box<Rejection>> {
        let Some(policy) = &mut self.cpu_policy else {
            return Ok(Cpus::Shared);
        };
        match policy.allocate(&mut self.state.cpus, self.pod, container, hint.nodes) {
            Ok(None) => Ok(Cpus::Shared),
            Ok(Some(answer)) => {
                let faults = answer.faults.into_iter();
                self.faults
                    .extend(faults.map(|fault| (Some(container.name.clone()), fault)));
                Ok(Cpus::Exclusive(answer.cpus))
            }
            Err(refusal) => Err(self.refused(Cause::Cpus(refusal), Some(container), CPU)),
        }
    }

    fn allocate_memory(&mut self, container: &Container, hint: Merged) -> Result<Vec<MemoryBlock>, Box<Rejection>> {
        let Some(policy) = &mut self.memory_policy else {
            return Ok(Vec::new());
        };
        match policy.allocate(&mut self.state.memory, self.pod, container, hint) {
            Ok(blocks) => Ok(blocks.unwrap_or_default()),
            Err(refusal) => Err(self.refused(Cause::Memory(refusal), Some(container), MEMORY)),
        }
    }

    /// Pod-level resources: the CPU manager and the memory manager are asked once. The device manager allocates nothing
    /// at admission; each container gets its devices when it starts, and fails to start without them.
    fn allocate_pod(&mut self, hint: Merged) -> Result<(), Box<Rejection>> {
        let mut own_cpus = false;
        if let Some(policy) = &mut self.cpu_policy {
            match policy.allocate_pod(&mut self.state.cpus, self.pod, hint.nodes) {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    own_cpus = true;
                    self.faults.extend(answer.faults.into_iter().map(|fault| (None, fault)));
                }
                Err(refusal) => return Err(self.refused(Cause::Cpus(refusal), None, CPU)),
            }
        }
        if let Some(policy) = &mut self.memory_policy
            && let Err(refusal) = policy.allocate_pod(&mut self.state.memory, self.pod, hint)
        {
            return Err(self.refused(Cause::Memory(refusal), None, MEMORY));
        }
        for container in &self.pod.containers {
            let (uid, name) = (&self.pod.uid, &container.name);
            let cpus = self.state.cpus.entry(uid, name).filter(|_| own_cpus).cloned();
            let policy = self.cpu_policy.as_ref();
            let exclusive = policy.is_some_and(|policy| policy.exclusive(self.pod, container) > 0);
            let memory = self.state.memory.entry(uid, name).unwrap_or_default().to_vec();
            let devices = self.devices.allocate(&mut self.state.devices, uid, container, hint);
            self.containers.push(ContainerAllocation {
                container: name.clone(),
                hint,
                cpus: match cpus {
                    Some(cpus) if exclusive => Cpus::Exclusive(cpus),
                    Some(cpus) => Cpus::PodShared(cpus),
                    None => Cpus::Shared,
                },
                memory,
                devices: devices.unwrap_or_default(),
            });
        }
        Ok(())
    }

    fn refused(&mut self, cause: Cause, container: Option<&Container>, resource: &str) -> Box<Rejection> {
        Box::new(Rejection {
            cause,
            container: container.map(|container| container.name.clone()),
            resource: Some(resource.to_owned()),
            merges: std::mem::take(&mut self.merges),
        })
    }
}

/// The resources' names.
const CPU: &str = "cpu";
const MEMORY: &str = "memory";
