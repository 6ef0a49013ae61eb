//! What a node would do with a request.
//!
//! kubelet admits or rejects the pod first, by all its managers; where steliad chooses the CPUs it decides afterwards, when the VM's
//! runner registers. Both are asked themselves ([`kubelet_planner`], [`stelia_allocator`]), so an answer is the node's own, as long as
//! the pods that it knows of are the only ones.
//!
//! | module | what it is |
//! |---|---|
//! | `arrive` | one pod arrives at a node: what it gets, and what is left |
//! | `devices` | where its devices are |
//! | `orders` | pods that are on their way arrive in any order |

mod arrive;
mod devices;
mod orders;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::Serialize;
use stelia_allocator::{Exclusivity, Qos};
use stelia_cpus::CpuSet;
use stelia_kubelet::QosClass;

use crate::node::{FreeResources, Shape};
use crate::request::{Request, SharedRequest};
use crate::score::{Score, Weights};

pub(crate) use arrive::Outcome;
pub(crate) use devices::PlacedDevices;

/// The program whose rules decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DecidedBy {
    Kubelet,
    Steliad,
    /// This program: too little is known of the node.
    Scheduler,
}

/// Why a pod does not fit on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    pub by: DecidedBy,
    /// The reason in the pod's status by which kubelet would reject it, or the name of the error that RegisterInstance would answer.
    pub name: &'static str,
    /// kubelet's message, or that error's text.
    pub text: String,
}

impl Refusal {
    pub(crate) fn new(by: DecidedBy, name: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { by, name, text }
    }
}

/// Where a pod would run on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Who chooses its CPUs.
    pub by: DecidedBy,
    /// The exclusive CPUs of the pod, of all its containers; empty where it has none.
    pub cpus: CpuSet,
    /// Those of its VM.
    pub vm_cpus: CpuSet,
    /// The NUMA nodes of its exclusive CPUs, or of the pool that its VM runs on.
    pub numa_nodes: BTreeSet<u32>,
    /// The NUMA nodes that its memory is bound to; empty where it is bound to none.
    pub memory_nodes: BTreeSet<u32>,
    /// The NUMA nodes of the devices that it may get; empty where it has none, or these have no NUMA nodes. `score.devices` says how far
    /// its CPUs are there.
    pub device_nodes: BTreeSet<u32>,
    /// The VM's class, where steliad chooses.
    pub qos: Option<&'static str>,
    pub exclusivity: &'static str,
    /// The CPUs for the annotation resource-status: the VM's, if steliad chooses them and the runner reads the annotation.
    #[serde(rename = "told")]
    pub assigned_cpus: Option<CpuSet>,
    /// Whether it gets exactly these CPUs, in whatever order the pods that are on their way arrive.
    pub certain: bool,
    pub score: Score,
}

/// A pod that was placed on a node, and of which the node's object does not know yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Arrival {
    pub request: SharedRequest,
    /// The CPUs that the annotation assigns to it; `None` if the node chooses.
    pub cpus: Option<CpuSet>,
    /// It should have arrived by now, and its author can put that off for ever: it counts as the first one, and no other order is tried.
    pub is_late: bool,
}

/// What a node has left, now and after the pods on their way to it have arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeForecast {
    /// As the node's object says.
    pub published: FreeResources,
    /// Those that find room: late ones first, each kind in the order in which they were placed.
    pub arrivals: Vec<Arrival>,
    /// What will be left when these are there, if they arrive in this order.
    pub expected: FreeResources,
}

