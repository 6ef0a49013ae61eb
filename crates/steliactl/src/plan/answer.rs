//! The answer: what becomes of the pod, as the planner or the allocator says it.

use std::collections::BTreeMap;

use kubelet_planner::manifest::Described;
use kubelet_planner::{
    Container, ContainerAllocation, ContainerKind, Cpus, Pod, Rejection, Settings, admit, until_full,
};
use serde::Serialize;
use stelia_cpus::{CpuSet, NodeSet};
use stelia_koordinator::allocator::{CpuSource, evaluate};
use stelia_node_plan::hints::free;
use stelia_node_plan::planned_nodes::PlannedNodes;
use stelia_node_plan::room::Fit;
use stelia_node_plan::{Subject, why};

use super::text;
use crate::shared::output::{Render, TextStyle};

/// Limit of the pods of `--until-full`: more than any node runs (`maxPods` is 110 by default).
const MAX_PODS: usize = 256;

#[derive(Debug, Default, Serialize)]
pub(super) struct Answer {
    pub(super) pod: String,
    pub(super) qos: &'static str,
    /// The described node's name; null for this node.
    pub(super) node: Option<String>,
    pub(super) assigned_by: CpuSource,
    /// Null where it is not predicted.
    pub(super) admitted: Option<bool>,
    pub(super) rejection: Option<Rejected>,
    /// Why it is not predicted.
    pub(super) unknown: Option<Rejected>,
    /// Assumptions, where neither the node nor the description has the fact.
    pub(super) assumed: Vec<String>,
    /// Where steliad assigns the CPUs; members after this one are kubelet's.
    pub(super) placement: Option<evaluate::Fit>,
    pub(super) settings: Option<Settings>,
    pub(super) reserved_cpus: CpuSet,
    /// What is in kubelet's configuration and has no effect.
    pub(super) warnings: Vec<String>,
    /// Faults of kubelet in the CPUs that it would assign, in how it finds them, and in its files.
    pub(super) faults: Vec<String>,
    pub(super) containers: Vec<Row>,
    /// Why the pod, or which containers of it, have no exclusive CPUs.
    pub(super) not_exclusive: Vec<String>,
    pub(super) why_not_better: Vec<String>,
    /// What was free by NUMA node before the pod, of each resource that the Topology Manager considers: CPUs, devices, bytes.
    pub(super) free: BTreeMap<String, BTreeMap<u32, u64>>,
    pub(super) until_full: Option<Fits>,
}

/// The reason of a rejection where kubelet's answer is not predicted.
pub(super) const UNKNOWN: &str = "unknown";
/// The same where kubelet never answers.
pub(super) const PENDING: &str = "pending";

#[derive(Debug, Default, Serialize)]
pub(super) struct Rejected {
    /// `status.reason` of the pod, the name of steliad's error, [`UNKNOWN`] or [`PENDING`].
    pub(super) reason: String,
    /// The message, as kubelet or steliad gives it.
    pub(super) message: String,
    /// The container that is rejected; null: the pod as a whole.
    pub(super) container: Option<String>,
    /// The resource, where the reason is a single one.
    pub(super) resource: Option<String>,
    pub(super) because: Option<String>,
    /// What to ask for instead.
    pub(super) fix: Option<String>,
}

/// What a container gets of kubelet.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) kind: ContainerKind,
    #[serde(flatten)]
    pub(super) given: ContainerAllocation,
    /// Those of its CPUs.
    pub(super) numa_nodes: NodeSet,
    /// Null without devices that have NUMA nodes.
    pub(super) locality: Option<PlannedNodes>,
}

/// Pods of one kind, admitted one after the other.
#[derive(Debug, Serialize)]
pub(super) struct Fits {
    pub(super) count: usize,
    /// For each pod the CPUs of all its containers together.
    pub(super) cpus: Vec<CpuSet>,
    /// The rejection of the next one; null: the search ended at the limit, and there may be room for more.
    pub(super) then: Option<Rejected>,
}

impl Answer {
    /// Nothing but what was asked and is assumed, of this node.
    pub(super) fn about(question: &Described) -> Self {
        Self {
            pod: question.name.clone(),
            qos: question.pod.qos().name(),
            assumed: question.assumed.clone(),
            ..Self::default()
        }
    }

    /// Why it is not known to be admitted.
    pub(super) fn why(&self) -> Option<&Rejected> {
        self.rejection.as_ref().or(self.unknown.as_ref())
    }

