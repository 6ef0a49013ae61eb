//! The static policy: kubelet's steps over its state.

use stelia_cpus::CpuSet;

use super::assign::{Answer, Request, allocate, take};
use super::options::{Kubelet, Options};
use super::pod::{Container, Kind, Pod};
use super::refusal::Refusal;
use super::state::State;
use super::topology::CpuTopology;

/// One kubelet's policy object, from its start to its end.
///
/// ```
/// use std::collections::BTreeMap;
/// use stelia_cpus::CpuSet;
/// use kubelet_planner::cpus::{Container, CpuTopology, Kind, Kubelet, Options, Pod, State, StaticPolicy};
/// use stelia_cpus::{Cpu, Topology};
///
/// let cpu = |cpu: u32| (cpu, Cpu { package: 0, core: cpu / 2, node: 0 });
/// let node = Topology { cpus: (0..8).map(cpu).collect() };
/// let topology = CpuTopology::new(&node, &BTreeMap::new());
/// let mut policy = StaticPolicy::new(&topology, Options::default(), Kubelet::default(), 2, &CpuSet::new())?;
/// let mut state = State::default();
/// policy.start(&mut state)?;
///
/// let vm = Container { name: "vm".into(), kind: Kind::App, milli_cpus: 4000, guaranteed: true };
/// let pod = Pod { uid: "7d3c".into(), guaranteed: true, milli_cpus: None, containers: vec![vm] };
/// policy.allocate(&mut state, &pod, &pod.containers[0], None)?;
/// assert_eq!(state.entry("7d3c", "vm"), Some(&"2-5".parse()?));
/// assert_eq!(state.default.to_string(), "0-1,6-7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct StaticPolicy<'a> {
    pub(super) topology: &'a CpuTopology,
    pub(super) options: Options,
    pub(super) kubelet: Kubelet,
    reserved: CpuSet,
    /// The reserved CPUs with their siblings.
    reserved_cores: CpuSet,
    /// The pod allocated to last, and the CPUs of its init containers. It is memory: a restart of kubelet loses it.
    reusable: Option<(String, CpuSet)>,
}

