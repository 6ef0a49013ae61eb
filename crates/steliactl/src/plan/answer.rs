//! The answer: what kubelet would do with the pod, as values that serialize.

use std::collections::BTreeSet;

use kubelet_planner::merge::Policy;
use kubelet_planner::{
    ContainerAllocation, ContainerKind, CpuManager, Cpus, Fill, MemoryManager, Pod, Rejection, Settings, admit,
    features, until_full, variants, with_settings,
};
use serde::Serialize;
use stelia_cpus::{CpuSet, NodeSet};
use stelia_node_plan::planned_nodes::{NodesVerdict, PlannedNodes};
use stelia_node_plan::room::Fit;
use stelia_node_plan::settings::options_on;
use stelia_node_plan::{Subject, why};

use super::merges::{Merged, merges};
use super::text;
use crate::shared::output::{Render, TextStyle};

#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Answer {
    pub(super) pod: String,
    pub(super) qos: &'static str,
    /// The described node's name; null for this node.
    pub(super) node: Option<String>,
    pub(super) kubelet: Kubelet,
    /// Assumptions, where neither the node nor the description has the fact.
    pub(super) assumed: Vec<String>,
    /// What is in kubelet's configuration and has no effect.
    pub(super) warnings: Vec<String>,
    pub(super) admitted: bool,
    pub(super) rejection: Option<Rejected>,
    pub(super) containers: Vec<Row>,
    /// The Topology Manager's merges, in their order; none with its policy `none`.
    pub(super) merges: Vec<Merged>,
    pub(super) why_not_better: Vec<String>,
    /// Faults of kubelet in the CPUs that it would assign, in how it finds them, and in its files.
    pub(super) faults: Vec<String>,
    pub(super) until_full: Option<Fits>,
    pub(super) what_if: Vec<WhatIf>,
    /// The policies and options that these settings choose.
    pub(super) features: Vec<Chosen>,
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
    /// `status.reason` of the pod; null: kubelet never answers, and the pod stays pending.
    pub(super) reason: Option<&'static str>,
    /// The message, as kubelet gives it.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    /// The NUMA nodes of the devices that the pod may get.
    pub(super) device_nodes: NodeSet,
    /// As that of the container whose locality is the worst.
    pub(super) locality: Option<&'static str>,
    pub(super) fits: usize,
    pub(super) or_more: bool,
    /// Feature gates that these settings need and that are off: kubelet does not start before they are on.
    pub(super) missing_gates: Vec<&'static str>,
}

/// A policy or an option of kubelet's managers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Chosen {
    /// Its name in KubeletConfiguration.
    pub(super) name: &'static str,
    /// Its stages, each with the version that began it.
    pub(super) stages: String,
    /// The feature gate that it needs in the predicted version of kubelet; null: none.
    pub(super) feature_gate: Option<&'static str>,
    /// Whether that gate is on; its default where kubelet's gates are not known.
    pub(super) on: Option<bool>,
}

impl Answer {
    /// Whether one more pod like this is admitted.
    pub(super) fn new(name: &str, pod: &Pod, subject: &Subject) -> Self {
        let mut answer = Self {
            pod: name.to_owned(),
            qos: pod.qos().name(),
            node: subject.name.clone(),
            kubelet: Kubelet::of(subject.node.settings(), &subject.node.reserved_cpus()),
            assumed: subject.notes.clone(),
            warnings: subject.warnings.clone(),
            ..Self::default()
        };
        let merges_made = match admit(&subject.node, pod) {
            Ok(admission) => {
                let pairs = pod.containers.iter().zip(&admission.containers);
                answer.containers = pairs.map(|(one, given)| Row::new(one.kind, given, subject)).collect();
                answer.merges = merges(subject, &admission.merges);
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
                answer.merges = merges(subject, &rejection.merges);
                answer.rejection = Some(Rejected::new(&rejection, subject));
                rejection.merges
            }
        };
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
                    reason: Some(reason),
                    message,
                    resource: Some(resource.to_owned()),
                    ..Rejected::default()
                });
            }
            Some(Fit::Fits) | None => {}
        }
        answer.faults.extend(subject.faults.iter().cloned());
        answer.faults.extend(why::slow(subject, pod, &merges_made));
        answer
    }
}

impl Render for Answer {
    fn text(&self, style: TextStyle) -> String {
        text::answer(self, style)
    }