    /// The pod is not admitted, or it is not known whether it is.
    pub(super) fn refused(mut self, why: Rejected) -> Self {
        if why.reason == UNKNOWN {
            (self.admitted, self.unknown) = (None, Some(why));
        } else {
            (self.admitted, self.rejection) = (Some(false), Some(why));
        }
        self
    }

    /// Whether kubelet admits one more pod like this, and how many.
    pub(super) fn of_kubelet(question: &Described, subject: &Subject, until_full: bool) -> Self {
        let pod = &question.pod;
        let mut answer = Self {
            node: subject.name.clone(),
            admitted: Some(true),
            settings: Some(subject.node.settings().clone()),
            reserved_cpus: subject.node.reserved_cpus(),
            until_full: until_full.then(|| Fits::new(subject, pod)),
            assumed: [&subject.notes[..], &question.assumed].concat(),
            warnings: subject.warnings.clone(),
            ..Self::about(question)
        };
        let room = subject.room.as_ref().map_or(Fit::Fits, |room| room.fit(pod));
        let merges = match (admit(&subject.node, pod), room) {
            (Err(rejection), _) => {
                answer = answer.refused(Rejected::new(&rejection, pod, subject));
                rejection.merges
            }
            (Ok(admission), Fit::TooLarge { resource, message }) => {
                answer = answer.refused(Rejected {
                    reason: format!("OutOf{resource}"),
                    message,
                    resource: Some(resource.to_owned()),
                    ..Rejected::default()
                });
                admission.merges
            }
            (Ok(admission), room) => {
                if let Fit::Unknown(why) = room {
                    answer.assumed.push(why);
                }
                answer.not_exclusive = why::not_exclusive(subject, pod, &admission);
                answer.why_not_better = why::not_better(subject, pod, &admission);
                let row = |(one, given): (&Container, ContainerAllocation)| Row {
                    kind: one.kind,
                    numa_nodes: subject.nodes(&own_cpus([&given])),
                    locality: PlannedNodes::of(subject, &given),
                    given,
                };
                answer.containers = pod.containers.iter().zip(admission.containers).map(row).collect();
                let fault = |(container, fault): &(Option<String>, _)| match container {
                    Some(container) => format!("{container}: {fault}"),
                    None => format!("{fault}"),
                };
                answer.faults = admission.faults.iter().map(fault).collect();
                admission.merges
            }
        };
        let hints = merges.iter().flat_map(|merge| &merge.hints);
        let free = hints.map(|(resource, _)| (resource.clone(), free(subject, resource)));
        answer.free = free.collect();
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
        let Rejected { reason, message, .. } = self.why()?;
        // What is printed has the message of a rejection.
        Some(match reason.as_str() {
            UNKNOWN => message.clone(),
            PENDING => "kubelet would never answer, and the pod would stay pending".to_owned(),
            reason => format!("{} would reject the pod: {reason}", self.assigned_by),
        })
    }
}

/// Why nothing is predicted.
impl From<String> for Box<Rejected> {
    fn from(message: String) -> Self {
        Rejected::unknown(message, "")
    }
}

impl Rejected {
    /// Nothing is predicted; with what to do, if anything.
    pub(super) fn unknown(message: impl Into<String>, fix: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            reason: UNKNOWN.to_owned(),
            message: message.into(),
            fix: Some(fix.into()).filter(|fix| !fix.is_empty()),
            ..Self::default()
        })
    }

    fn new(rejection: &Rejection, pod: &Pod, subject: &Subject) -> Self {
        let otherwise = if rejection.is_unknown() { UNKNOWN } else { PENDING };
        Self {
            reason: rejection.reason().unwrap_or(otherwise).to_owned(),
            message: rejection.to_string(),
            container: rejection.container.clone(),
            resource: rejection.resource.clone(),
            because: why::misaligned(subject, pod, rejection),
            fix: why::fix(rejection),
        }
    }
}

/// The CPUs that these containers have for themselves or their pod.
fn own_cpus<'a>(containers: impl IntoIterator<Item = &'a ContainerAllocation>) -> CpuSet {
    let own = containers.into_iter().filter_map(|one| match &one.cpus {
        Cpus::Shared => None,
        Cpus::PodShared(cpus) | Cpus::Exclusive(cpus) => Some(cpus),
    });
    own.fold(CpuSet::new(), |all, cpus| all.union(cpus))
}

impl Fits {
    fn new(subject: &Subject, pod: &Pod) -> Self {
        let fill = until_full(&subject.node, pod, MAX_PODS);
        Self {
            count: fill.pods.len(),
            cpus: fill.pods.iter().map(own_cpus).collect(),
            then: fill.end.map(|rejection| Rejected::new(&rejection, pod, subject)),
        }
    }
}
