//! The static policy: kubelet's operations on its state.

use stelia_cpus::CpuSet;

use super::assign::{AssignedCpus, ExclusiveRequest, allocate, take};
use super::options::{CpuOptions, Kubelet};
use super::refusal::CpuRefusal;
use super::state::CpuState;
use super::topology::CpuGroups;
use crate::merge::NodeMask;
use crate::pod::{Container, ContainerKind, Pod, together};

/// One kubelet's policy object, from its start to its end.
///
/// ```
/// use std::collections::BTreeMap;
/// use stelia_cpus::CpuSet;
/// use kubelet_planner::cpus::{CpuState, CpuGroups, Kubelet, CpuOptions, StaticPolicy};
/// use kubelet_planner::{Amounts, Container, ContainerKind, Pod, Resources};
/// use stelia_cpus::{Cpu, Topology};
///
/// let cpu = |cpu: u32| (cpu, Cpu { package: 0, core: cpu / 2, node: 0 });
/// let node = Topology { cpus: (0..8).map(cpu).collect() };
/// let topology = CpuGroups::new(&node, &BTreeMap::new());
/// let mut policy = StaticPolicy::new(&topology, CpuOptions::default(), Kubelet::default(), 2, &CpuSet::new())?;
/// let mut state = CpuState::default();
/// policy.start(&mut state)?;
///
/// let amounts = Amounts { milli_cpus: Some(4000), memory: Some(1 << 30), ..Amounts::default() };
/// let vm = Container::new("vm", ContainerKind::App, Resources::guaranteed(amounts));
/// let pod = Pod { uid: "7d3c".into(), resources: None, containers: vec![vm] };
/// policy.allocate(&mut state, &pod, &pod.containers[0], None)?;
/// assert_eq!(state.entry("7d3c", "vm"), Some(&"2-5".parse()?));
/// assert_eq!(state.default.to_string(), "0-1,6-7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct StaticPolicy<'a> {
    pub(super) topology: &'a CpuGroups,
    pub(super) options: CpuOptions,
    pub(super) kubelet: Kubelet,
    reserved: CpuSet,
    /// The reserved CPUs with their siblings.
    reserved_cores: CpuSet,
    /// The last pod allocated to, and the CPUs of its init containers. kubelet keeps this in memory only: a restart
    /// loses it.
    reusable: Option<(String, CpuSet)>,
}

impl<'a> StaticPolicy<'a> {
    /// The policy that reserves `reserved` or, where that is empty, `count` CPUs of its own choice. Whether the options
    /// are compatible with each other and the node is checked by [`CpuOptions::check`].
    ///
    /// # Errors
    /// `reserved` does not have `count` CPUs, or one of them does not exist.
    pub fn new(
        topology: &'a CpuGroups,
        options: CpuOptions,
        kubelet: Kubelet,
        count: usize,
        reserved: &CpuSet,
    ) -> Result<Self, CpuRefusal> {
        let reserved = if reserved.is_empty() {
            match take(topology, options, kubelet, &topology.cpus(), count) {
                Ok(answer) => answer.cpus,
                Err(CpuRefusal::WouldNotReturn) => return Err(CpuRefusal::WouldNotReturn),
                Err(_) => CpuSet::new(),
            }
        } else {
            reserved.clone()
        };
        if reserved.len() != count {
            return Err(CpuRefusal::ReservedCount { reserved, count });
        }
        if let Some(unknown) = reserved.iter().find(|cpu| topology.core(*cpu).is_none()) {
            return Err(CpuRefusal::ReservedUnknown(unknown));
        }
        Ok(Self {
            topology,
            options,
            kubelet,
            reserved_cores: topology.siblings(&reserved),
            reserved,
            reusable: None,
        })
    }

    /// The reserved CPUs: never assigned.
    pub fn reserved(&self) -> &CpuSet {
        &self.reserved
    }

    /// Starts on a state: fills an empty one, checks another (`validateState`).
    ///
    /// # Errors
    /// The state contradicts the node or the reserved CPUs: kubelet does not start.
    pub fn start(&self, state: &mut CpuState) -> Result<(), CpuRefusal> {
        let strict = self.options.strict_cpu_reservation;
        let node = if strict {
            self.topology.cpus().difference(&self.reserved)
        } else {
            self.topology.cpus()
        };
        if state.default.is_empty() {
            if !state.entries.is_empty() {
                return Err(CpuRefusal::DefaultEmpty);
            }
            state.default = node;
            return Ok(());
        }
        let default = state.default.clone();
        let inside = self.reserved.intersection(&default);
        if strict && !inside.is_empty() {
            return Err(CpuRefusal::ReservedInDefault {
                reserved: inside,
                default,
            });
        }
        if !strict && inside != self.reserved {
            return Err(CpuRefusal::ReservedNotInDefault {
                reserved: self.reserved.clone(),
                default,
            });
        }
        let mut known = default.clone();
        for (pod, entries) in &state.entries {
            for (container, cpus) in entries {
                if !cpus.is_disjoint(&default) {
                    return Err(CpuRefusal::EntryInDefault {
                        pod: pod.clone(),
                        container: container.clone(),
                        cpus: cpus.clone(),
                        default,
                    });
                }
                known = known.union(cpus);
            }
        }
        if self.kubelet.pod_level_resource_managers {
            known = state.pods.values().fold(known, |known, cpus| known.union(cpus));
        }
        if known == node {
            Ok(())
        } else {
            Err(CpuRefusal::OtherCpus { node, state: known })
        }
    }