    fn failure(&self) -> Option<String> {
        let rejected = self.rejection.as_ref()?;
        Some(match rejected.reason {
            Some(reason) => format!("kubelet would reject the pod: {reason}: {}", rejected.message),
            None if rejected.unknown => rejected.message.clone(),
            None => format!(
                "kubelet would never answer, and the pod stay pending: {}",
                rejected.message
            ),
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
    fn new(rejection: &Rejection, subject: &Subject) -> Self {
        Self {
            reason: rejection.reason(),
            message: rejection.to_string(),
            container: rejection.container.clone(),
            resource: rejection.resource.clone(),
            unknown: rejection.is_unknown(),
            because: why::misaligned(subject, rejection),
        }
    }
}

impl Row {
    fn new(kind: ContainerKind, given: &ContainerAllocation, subject: &Subject) -> Self {
        let (pool, cpus) = match &given.cpus {
            Cpus::Shared => ("node", CpuSet::new()),
            Cpus::PodShared(cpus) => ("pod", cpus.clone()),
            Cpus::Exclusive(cpus) => ("exclusive", cpus.clone()),
        };
        let block = |block: &stelia_kubelet::memory::MemoryBlock| Block {
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
        }
    }
}

impl Fits {
    pub(super) fn new(fill: &Fill, subject: &Subject) -> Self {
        Self {
            count: fill.pods.len(),
            or_more: fill.end.is_none(),
            cpus: fill.pods.iter().map(|pod| own(pod)).collect(),
            then: fill.end.as_deref().map(|rejection| Rejected::new(rejection, subject)),
        }
    }
}

fn own(containers: &[ContainerAllocation]) -> CpuSet {
    let cpus = containers.iter().map(|container| match &container.cpus {
        Cpus::Shared => CpuSet::new(),
        Cpus::PodShared(cpus) | Cpus::Exclusive(cpus) => cpus.clone(),
    });
    cpus.fold(CpuSet::new(), |all, cpus| all.union(&cpus))
}

/// The answers under these settings and all worth a comparison, counting how many fit up to `most`.
pub(super) fn other(subject: &Subject, pod: &Pod, most: usize) -> Vec<WhatIf> {
    let reserved = subject.node.reserved_cpus();
    let gates = subject.gates.clone().unwrap_or_default();
    let variants = variants(subject.node.settings());
    let answer = |(at, settings): (usize, Settings)| {
        let kubelet = Kubelet::of(&settings, &reserved);
        let needed = features::chosen(&settings).into_iter();
        let missing = needed.filter_map(|feature| feature.gate(features::KUBELET));
        let missing: BTreeSet<&'static str> = missing
            .filter(|gate| !gate.is_on(&gates))
            .map(|gate| gate.name)
            .collect();
        let mut other = WhatIf {
            kubelet,
            now: at == 0,
            missing_gates: missing.into_iter().collect(),
            ..WhatIf::default()
        };
        match with_settings(&subject.node, settings) {
            Ok(node) => {
                let fill = until_full(&node, pod, most);
                if let Some(first) = fill.pods.first() {
                    other.admitted = true;
                    other.cpus = own(first);
                    other.numa_nodes = subject.nodes(&other.cpus);
                    let localities: Vec<PlannedNodes> = first
                        .iter()
                        .filter_map(|given| PlannedNodes::of(subject, given))
                        .collect();
                    let devices = localities.iter().flat_map(|one| &one.devices);
                    other.device_nodes = devices.flat_map(|one| one.nodes.iter().copied()).collect();
                    other.locality = localities.iter().map(|one| one.verdict).max().map(NodesVerdict::name);
                }
                let reason = |rejection: &Rejection| {
                    if rejection.is_unknown() {
                        "not predicted".to_owned()
                    } else {
                        rejection.reason().unwrap_or("kubelet would not return").to_owned()
                    }
                };
                other.reason = fill.end.as_deref().filter(|_| !other.admitted).map(reason);
                (other.fits, other.or_more) = (fill.pods.len(), fill.end.is_none());
            }
            Err(cause) => other.no_start = Some(cause.to_string()),
        }
        other
    };
    variants.into_iter().enumerate().map(answer).collect()
}

/// The features that these settings and all worth a comparison choose.
pub(super) fn features(subject: &Subject) -> Vec<Chosen> {
    let gates = subject.gates.clone().unwrap_or_default();
    let variants = variants(subject.node.settings());
    let chosen: Vec<_> = variants.iter().flat_map(features::chosen).collect();
    let used = features::FEATURES.iter().filter(|feature| chosen.contains(feature));
    let told = |feature: &features::Feature| {
        let gate = feature.gate(features::KUBELET);
        Chosen {
            name: feature.name,
            stages: feature.history(),
            feature_gate: gate.map(|gate| gate.name),
            on: gate.map(|gate| gate.is_on(&gates)),
        }
    };
    used.map(told).collect()
}
