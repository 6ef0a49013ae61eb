//! The managers in the middle of an admission.

use super::{Admission, Allocation, Cause, Cpus, Merge, Rejection};
use crate::planner::cpus::{self, Fault};
use crate::planner::devices::Given;
use crate::planner::merge::{Hint, HintList, Merged, NodeMask, Policy, Scope};
use crate::planner::node::{Node, State};
use crate::planner::pod::{Container, Pod};

/// What `GetAffinity` tells where nothing was merged.
pub(super) const NO_HINT: Merged = Merged {
    nodes: None,
    preferred: false,
    admitted: true,
};

/// kubelet's managers and what they have given to a pod so far.
pub(super) struct Managers<'a> {
    node: &'a Node,
    pod: &'a Pod,
    for_cpus: cpus::Pod,
    cpu_policy: Option<cpus::StaticPolicy<'a>>,
    state: State,
    containers: Vec<Allocation>,
    merges: Vec<Merge>,
    faults: Vec<(Option<String>, Fault)>,
}

impl<'a> Managers<'a> {
    pub(super) fn new(node: &'a Node, pod: &'a Pod) -> Result<Self, Box<Rejection>> {
        Ok(Self {
            node,
            pod,
            for_cpus: pod.for_cpus(),
            cpu_policy: node
                .cpu_policy()
                .map_err(|refusal| Rejection::of(Cause::Cpus(refusal)))?,
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

    /// One container after the other, each with the given hint, or with one of its own.
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

    /// Whether the pod gets its resources as a whole, to be divided among its containers.
    fn is_divided(&self) -> bool {
        let scoped =
            self.node.settings.topology_policy != Policy::None && self.node.settings.topology_scope == Scope::Pod;
        scoped && self.node.settings.kubelet.pod_level_resource_managers && self.pod.own().is_some()
    }

    /// The merged hint for a container, or for the pod.
    fn merge(&mut self, container: Option<&Container>) -> Result<Merged, Box<Rejection>> {
        let mut lists = Vec::new();
        if let Some(policy) = &self.cpu_policy {
            let state = &self.state.cpus;
            let hints = match container.and_then(|container| self.for_cpus.container(&container.name)) {
                Some(container) => policy.hints(state, &self.for_cpus, container),
                None => policy.pod_hints(state, &self.for_cpus),
            };
            let hint = |hint: cpus::Hint| Hint {
                nodes: Some(NodeMask::from_bits(hint.nodes)),
                preferred: hint.preferred,
            };
            let hints = hints.map(|hints| hints.into_iter().map(hint).collect());
            lists.push(("cpu".to_owned(), hints));
        }
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

    /// What the last merge came to is not admitted.
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

    fn allocate(&mut self, container: &Container, hint: Merged) -> Result<(), Box<Rejection>> {
        let affinity = hint.nodes.map(NodeMask::bits);
        let mut cpus = Cpus::Shared;
        if let (Some(policy), Some(container)) = (&mut self.cpu_policy, self.for_cpus.container(&container.name)) {
            match policy.allocate(&mut self.state.cpus, &self.for_cpus, container, affinity) {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    let faults = answer.faults.into_iter();
                    self.faults
                        .extend(faults.map(|fault| (Some(container.name.clone()), fault)));
                    cpus = Cpus::Exclusive(answer.cpus);
                }
                Err(refusal) => return Err(self.refused(Cause::Cpus(refusal), Some(container.name.clone()), "cpu")),
            }
        }
        self.containers.push(Allocation {
            container: container.name.clone(),
            hint,
            cpus,
            memory: Vec::new(),
            devices: Given::new(),
        });
        Ok(())
    }

    /// Pod-level resources: each manager is asked once. The device manager gives nothing now.
    fn allocate_pod(&mut self, hint: Merged) -> Result<(), Box<Rejection>> {
        let affinity = hint.nodes.map(NodeMask::bits);
        let mut own = false;
        if let Some(policy) = &mut self.cpu_policy {
            match policy.allocate_pod(&mut self.state.cpus, &self.for_cpus, affinity) {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    own = true;
                    self.faults.extend(answer.faults.into_iter().map(|fault| (None, fault)));
                }
                Err(refusal) => return Err(self.refused(Cause::Cpus(refusal), None, "cpu")),
            }
        }
        for (container, as_cpus) in self.pod.containers.iter().zip(&self.for_cpus.containers) {
            let cpus = self.state.cpus.entry(&self.pod.uid, &container.name).filter(|_| own);
            let exclusive = self.for_cpus.exclusive(as_cpus, true) > 0;
            self.containers.push(Allocation {
                container: container.name.clone(),
                hint,
                cpus: match cpus.cloned() {
                    Some(cpus) if exclusive => Cpus::Exclusive(cpus),
                    Some(cpus) => Cpus::PodShared(cpus),
                    None => Cpus::Shared,
                },
                memory: Vec::new(),
                devices: Given::new(),
            });
        }
        Ok(())
    }

    fn refused(&mut self, cause: Cause, container: Option<String>, resource: &str) -> Box<Rejection> {
        Box::new(Rejection {
            cause,
            container,
            resource: Some(resource.to_owned()),
            merges: std::mem::take(&mut self.merges),
        })
    }
}
