//! The answer: what becomes of the pod, as values that serialize.

use kubelet_planner::merge::Policy;
use kubelet_planner::{
    ContainerAllocation, ContainerKind, CpuManager, Cpus, Fill, MemoryManager, Pod, Rejection, Settings, admit,
    features, until_full, variants, with_settings,
};
use serde::Serialize;
use stelia_cpus::{CpuSet, NodeSet};
use stelia_kubelet::memory::MemoryBlock;
use stelia_node_plan::hints::MergeReport;
use stelia_node_plan::planned_nodes::{NodesVerdict, PlannedNodes};
use stelia_node_plan::room::Fit;
use stelia_node_plan::settings::options_on;
use stelia_node_plan::{Subject, why};

use super::text;
use crate::shared::output::{Render, TextStyle};

/// Members after `containers` are kubelet's, and empty where steliad assigns the CPUs.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Answer {
    pub(super) pod: String,
    pub(super) qos: &'static str,
    /// The described node's name; null for this node.
    pub(super) node: Option<String>,
    /// `kubelet` or `steliad`.
    pub(super) assigned_by: &'static str,
    pub(super) admitted: bool,
    pub(super) rejection: Option<Rejected>,
    /// Assumptions, where neither the node nor the description has the fact.
    pub(super) assumed: Vec<String>,
    pub(super) containers: Vec<Row>,
    pub(super) kubelet: Option<Kubelet>,
    /// What is in kubelet's configuration and has no effect.
    pub(super) warnings: Vec<String>,
    /// Faults of kubelet in the CPUs that it would assign, in how it finds them, and in its files.
    pub(super) faults: Vec<String>,
    pub(super) why_not_better: Vec<String>,
    /// The Topology Manager's merges, in their order; none with its policy `none`.
    pub(super) merges: Vec<MergeReport>,
    pub(super) until_full: Option<Fits>,
    pub(super) what_if: Vec<WhatIf>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Kubelet {
    pub(super) cpu_manager_policy: &'static str,
    pub(super) cpu_manager_policy_options: Vec<&'static str>,
    pub(super) reserved_cpus: CpuSet,
    pub(super) memory_manager_policy: &'static str,
    pub(super) topology_manager_policy: &'static str,
    pub(super) topology_manager_scope: &'static str,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Rejected {
    /// `status.reason` of the pod, or the name of steliad's error; null: kubelet never answers, and the pod stays pending.
    pub(super) reason: Option<String>,
    /// The message, as kubelet or steliad gives it.
    pub(super) message: String,
    /// The container that is rejected; null: the pod as a whole.
    pub(super) container: Option<String>,
    /// The resource, where the reason is a single one.
    pub(super) resource: Option<String>,
    pub(super) because: Option<String>,
    /// kubelet's answer is not predicted.
    #[serde(skip)]
    pub(super) unknown: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    pub(super) container: String,
    pub(super) kind: &'static str,
    /// Empty for a container on the node's shared pool.
    pub(super) cpus: CpuSet,
    /// `exclusive`, `pod` or `node`.
    pub(super) pool: &'static str,
    pub(super) numa_nodes: NodeSet,
    /// The NUMA nodes that the Topology Manager chose; null: any.
    pub(super) affinity: Option<NodeSet>,
    /// Whether every resource prefers them.
    pub(super) preferred: bool,
    pub(super) memory: Vec<Block>,
    pub(super) devices: Vec<Devices>,
    /// Whether its CPUs, memory and devices are together ([`NodesVerdict::name`]); null without devices that have NUMA nodes.
    pub(super) locality: Option<&'static str>,
    #[serde(skip)]
    pub(super) locality_words: Option<String>,
    /// Where steliad assigns the CPUs.
    pub(super) placement: Option<Placement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Block {
    pub(super) nodes: NodeSet,
    pub(super) r#type: String,
    pub(super) size_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Devices {
    pub(super) resource: String,
    pub(super) count: usize,
    /// Empty where only the number of the node's devices is known.
    pub(super) ids: Vec<String>,
    /// kubelet has no choice. Otherwise the plugin's preference, or chance, may select others.
    pub(super) certain: bool,
    /// The NUMA nodes of all devices that it may get; empty where they have none.
    pub(super) numa_nodes: NodeSet,
    /// Whether the devices are on all of these, whichever are selected.
    #[serde(skip)]
    pub(super) same_nodes: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Placement {
    pub(super) class: &'static str,
    /// Its exclusive CPUs, or its class's pool.
    pub(super) runs_on: CpuSet,
    pub(super) exclusivity: &'static str,
    /// The sum of the next two.
    pub(super) score: u32,
    pub(super) score_numa: u32,
    pub(super) score_cpus: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Fits {
    pub(super) count: usize,
    /// The search ended at the limit: there may be room for more.
    pub(super) or_more: bool,
    /// For each pod the CPUs of all its containers together.
    pub(super) cpus: Vec<CpuSet>,
    /// The rejection of the next one.
    pub(super) then: Option<Rejected>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct WhatIf {
    pub(super) kubelet: Kubelet,
    pub(super) now: bool,
    pub(super) admitted: bool,
    pub(super) reason: Option<String>,
    /// Why kubelet would not start.
    pub(super) no_start: Option<String>,
    pub(super) cpus: CpuSet,
    pub(super) numa_nodes: NodeSet,
    /// As that of the container whose locality is the worst.
    pub(super) locality: Option<&'static str>,
    pub(super) fits: usize,
    pub(super) or_more: bool,
    /// Feature gates that these settings need and that are off: kubelet does not start before they are on.
    pub(super) missing_gates: Vec<&'static str>,
}

impl Answer {
    /// Whether kubelet admits one more pod like this.
    pub(super) fn of_kubelet(name: String, pod: &Pod, subject: &Subject) -> Self {
        let mut answer = Self {
            pod: name,
            qos: pod.qos().name(),
            node: subject.name.clone(),
            assigned_by: "kubelet",
            kubelet: Some(Kubelet::of(subject.node.settings(), &subject.node.reserved_cpus())),
            assumed: subject.notes.clone(),
            warnings: subject.warnings.clone(),
            ..Self::default()
        };
        let merges = match admit(&subject.node, pod) {
            Ok(admission) => {
                let pairs = pod.containers.iter().zip(&admission.containers);
                answer.containers = pairs.map(|(one, given)| Row::new(one.kind, given, subject)).collect();
                answer.why_not_better = why::not_better(subject, pod, &admission);
                let fault = |(container, fault): &(Option<String>, _)| match container {
                    Some(container) => format!("{container}: {fault}"),
                    None => format!("{fault}"),
                };
                answer.faults = admission.faults.iter().map(fault).collect();
                answer.admitted = true;
                admission.merges
            }
            Err(rejection) => {
                answer.rejection = Some(Rejected::new(&rejection, pod, subject));
                rejection.merges
            }
        };
        answer.merges = MergeReport::all(subject, &merges);
        let room = subject.room.as_ref().filter(|_| answer.admitted);
        match room.map(|room| room.fit(pod)) {
            Some(Fit::Unknown(why)) => answer.assumed.push(why),
            Some(Fit::TooLarge {
                resource,
                reason,
                message,
            }) => {
                answer.admitted = false;
                answer.containers.clear();
                answer.why_not_better.clear();
                answer.rejection = Some(Rejected {
                    reason: Some(reason.to_owned()),
                    message,
                    resource: Some(resource.to_owned()),
                    ..Rejected::default()
                });
            }
            Some(Fit::Fits) | None => {}
        }
        answer.faults.extend(subject.faults.iter().cloned());
        answer.faults.extend(why::slow(subject, pod, &merges));
        answer
    }
}

impl Render for Answer {
    fn text(&self, style: TextStyle) -> String {
        text::answer(self, style)
    }

    fn failure(&self) -> Option<String> {
        let rejected = self.rejection.as_ref()?;
        let message = &rejected.message;
        Some(match &rejected.reason {
            Some(reason) => format!("{} would reject the pod: {reason}: {message}", self.assigned_by),
            None if rejected.unknown => message.clone(),
            None => format!("kubelet would never answer, and the pod stay pending: {message}"),
        })
    }
}

impl Kubelet {
    fn of(settings: &Settings, reserved: &CpuSet) -> Self {
        Self {
            cpu_manager_policy: match settings.cpu_manager {
                CpuManager::None => "none",
                CpuManager::Static { .. } => "static",
            },
            cpu_manager_policy_options: options_on(&settings.cpu_manager),
            reserved_cpus: reserved.clone(),
            memory_manager_policy: match settings.memory_manager {
                MemoryManager::None => "None",
                MemoryManager::Static { .. } => "Static",
            },
            topology_manager_policy: settings.topology_policy.name(),
            topology_manager_scope: settings.topology_scope.name(),
        }
    }

    /// Whether the Topology Manager merges hints: not with policy `none`.
    pub(super) fn aligns(&self) -> bool {
        self.topology_manager_policy != Policy::None.name()
    }
}

impl Rejected {
    fn new(rejection: &Rejection, pod: &Pod, subject: &Subject) -> Self {
        Self {
            reason: rejection.reason().map(str::to_owned),
            message: rejection.to_string(),
            container: rejection.container.clone(),
            resource: rejection.resource.clone(),
            unknown: rejection.is_unknown(),
            because: why::misaligned(subject, pod, rejection),
        }
    }

    /// The reason in a word or two.
    pub(super) fn short(&self) -> &str {
        match &self.reason {
            _ if self.unknown => "not predicted",
            Some(reason) => reason,
            None => "no answer, stays pending",
        }
    }
}

impl Row {
    fn new(kind: ContainerKind, given: &ContainerAllocation, subject: &Subject) -> Self {
        let pool = match &given.cpus {
            Cpus::Shared => "node",
            Cpus::PodShared(_) => "pod",
            Cpus::Exclusive(_) => "exclusive",
        };
        let cpus = own([given]);
        let block = |block: &MemoryBlock| Block {
            nodes: block.nodes.iter().copied().collect(),
            r#type: block.kind.clone(),
            size_bytes: block.size,
        };
        let locality = PlannedNodes::of(subject, given);
        let devices = given.devices.iter().map(|(resource, chosen)| {
            let mut known = locality.iter().flat_map(|locality| &locality.devices);
            let known = known.find(|one| one.resource == *resource);
            let ids = chosen.ids.iter().filter(|_| !subject.counted.contains(resource));
            Devices {
                resource: resource.clone(),
                count: chosen.ids.len(),
                ids: ids.cloned().collect(),
                certain: chosen.certain,
                numa_nodes: known.map(|one| one.nodes.clone()).unwrap_or_default(),
                same_nodes: known.is_none_or(|one| one.certain),
            }
        });
        Self {
            container: given.container.clone(),
            kind: match kind {
                ContainerKind::Init => "init",
                ContainerKind::Sidecar => "sidecar",
                ContainerKind::App => "app",
            },
            pool,
            numa_nodes: subject.nodes(&cpus),
            cpus,
            affinity: given.hint.nodes.map(NodeSet::from),
            preferred: given.hint.preferred,
            memory: given.memory.iter().map(block).collect(),
            devices: devices.collect(),
            locality: locality.as_ref().map(|locality| locality.verdict.name()),
            locality_words: locality.as_ref().map(PlannedNodes::sentence),
            placement: None,
        }
    }
}

impl Fits {
    pub(super) fn new(fill: &Fill, pod: &Pod, subject: &Subject) -> Self {
        let then = fill.end.as_deref();
        Self {
            count: fill.pods.len(),
            or_more: fill.end.is_none(),
            cpus: fill.pods.iter().map(own).collect(),
            then: then.map(|rejection| Rejected::new(rejection, pod, subject)),
        }
    }
}

/// The CPUs that these containers have for themselves or their pod.
fn own<'a>(containers: impl IntoIterator<Item = &'a ContainerAllocation>) -> CpuSet {
    let mut own = CpuSet::new();
    for container in containers {
        if let Cpus::PodShared(cpus) | Cpus::Exclusive(cpus) = &container.cpus {
            own.union_with(cpus);
        }
    }
    own
}

/// The answers under these settings and all worth a comparison, counting how many fit up to `most`.
pub(super) fn other(subject: &Subject, pod: &Pod, most: usize) -> Vec<WhatIf> {
    let gates = subject.gates.clone().unwrap_or_default();
    let answer = |(at, settings): (usize, Settings)| {
        let needed = features::chosen(&settings).into_iter();
        let missing = needed.filter_map(|feature| feature.gate(features::KUBELET));
        let mut missing: Vec<&str> = missing
            .filter(|gate| !gate.is_on(&gates))
            .map(|gate| gate.name)
            .collect();
        missing.sort_unstable();
        missing.dedup();
        let mut other = WhatIf {
            kubelet: Kubelet::of(&settings, &subject.node.reserved_cpus()),
            now: at == 0,
            missing_gates: missing,
            ..WhatIf::default()
        };
        let fill = match with_settings(&subject.node, settings) {
            Ok(node) => until_full(&node, pod, most),
            Err(cause) => {
                other.no_start = Some(cause.to_string());
                return other;
            }
        };
        (other.fits, other.or_more) = (fill.pods.len(), fill.end.is_none());
        if let Some(first) = fill.pods.first() {
            other.admitted = true;
            other.cpus = own(first);
            other.numa_nodes = subject.nodes(&other.cpus);
            let verdicts = first.iter().filter_map(|given| PlannedNodes::of(subject, given));
            other.locality = verdicts.map(|one| one.verdict).max().map(NodesVerdict::name);
        } else {
            let rejected = fill.end.map(|rejection| Rejected::new(&rejection, pod, subject));
            other.reason = rejected.map(|rejected| rejected.short().to_owned());
        }
        other
    };
    let variants = variants(subject.node.settings()).into_iter();
    variants.enumerate().map(answer).collect()
}
