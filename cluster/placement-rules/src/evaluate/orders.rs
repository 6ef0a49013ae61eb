//! Pods that are on their way arrive in any order.
//!
//! A node admits pods one after the other as they come, not as they were placed, and where it chooses their CPUs itself the order
//! can decide which ones it has room for: two NUMA nodes of 4 and 3 free CPUs have room for pods of 2, 3 and 2, but not if the 3 come first. So a pod
//! is placed only where it and all that are on their way find room in whatever order they arrive. Pods with assigned CPUs, on a node where
//! kubelet assigns none, do not depend on each other: no CPUs are assigned twice.

use stelia_cpus::CpuSet;

use super::arrive::{Outcome, arrive};
use super::refusal_names::PODS_ON_THEIR_WAY;
use super::{NodeForecast, Refusal};
use crate::node::{FreeResources, NodeShape};
use crate::request::Request;

/// Limit of the containers that are admitted one after the other to try all orders. Beyond it the next pod waits until the node's object names one of
/// those on their way: their authors choose how many different ones there are.
pub(super) const MAX_EFFORT: usize = 4000;
/// Limit of the different states of the node that are followed for a set of pods.
const MAX_STATES: usize = 24;

/// Pods with the same request and the same assigned CPUs, whose order does not matter.
struct EqualPods<'a> {
    request: &'a Request,
    assigned: Option<&'a CpuSet>,
    count: usize,
}

impl<'a> EqualPods<'a> {
    /// Adds a pod to those that it equals.
    fn add(all: &mut Vec<Self>, request: &'a Request, assigned: Option<&'a CpuSet>) {
        let equal = |group: &&mut Self| std::ptr::eq(group.request, request) && group.assigned == assigned;
        match all.iter_mut().find(equal) {
            Some(group) => group.count += 1,
            None => all.push(Self {
                request,
                assigned,
                count: 1,
            }),
        }
    }

    fn asks_devices(&self) -> bool {
        let mut containers = self.request.pod.containers.iter();
        containers.any(|container| !container.resources.limits.devices.is_empty())
    }
}

/// Checks that all pods find room in every order.
pub(super) fn fits_in_every_order(
    shape: &NodeShape,
    forecast: &NodeForecast,
    request: &Request,
    outcome: &Outcome,
) -> Result<(), Refusal> {
    let (mut pods, mut before) = (Vec::new(), forecast.published.clone());
    let told = forecast.arrivals.iter();
    let told = told.filter(|one| one.has_promised_cpus() && !one.is_late);
    let told: CpuSet = told.flat_map(|one| one.cpus.iter().flat_map(CpuSet::iter)).collect();
    let told = told.intersection(&before.free);
    // As in the forecast: a late pod has none of the CPUs that others were told.
    before.free = before.free.difference(&told);
    for arrival in &forecast.arrivals {
        if arrival.is_late {
            before = arrive(shape, &before, &arrival.request, arrival.cpus.as_ref())?.left
        } else {
            EqualPods::add(&mut pods, &arrival.request, arrival.cpus.as_ref());
        }
    }
    before.free.union_with(&told);
    if pods.is_empty() {
        return Ok(());
    }
    EqualPods::add(&mut pods, request, super::assigned_cpus(request, outcome));
    let depends = shape.kubelet_decides() || pods.iter().any(|one| one.assigned.is_none() || one.asks_devices());
    if depends {
        try_every_order(shape, before, &pods)
    } else {
        Ok(())
    }
}

fn must_wait(text: String) -> Refusal {
    Refusal::new(PODS_ON_THEIR_WAY, text)
}

fn too_much() -> Refusal {
    must_wait("too much depends on the order in which pods on their way arrive".to_owned())
}

/// Goes through the sets of pods that may have arrived, each with all states that it can leave the node in. A set is a number whose digits, of the base
/// that each group's count gives, say how many of the group have arrived.
fn try_every_order(shape: &NodeShape, before: FreeResources, pods: &[EqualPods<'_>]) -> Result<(), Refusal> {
    let sets = pods.iter().try_fold(1usize, |sets, group| {
        sets.checked_mul(group.count + 1).filter(|sets| *sets <= MAX_EFFORT)
    });
    let sets = sets.ok_or_else(too_much)?;
    let mut effort = 0;
    let mut left: Vec<Vec<FreeResources>> = vec![vec![before]];
    for set in 1..sets {
        let mut states: Vec<FreeResources> = Vec::new();
        let mut stride = 1;
        for group in pods {
            let arrived = set / stride % (group.count + 1);
            let without_last = set.checked_sub(stride).filter(|_| arrived > 0);
            stride *= group.count + 1;
            for before in without_last.and_then(|set| left.get(set)).into_iter().flatten() {
                effort += shape.effort(&group.request.pod);
                if effort > MAX_EFFORT {
                    return Err(too_much());
                }
                let outcome = arrive(shape, before, group.request, group.assigned).map_err(|refusal| {
                    let why = "it depends on the order in which pods on their way arrive";
                    must_wait(format!("{why}: {}", refusal.text))
                })?;
                if !states.contains(&outcome.left) {
                    states.push(outcome.left);
                }
                if states.len() > MAX_STATES {
                    return Err(too_much());
                }
            }
        }
        left.push(states);
    }
    Ok(())
}
