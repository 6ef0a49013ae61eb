//! What a node would do with a request.
//!
//! kubelet admits or rejects the pod first, by all its managers; where steliad chooses the CPUs it decides afterwards, when the VM's
//! runner registers. Both are asked themselves ([`kubelet_planner`], [`stelia_koordinator::allocator`]), so an answer is the node's own, as long as
//! the pods that it knows of are the only ones.

mod arrive;
mod devices;
mod orders;
pub mod refusal_names;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_koordinator::allocator::AllocatorPolicies;
use stelia_kubelet::QosClass;

use crate::node::{FreeResources, NodeShape};
use crate::request::{Request, RequestedVm, SharedRequest};
use crate::score::Score;

pub use arrive::Outcome;
pub(crate) use devices::PlacedDevices;

/// Why a pod does not fit on a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// The reason in the pod's status by which kubelet would reject it, the name of the error that RegisterInstance would answer, or, of
    /// [`refusal_names`], why the node is not asked.
    pub name: &'static str,
    /// kubelet's message, or that error's text.
    pub text: String,
}

impl Refusal {
    pub(crate) fn new(name: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { name, text }
    }
}

/// Where a pod would run on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pub outcome: Outcome,
    /// The CPUs for the annotation resource-status: the VM's, if steliad chooses them and the runner reads the annotation.
    pub assigned_cpus: Option<CpuSet>,
    pub score: Score,
}

/// A pod that was placed on a node, and of which the node's object does not know yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Arrival<Q = SharedRequest> {
    pub request: Q,
    /// The CPUs that the annotation assigns to it; `None` if the node chooses.
    pub cpus: Option<CpuSet>,
    /// It should have arrived by now, and its author can put that off for ever: it counts as the first one, and no other order is tried.
    pub is_late: bool,
    /// Its CPUs were promised by the program that asks. Those of another scheduler's pod are what its author wrote, and may be anybody's.
    pub is_ours: bool,
}

impl Arrival {
    /// Whether it was promised its CPUs by number, so that nobody else's author takes them.
    pub(crate) fn has_promised_cpus(&self) -> bool {
        self.is_ours && self.cpus.is_some()
    }

    /// Free CPUs that include what it may take, whichever these are: its own ones, or as many as it requests of each NUMA node. A pod larger than the node is
    /// refused there, and takes none.
    fn most_cpus(&self, shape: &NodeShape, free: &CpuSet) -> CpuSet {
        if let Some(promised) = self.cpus.as_ref().filter(|_| self.is_ours) {
            return promised.clone();
        }
        let milli = self.request.pod.requests().milli_cpus.unwrap_or(0);
        let count = usize::try_from(milli.div_ceil(1000)).unwrap_or(usize::MAX);
        let fits = count <= shape.capacity().len();
        let by_node = if fits {
            shape.host.by_node(free)
        } else {
            BTreeMap::new()
        };
        by_node.values().flat_map(|cpus| cpus.iter().take(count)).collect()
    }
}

/// What a node has left, now and after the pods on their way to it have arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeForecast {
    /// As the node's object says.
    pub published: FreeResources,
    /// Those that find room: those that were told their CPUs first, then late ones, each kind in the order in which they were placed.
    pub arrivals: Vec<Arrival>,
    /// What will be left when these are there, if they arrive in this order.
    pub expected: FreeResources,
}

impl NodeForecast {
    /// What is left when these pods have arrived. Pods that no longer find room are left out of `arrivals`. What a pod was promised by number stays its
    /// own, also where the node would refuse the pod. Another scheduler's pod that does not get the CPUs of its annotation counts as one that the node chooses
    /// for; if it is too large for that, those of these CPUs that are free are taken all the same. Pods beyond `orders::MAX_EFFORT` are not asked about: as
    /// many CPUs as they may take are not free.
    pub fn new(shape: &NodeShape, mut published: FreeResources, mut coming: Vec<Arrival>) -> Self {
        let rank = |one: &Arrival| {
            (
                !one.has_promised_cpus(),
                !one.is_late,
                one.is_late && one.cpus.is_none(),
            )
        };
        coming.sort_by_key(rank);
        let (mut expected, mut arrivals) = (published.clone(), Vec::new());
        let mut effort = 0;
        for mut arrival in coming {
            let spent = effort + shape.effort(&arrival.request.pod);
            let outcome = if spent > orders::MAX_EFFORT {
                Err(arrival.most_cpus(shape, &expected.free))
            } else {
                effort = spent;
                arrive_or_hold(shape, &expected, &mut arrival)
            };
            match outcome {
                Ok(left) => {
                    expected = left;
                    arrivals.push(arrival);
                }
                Err(held) => {
                    expected.free = expected.free.difference(&held);
                    published.free = published.free.difference(&held);
                }
            }
        }
        Self {
            published,
            arrivals,
            expected,
        }
    }
}

/// What is left once the pod has arrived, or the CPUs that it holds although it finds no room.
fn arrive_or_hold(shape: &NodeShape, expected: &FreeResources, arrival: &mut Arrival) -> Result<FreeResources, CpuSet> {
    let request = arrival.request.clone();
    let arrive = |cpus: Option<&CpuSet>| arrive::arrive(shape, expected, &request, cpus).map(|outcome| outcome.left);
    if let Ok(left) = arrive(arrival.cpus.as_ref()) {
        return Ok(left);
    }
    let is_promised = arrival.has_promised_cpus();
    let Some(denied) = arrival.cpus.take() else {
        return Err(CpuSet::new());
    };
    if is_promised {
        return Err(denied);
    }
    arrive(None).map_err(|_| {
        // No pod gets more than its limit, whatever its annotation says.
        let most = request.vm.as_ref().and_then(|vm| request.limit_milli(vm)).unwrap_or(0);
        if denied.len() as u64 * 1000 <= most {
            denied.intersection(&expected.free)
        } else {
            CpuSet::new()
        }
    })
}

/// Where the pod would run on the node.
///
/// # Errors
/// The node would refuse it.
pub fn evaluate(shape: &NodeShape, forecast: &NodeForecast, request: &Request) -> Result<Placement, Refusal> {
    let outcome = arrive::arrive(shape, &forecast.expected, request, None)?;
    orders::fits_in_every_order(shape, forecast, request, &outcome)?;
    Ok(Placement {
        assigned_cpus: assigned_cpus(request, &outcome).cloned(),
        score: Score::of(shape, &forecast.expected, request, &outcome),
        outcome,
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
pub fn own_cpus(shape: &NodeShape, request: &Request) -> OwnCpus {
    let guaranteed = request.pod.qos() == QosClass::Guaranteed;
    let is_exclusive = |(policies, vm): (&AllocatorPolicies, &RequestedVm)| {
        let qos = vm.allocation.qos.unwrap_or(policies.qos);
        guaranteed && qos.is_exclusive()
    };
    let allocated = shape.allocator.as_ref().zip(request.vm.as_ref());
    if shape.kubelet.gives_own_cpus(&request.pod) {
        OwnCpus::AtAdmission
    } else if allocated.is_some_and(is_exclusive) {
        OwnCpus::AtRegistration
    } else {
        OwnCpus::Never
    }
}
