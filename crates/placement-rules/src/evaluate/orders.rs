//! Pods that are on their way arrive in any order.
//!
//! A node admits pods one after the other as they come, not as they were placed, and where it chooses their CPUs itself the order
//! can decide which ones it has room for: two NUMA nodes of 4 and 3 free CPUs have room for pods of 2, 3 and 2, but not if the 3 come first. So a pod
//! is placed only where it and all that are on their way find room in whatever order they arrive. Pods with assigned CPUs, on a node where
//! kubelet assigns none, do not depend on each other: no CPUs are assigned twice.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;

use super::arrive::{Outcome, arrive};
use super::{DecidedBy, NodeForecast, Refusal};
use crate::node::{FreeResources, Shape};
use crate::request::Request;

/// Limit of the pods on their way to a node whose order matters; the next one waits until the node's object names one of
/// them.
pub const MAX_PODS_ON_THEIR_WAY: usize = 5;
/// Limit of the different states of the node that are followed for a set of pods.
const MAX_STATES: usize = 24;

struct PendingPod<'a> {
    request: &'a Request,
    assigned: Option<&'a CpuSet>,
}

impl PendingPod<'_> {
    fn equals(&self, other: &Self) -> bool {
        std::ptr::eq(self.request, other.request) && self.assigned == other.assigned
    }
}

/// Checks that all pods find room in every order, and returns whether the new pod gets the same CPUs in each.
pub(super) fn fits_in_every_order(
    shape: &Shape,
    forecast: &NodeForecast,
    request: &Request,
    outcome: &Outcome,
) -> Result<bool, Refusal> {
    let assigned = super::assigned_cpus(request, outcome);
    let mut all: Vec<PendingPod<'_>> = forecast
        .arrivals
        .iter()
        .map(|arrival| PendingPod {
            request: &arrival.request,
            assigned: arrival.cpus.as_ref(),
        })
        .collect();
    if all.is_empty() {
        return Ok(true);
    }
    all.push(PendingPod { request, assigned });
    let asks_devices = |one: &PendingPod<'_>| {
        let mut containers = one.request.pod.containers.iter();
        containers.any(|container| !container.resources.limits.devices.is_empty())
    };
    let depends = shape.kubelet_decides() || all.iter().any(|one| one.assigned.is_none() || asks_devices(one));
    if !depends {
        return Ok(true);
    }
    if all.len() > MAX_PODS_ON_THEIR_WAY + 1 {
        return Err(must_wait(format!(
            "{} pods are on their way to the node already",
            forecast.arrivals.len()
        )));
    }
    try_every_order(shape, forecast, &all)
}

fn must_wait(text: String) -> Refusal {
    Refusal::new(DecidedBy::Scheduler, "PodsOnTheirWay", text)
}

/// Goes through the sets of pods that may have arrived, each with all states that it can leave the node in. The last of `all` is the new pod.
fn try_every_order(shape: &Shape, forecast: &NodeForecast, all: &[PendingPod<'_>]) -> Result<bool, Refusal> {
    let newest = all.len() - 1;
    // The CPUs that the new pod got.
    let mut got: Option<CpuSet> = None;
    // Equal pods without assigned CPUs are interchangeable.
    let mut certain = !all
        .iter()
        .take(newest)
        .any(|one| one.assigned.is_none() && one.equals(&all[newest]));
    let mut left: BTreeMap<usize, Vec<FreeResources>> = [(0, vec![forecast.published.clone()])].into();
    for set in 1usize..1 << all.len() {
        let mut states: Vec<FreeResources> = Vec::new();
        for (last, coming) in all.iter().enumerate().filter(|(last, _)| set >> last & 1 == 1) {
            // Equal pods keep their order.
            let later = all.iter().enumerate().skip(last + 1);
            if later
                .clone()
                .any(|(at, other)| set >> at & 1 == 1 && other.equals(coming))
            {
                continue;
            }
            for before in left.get(&(set & !(1 << last))).into_iter().flatten() {
                let arrived = arrive(shape, before, coming.request, coming.assigned);
                let outcome = arrived.map_err(|refusal| {
                    must_wait(format!(
                        "it depends on the order in which pods on their way arrive: {}",
                        refusal.text
                    ))
                })?;
                if last == newest {
                    certain &= got.as_ref().is_none_or(|cpus| *cpus == outcome.cpus);
                    got = Some(outcome.cpus);
                }
                if !states.contains(&outcome.left) {
                    states.push(outcome.left);
                }
                if states.len() > MAX_STATES {
                    return Err(must_wait(
                        "too much depends on the order in which pods on their way arrive".to_owned(),
                    ));
                }
            }
        }
        left.insert(set, states);
    }
    Ok(certain)
}