    /// Allocates a container's CPUs, those of the affinity's NUMA nodes first. `None`: it runs on the shared pool.
    ///
    /// # Errors
    /// The container is rejected; the state is unchanged.
    pub fn allocate(
        &mut self,
        state: &mut CpuState,
        pod: &Pod,
        container: &Container,
        affinity: Option<NodeMask>,
    ) -> Result<Option<AssignedCpus>, CpuRefusal> {
        let count = self.exclusive(pod, container);
        if count == 0 {
            return Ok(None);
        }
        self.check_cores(state, count)?;
        if let Some(cpus) = state.entry(&pod.uid, &container.name).cloned() {
            self.remember(pod, container, &cpus);
            return Ok(Some(AssignedCpus {
                cpus,
                faults: Vec::new(),
            }));
        }
        let reusable = self.reusable(&pod.uid);
        let answer = self.allocate_cpus(state, count, affinity, &reusable)?;
        state.set(&pod.uid, &container.name, answer.cpus.clone());
        self.remember(pod, container, &answer.cpus);
        Ok(Some(answer))
    }

    /// Removes a container: CPUs that no other container of its pod has return to the shared pool; the CPUs of a pod
    /// with CPUs of its own return with its last container.
    pub fn remove(&self, state: &mut CpuState, pod: &str, container: &str) {
        let Some(cpus) = state.remove(pod, container) else {
            return;
        };
        let released = match state.pods.get(pod) {
            Some(_) if self.kubelet.pod_level_resource_managers && state.entries.contains_key(pod) => return,
            Some(own) if self.kubelet.pod_level_resource_managers => own.clone(),
            _ => cpus.difference(&state.siblings(pod, container)),
        };
        if self.kubelet.pod_level_resource_managers {
            state.pods.remove(pod);
        }
        state.default = state.default.union(&released);
    }

    /// The number of exclusive CPUs of a container: a whole number, in a Guaranteed pod; 0 for the shared pool
    /// (`guaranteedCPUs` of `policy_static.go`). With pod-level resources the container itself must be Guaranteed, and
    /// the feature gate on.
    pub(crate) fn exclusive(&self, pod: &Pod, container: &Container) -> usize {
        let qualifies = pod.own().is_none() || !self.hidden(pod) && container.resources.is_guaranteed();
        if qualifies && pod.is_guaranteed() {
            whole(container.resources.requests.milli_cpus)
        } else {
            0
        }
    }

    /// The number of exclusive CPUs of the pod as a whole: its own request, or what its containers need at the same
    /// time (`podGuaranteedCPUs`).
    pub(crate) fn exclusive_in_all(&self, pod: &Pod) -> usize {
        match pod.own() {
            Some(_) if self.hidden(pod) || !pod.is_guaranteed() => 0,
            Some(own) => whole(own.requests.milli_cpus),
            None => {
                let containers = pod.containers.iter();
                let counts = containers.map(|container| (container.kind, self.exclusive(pod, container)));
                together(counts, usize::saturating_add)
            }
        }
    }

    /// Whether the pod has pod-level resources that kubelet does not manage: their feature gate is off.
    pub(super) fn hidden(&self, pod: &Pod) -> bool {
        pod.own().is_some() && !self.kubelet.pod_level_resource_managers
    }

    /// The CPUs that may be assigned.
    pub(super) fn available(&self, state: &CpuState) -> CpuSet {
        state.default.difference(&self.reserved)
    }

    /// The CPUs of the pod's init containers that its later containers may use.
    pub(super) fn reusable(&self, pod: &str) -> CpuSet {
        let own = self.reusable.as_ref().filter(|(uid, _)| uid == pod);
        own.map(|(_, cpus)| cpus.clone()).unwrap_or_default()
    }

    /// With full-pcpus-only: only whole cores, and enough of them outside the cores of reserved CPUs.
    pub(super) fn check_cores(&self, state: &CpuState, count: usize) -> Result<(), CpuRefusal> {
        if !self.options.full_pcpus_only {
            return Ok(());
        }
        let per_core = self.topology.cpus_per_core().max(1);
        if !count.is_multiple_of(per_core) {
            return Err(CpuRefusal::NotWholeCores {
                requested: count,
                per_core,
            });
        }
        let available = state.default.difference(&self.reserved_cores).len();
        if count > available {
            Err(CpuRefusal::TooFewCores {
                available,
                requested: count,
                per_core,
            })
        } else {
            Ok(())
        }
    }

    pub(super) fn allocate_cpus(
        &self,
        state: &mut CpuState,
        count: usize,
        affinity: Option<NodeMask>,
        reusable: &CpuSet,
    ) -> Result<AssignedCpus, CpuRefusal> {
        let request = ExclusiveRequest {
            available: &self.available(state),
            reusable,
            count,
            affinity,
        };
        let answer = allocate(self.topology, self.options, self.kubelet, &request)?;
        state.default = state.default.difference(&answer.cpus);
        Ok(answer)
    }

    /// The pod's later containers may reuse an init container's CPUs until another container has them. Those of other
    /// pods are forgotten (`updateCPUsToReuse`).
    fn remember(&mut self, pod: &Pod, container: &Container, cpus: &CpuSet) {
        let own = self.reusable(&pod.uid);
        let own = match container.kind {
            ContainerKind::Init => own.union(cpus),
            ContainerKind::Sidecar | ContainerKind::App => own.difference(cpus),
        };
        self.reusable = Some((pod.uid.clone(), own));
    }
}

/// A whole number of CPUs; 0 for a fraction, which runs on the shared pool.
fn whole(milli_cpus: Option<u64>) -> usize {
    let milli_cpus = milli_cpus.unwrap_or(0);
    if milli_cpus.is_multiple_of(1000) {
        usize::try_from(milli_cpus / 1000).unwrap_or(usize::MAX)
    } else {
        0
    }
}