impl<'a> StaticPolicy<'a> {
    /// The policy that reserves `reserved`, or, where that is empty, `count` CPUs of its own choice. Whether the options go
    /// together and with the node, [`Options::check`] says.
    ///
    /// # Errors
    /// `reserved` is not of `count` CPUs, or one of them is not there.
    pub fn new(
        topology: &'a CpuTopology,
        options: Options,
        kubelet: Kubelet,
        count: usize,
        reserved: &CpuSet,
    ) -> Result<Self, Refusal> {
        let reserved = match reserved.is_empty() {
            true => match take(topology, options, kubelet, &topology.cpus(), count) {
                Ok(answer) => answer.cpus,
                Err(Refusal::WouldNotReturn) => return Err(Refusal::WouldNotReturn),
                Err(_) => CpuSet::new(),
            },
            false => reserved.clone(),
        };
        if reserved.len() != count {
            return Err(Refusal::ReservedCount { reserved, count });
        }
        if let Some(unknown) = reserved.iter().find(|cpu| topology.core(*cpu).is_none()) {
            return Err(Refusal::ReservedUnknown(unknown));
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

    /// The reserved CPUs: never handed out.
    pub fn reserved(&self) -> &CpuSet {
        &self.reserved
    }

    /// Start on a state: fill an empty one, check another.
    ///
    /// # Errors
    /// The state does not go with the node or with the reserved CPUs: kubelet does not start.
    pub fn start(&self, state: &mut State) -> Result<(), Refusal> {
        let strict = self.options.strict_cpu_reservation;
        let node = match strict {
            true => self.topology.cpus().difference(&self.reserved),
            false => self.topology.cpus(),
        };
        if state.default.is_empty() {
            if !state.entries.is_empty() {
                return Err(Refusal::DefaultEmpty);
            }
            state.default = node;
            return Ok(());
        }
        let default = state.default.clone();
        let inside = self.reserved.intersection(&default);
        if strict && !inside.is_empty() {
            return Err(Refusal::ReservedInDefault {
                reserved: inside,
                default,
            });
        }
        if !strict && inside != self.reserved {
            return Err(Refusal::ReservedNotInDefault {
                reserved: self.reserved.clone(),
                default,
            });
        }
        let mut known = default.clone();
        for (pod, entries) in &state.entries {
            for (container, cpus) in entries {
                if !cpus.is_disjoint(&default) {
                    return Err(Refusal::EntryInDefault {
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
        match known == node {
            true => Ok(()),
            false => Err(Refusal::OtherCpus { node, state: known }),
        }
    }

    /// Give a container its CPUs, those of the affinity (bit n for NUMA node n) first. None: it runs on the shared pool.
    ///
    /// # Errors
    /// The container is rejected; the state is as it was.
    pub fn allocate(
        &mut self,
        state: &mut State,
        pod: &Pod,
        container: &Container,
        affinity: Option<u64>,
    ) -> Result<Option<Answer>, Refusal> {
        let count = self.exclusive(pod, container);
        if count == 0 {
            return Ok(None);
        }
        self.check_cores(state, count)?;
        if let Some(cpus) = state.entry(&pod.uid, &container.name).cloned() {
            self.remember(pod, container, &cpus);
            return Ok(Some(Answer {
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

    /// Remove a container: what no other container of its pod holds goes back to the shared pool; the CPUs of a pod of its
    /// own go with its last container.
    pub fn remove(&self, state: &mut State, pod: &str, container: &str) {
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

    /// The exclusive CPUs a container is to get; 0 too where the feature gate for its pod's resources is off.
    pub(super) fn exclusive(&self, pod: &Pod, container: &Container) -> usize {
        match self.hidden(pod) {
            true => 0,
            false => pod.exclusive(container, self.kubelet.pod_level_resource_managers),
        }
    }

    /// Whether the pod has pod-level resources that kubelet does not manage.
    pub(super) fn hidden(&self, pod: &Pod) -> bool {
        pod.milli_cpus.is_some() && !self.kubelet.pod_level_resource_managers
    }

    /// The CPUs that may be handed out.
    pub(super) fn available(&self, state: &State) -> CpuSet {
        state.default.difference(&self.reserved)
    }

    /// The CPUs of the pod's init containers that its later containers may use.
    pub(super) fn reusable(&self, pod: &str) -> CpuSet {
        let own = self.reusable.as_ref().filter(|(uid, _)| uid == pod);
        own.map(|(_, cpus)| cpus.clone()).unwrap_or_default()
    }

    /// full-pcpus-only: whole cores, and as many outside those of reserved CPUs.
    pub(super) fn check_cores(&self, state: &State, count: usize) -> Result<(), Refusal> {
        if !self.options.full_pcpus_only {
            return Ok(());
        }
        let per_core = self.topology.cpus_per_core().max(1);
        if !count.is_multiple_of(per_core) {
            return Err(Refusal::NotWholeCores {
                requested: count,
                per_core,
            });
        }
        let available = state.default.difference(&self.reserved_cores).len();
        match count > available {
            true => Err(Refusal::TooFewCores {
                available,
                requested: count,
                per_core,
            }),
            false => Ok(()),
        }
    }

    pub(super) fn allocate_cpus(
        &self,
        state: &mut State,
        count: usize,
        affinity: Option<u64>,
        reusable: &CpuSet,
    ) -> Result<Answer, Refusal> {
        let request = Request {
            available: &self.available(state),
            reusable,
            count,
            affinity,
        };
        let answer = allocate(self.topology, self.options, self.kubelet, &request)?;
        state.default = state.default.difference(&answer.cpus);
        Ok(answer)
    }

    /// An init container's CPUs may be used again by the same pod; what another container has, no more. Other pods' are
    /// forgotten.
    fn remember(&mut self, pod: &Pod, container: &Container, cpus: &CpuSet) {
        let own = self.reusable(&pod.uid);
        let own = match container.kind {
            Kind::Init => own.union(cpus),
            Kind::Sidecar | Kind::App => own.difference(cpus),
        };
        self.reusable = Some((pod.uid.clone(), own));
    }
}
