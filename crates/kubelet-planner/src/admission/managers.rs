//! kubelet's managers during an admission.

use super::{Admission, Cause, ContainerAllocation, Cpus, Merge, Rejection};
use crate::cpus::Fault;
use crate::devices::{DeviceManager, DeviceRefusal};
use crate::merge::{Hint, HintList, Merged, NodeMask, Policy};
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
    pub(super) fn new(node: &'a Node, pod: &'a Pod) -> Self {
        Self {
            node,
            pod,
            cpu_policy: node.cpu_policy(),
            devices: DeviceManager::default(),
            memory_policy: node.memory_policy(),
            state: node.state.clone(),
            containers: Vec::new(),
            merges: Vec::new(),
            faults: Vec::new(),
        }
    }

    pub(super) fn admission(self) -> Admission {
        Admission {
            containers: self.containers,
            merges: self.merges,
            faults: self.faults,
            node: self.node.with_state(self.state),
        }
    }

    /// The rejection, unless it depends on devices of containers before, of which the hints are not known: these containers have CPUs and memory
    /// where their devices are. Too few CPUs or devices on all NUMA nodes together do not depend on that.
    pub(super) fn unless_unplaced(&self, rejection: Box<Rejection>) -> Box<Rejection> {
        let Some((merge, before)) = rejection.merges.split_last() else {
            return rejection;
        };
        let is_counted = |name: &str| name == CPU || self.state.devices.knows(name);
        let is_short = merge
            .hints
            .iter()
            .any(|(name, hints)| hints.is_empty() && is_counted(name));
        let depends = !is_short && matches!(rejection.cause, Cause::Topology | Cause::Memory(_));
        let open = before.iter().find_map(|merge| merge.unplaced.first());
        match open.filter(|_| depends && self.node.nodes().len() > 1) {
            Some(resource) => Box::new(Rejection {
                cause: DeviceRefusal::Unplaced(resource.clone()).into(),
                resource: Some(resource.clone()),
                ..*rejection
            }),
            None => rejection,
        }
    }

    /// Checks that the pod is admitted whatever the unknown hints are. A merge that fails without them fails with them too: a further list of hints never
    /// adds a merged hint that all resources prefer.
    ///
    /// # Errors
    /// The hints may keep the pod from being admitted, or nothing is known of a resource.
    pub(super) fn check_unknown_hints(&mut self) -> Result<(), Box<Rejection>> {
        let all = self.pod.containers.iter();
        let mut wanted = all.flat_map(|container| {
            container
                .resources
                .limits
                .devices
                .iter()
                .map(move |(name, count)| (container, name, count))
        });
        let unrecorded = |(_, name, count): &(_, &String, &u64)| **count > 0 && !self.node.state.devices.is_known(name);
        if let Some((container, resource, _)) = wanted.find(unrecorded) {
            let refusal = DeviceRefusal::Unrecorded(resource.clone());
            return Err(self.refused(refusal, Some(container), Some(resource)));
        }
        let is_strict = matches!(
            self.node.settings.topology_policy,
            Policy::Restricted | Policy::SingleNumaNode
        );
        let open = self.merges.iter().find_map(|merge| merge.unplaced.first());
        match open.filter(|_| is_strict && self.node.nodes().len() > 1).cloned() {
            Some(resource) => Err(self.refused(DeviceRefusal::Unplaced(resource.clone()), None, Some(&resource))),
            None => Ok(()),
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
        if self.is_divided() {
            self.allocate_pod(hint)
        } else {
            self.each_container(Some(hint))
        }
    }

    /// Whether the pod is allocated its resources as a whole, to be divided among its containers.
    fn is_divided(&self) -> bool {
        self.node.divides(self.pod)
    }

    /// The merged hint for a container, or for the pod.
    fn merge(&mut self, container: Option<&Container>) -> Result<Merged, Box<Rejection>> {
        let mut lists = self
            .devices
            .hints(&self.state.devices, self.node.nodes(), self.pod, container)
            .map_err(|refusal| self.refused(refusal, container, None))?;
        if let Some(policy) = &self.cpu_policy {
            lists.push((CPU.to_owned(), policy.hints(&self.state.cpus, self.pod, container)));
        }
        let mut is_grouped = false;
        if let Some(policy) = &self.memory_policy {
            let others = lists.iter().filter_map(|(_, hints)| nodes_of(hints.as_deref()?));
            let others = others.reduce(|some, others| some & others);
            let hints = policy.hints(&self.state.memory, self.pod, container, others);
            let alone = || policy.hints(&self.state.memory.without_groups(), self.pod, container, others);
            is_grouped = hints
                .as_ref()
                .is_ok_and(|hints| !hints.is_empty() && !prefer_any(hints))
                && alone().is_ok_and(|hints| prefer_any(&hints));
            lists.extend(hints.map_err(|refusal| self.refused(refusal, container, Some(MEMORY)))?);
        }
        let (names, hints): (Vec<String>, Vec<HintList>) = lists.into_iter().unzip();
        let merged = self.node.merger.merge(&hints);
        let named = names.into_iter().zip(hints);
        let policy = self.cpu_policy.as_ref();
        let merge = Merge {
            container: container.map(|container| container.name.clone()),
            bound: policy.and_then(|policy| policy.bound(&self.state.cpus, self.pod, container?)),
            is_grouped,
            unplaced: DeviceManager::wanted_among(&self.state.devices.unplaced, self.pod, container),
            hints: named.filter_map(|(name, hints)| Some((name, hints?))).collect(),
            merged,
        };
        let lacking = merge.lacking(self.node.settings.topology_policy).map(str::to_owned);
        self.merges.push(merge);
        match (merged.admitted, self.is_divided()) {
            (true, _) => Ok(merged),
            (false, true) => Err(self.refused(Cause::PodTopology, container, lacking.as_deref())),
            (false, false) => Err(self.refused(Cause::Topology, container, lacking.as_deref())),
        }
    }

    /// Allocates for one container, asking the managers in kubelet's order.
    fn allocate(&mut self, container: &Container, hint: Merged) -> Result<(), Box<Rejection>> {
        let (pod, this) = (self.pod, Some(container));
        let devices = self
            .devices
            .allocate(&mut self.state.devices, &pod.uid, container, hint);
        let devices = devices.map_err(|(resource, refusal)| self.refused(refusal, this, Some(&resource)))?;
        let answer = match &mut self.cpu_policy {
            Some(policy) => policy.allocate(&mut self.state.cpus, pod, container, hint.nodes),
            None => Ok(None),
        };
        let cpus = match answer.map_err(|refusal| self.refused(refusal, this, Some(CPU)))? {
            None => Cpus::Shared,
            Some(answer) => {
                let faults = answer.faults.into_iter();
                self.faults
                    .extend(faults.map(|fault| (Some(container.name.clone()), fault)));
                Cpus::Exclusive(answer.cpus)
            }
        };
        let memory = match &mut self.memory_policy {
            Some(policy) => policy.allocate(&mut self.state.memory, pod, container, hint),
            None => Ok(None),
        };
        let memory = memory.map_err(|refusal| self.refused(refusal, this, Some(MEMORY)))?;
        self.containers.push(ContainerAllocation {
            container: container.name.clone(),
            hint,
            cpus,
            memory: memory.unwrap_or_default(),
            devices,
        });
        Ok(())
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
                Err(refusal) => return Err(self.refused(refusal, None, Some(CPU))),
            }
        }
        if let Some(policy) = &mut self.memory_policy
            && let Err(refusal) = policy.allocate_pod(&mut self.state.memory, self.pod, hint)
        {
            return Err(self.refused(refusal, None, Some(MEMORY)));
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

    fn refused(
        &mut self,
        cause: impl Into<Cause>,
        container: Option<&Container>,
        resource: Option<&str>,
    ) -> Box<Rejection> {
        Box::new(Rejection {
            cause: cause.into(),
            container: container.map(|container| container.name.clone()),
            resource: resource.map(str::to_owned),
            merges: std::mem::take(&mut self.merges),
        })
    }
}

/// The NUMA nodes of a list's masks; `None` where it has none, or a hint for any nodes.
fn nodes_of(hints: &[Hint]) -> Option<NodeMask> {
    let all = hints
        .iter()
        .try_fold(NodeMask::default(), |all, hint| Some(all | hint.nodes?));
    all.filter(|_| !hints.is_empty())
}

fn prefer_any(lists: &[(String, HintList)]) -> bool {
    let mut hints = lists.iter().filter_map(|(_, hints)| hints.as_ref()).flatten();
    hints.any(|hint| hint.preferred)
}

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