impl NodeForecast {
    /// What is left when these pods have arrived. Pods that no longer find room are left out; they are returned by their place in `arrivals`. A pod that does
    /// not get the CPUs that are assigned to it, because its author changed them or its size, counts as one that the node chooses for; if it is too large for
    /// that, the assigned CPUs are taken all the same. If there are so many that it would take too long, nothing is free.
    pub fn new(shape: &Shape, mut published: FreeResources, arrivals: Vec<Arrival>) -> (Self, Vec<(usize, Refusal)>) {
        let mut coming: Vec<(usize, Arrival)> = arrivals.into_iter().enumerate().collect();
        coming.sort_by_key(|(_, arrival)| (!arrival.is_late, arrival.is_late && arrival.cpus.is_none()));
        let (mut expected, mut arrivals, mut refused) = (published.clone(), Vec::new(), Vec::new());
        let mut effort = 0;
        for (place, mut arrival) in coming {
            effort += shape.effort(&arrival.request.pod);
            if effort > orders::MAX_EFFORT {
                expected.free = CpuSet::new();
                break;
            }
            let mut arrived = arrive::arrive(shape, &expected, &arrival.request, arrival.cpus.as_ref());
            let denied = arrival.cpus.take_if(|_| arrived.is_err());
            if denied.is_some() {
                arrived = arrive::arrive(shape, &expected, &arrival.request, None);
            }
            let most = arrival
                .request
                .vm
                .as_ref()
                .and_then(|vm| arrival.request.limit_milli(vm));
            let is_own =
                |cpus: &CpuSet| cpus.len() as u64 * 1000 <= most.unwrap_or(0) && cpus.is_subset(&expected.free);
            match (arrived, denied.filter(is_own)) {
                (Ok(outcome), _) => {
                    expected = outcome.left;
                    arrivals.push(arrival);
                }
                (Err(_), Some(cpus)) => {
                    expected.free = expected.free.difference(&cpus);
                    published.free = published.free.difference(&cpus);
                }
                (Err(refusal), None) => refused.push((place, refusal)),
            }
        }
        let forecast = Self {
            published,
            arrivals,
            expected,
        };
        (forecast, refused)
    }
}

/// Where the pod would run on the node.
///
/// # Errors
/// The node would refuse it.
pub fn evaluate(
    shape: &Shape,
    forecast: &NodeForecast,
    request: &Request,
    weights: &Weights,
) -> Result<Placement, Refusal> {
    let outcome = arrive::arrive(shape, &forecast.expected, request, None)?;
    let certain = orders::fits_in_every_order(shape, forecast, request, &outcome)?;
    let is_told = assigned_cpus(request, &outcome).is_some();
    let score = Score::of(shape, &forecast.expected, request, &outcome, weights);
    Ok(Placement {
        assigned_cpus: assigned_cpus(request, &outcome).cloned(),
        by: outcome.by,
        numa_nodes: outcome.numa_nodes,
        memory_nodes: outcome.memory_nodes,
        device_nodes: PlacedDevices::nodes(&outcome.devices),
        qos: outcome.qos.map(Qos::name),
        exclusivity: outcome
            .exclusivity
            .map_or(Exclusivity::NotAsked.name(), Exclusivity::name),
        vm_cpus: outcome.vm_cpus,
        cpus: outcome.cpus,
        // What is told to the node is taken there, whatever devices it gets.
        certain: certain && (!outcome.follows_plugin || is_told),
        score,
    })
}

/// The CPUs for the annotation; the node then gives the VM these or refuses it.
fn assigned_cpus<'a>(request: &Request, outcome: &'a Outcome) -> Option<&'a CpuSet> {
    let follows = request.vm.as_ref().is_some_and(|vm| vm.follows_scheduler);
    (follows && outcome.allocation.is_some() && !outcome.vm_cpus.is_empty()).then_some(&outcome.vm_cpus)
}

/// Whether a pod gets CPUs of its own on a node, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnCpus {
    Never,
    /// When kubelet admits the pod.
    AtAdmission,
    /// When its VM registers, which is after its container has started.
    AtRegistration,
}

/// Whether a pod gets CPUs of its own on nodes of this shape that have room for it.
pub fn own_cpus(shape: &Shape, request: &Request) -> OwnCpus {
    let guaranteed = request.pod.qos() == QosClass::Guaranteed;
    let whole = |milli: Option<u64>| milli.is_some_and(|milli| milli > 0 && milli.is_multiple_of(1000));
    let containers = || request.pod.containers.iter();
    let by_kubelet = shape.kubelet_reserved.is_some()
        && guaranteed
        && containers().any(|container| whole(container.resources.requests.milli_cpus));
    let registers = match (&shape.allocator, &request.vm) {
        (Some(policies), Some(vm)) => {
            let qos = vm.allocation.qos.unwrap_or(policies.qos);
            guaranteed && qos.is_exclusive()
        }
        _ => false,
    };
    match (by_kubelet, registers) {
        (true, _) => OwnCpus::AtAdmission,
        (false, true) => OwnCpus::AtRegistration,
        (false, false) => OwnCpus::Never,
    }
}
