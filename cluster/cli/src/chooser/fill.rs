//! How many of a pod fit where steliad chooses the CPUs.

use kubelet_planner::admit;
use stelia_koordinator::allocator::Qos;
use stelia_koordinator::allocator::evaluate::{self, EvaluateRequest};
use stelia_koordinator::report::Facts;

use super::{Fits, devices};
use crate::pod_request::PodRequest;
use crate::reasons::Refusal;

/// Registers copies of the pod until one is refused, at most `most`.
pub(super) fn fill(facts: &Facts, pod_request: &PodRequest, most: u64) -> Fits {
    let (mut facts, request) = (facts.clone(), pod_request.request());
    let mut subject = devices::devices_of(&facts, pod_request);
    let mut together = subject.as_ref().map(|_| 0);
    let fits = |count, together, then| Fits { count, together, then };
    for count in 0..most {
        let mut containers = Vec::new();
        if let Some(subject) = &mut subject {
            let mut pod = pod_request.pod.clone();
            pod.uid = format!("{}-{count}", pod.uid);
            match admit(&subject.node, &pod) {
                Ok(admission) => {
                    containers = admission.containers;
                    subject.node = admission.node;
                }
                Err(rejection) => {
                    let refusal = Refusal::of_kubelet(&rejection, subject, pod_request);
                    return fits(count, together, Some(refusal));
                }
            }
        }
        let nodes = subject.as_ref();
        let nodes = nodes.map(|subject| devices::device_nodes(subject, &containers));
        let near = nodes.unwrap_or_default();
        let node = facts.allocator_node();
        let fit = match node.and_then(|node| evaluate::answer_near(&node, &request, &near)) {
            Ok(fit) => fit,
            Err(error) => return fits(count, together, Some(Refusal::of_steliad(&error))),
        };
        if let (Some(subject), Some(together)) = (&subject, &mut together) {
            let locality = devices::worst(subject, &containers, Some(&fit.runs_on));
            *together += u64::from(locality.is_some_and(|locality| locality.verdict.is_together()));
        }
        if fit.cpus.is_empty() && subject.is_none() {
            // On a shared pool: nothing is used up.
            break;
        }
        take(&mut facts, &request, &fit);
    }
    fits(most, together, None)
}

/// The node with one more instance.
fn take(facts: &mut Facts, request: &EvaluateRequest, fit: &evaluate::Fit) {
    use stelia_koordinator::allocator::CpuExclusivePolicy as Policy;
    facts.exclusive.union_with(&fit.cpus);
    facts.shared = facts.shared.difference(&fit.cpus);
    let Some(allocator) = &mut facts.allocator else { return };
    if fit.qos == Qos::Lsr {
        allocator.lsr.union_with(&fit.cpus);
    }
    let asked = request.allocation.cpu_exclusive_policy.unwrap_or_default();
    match asked.or(allocator.policies.exclusive) {
        Policy::PcpuLevel => allocator.held.pcpu_level.union_with(&fit.cpus),
        Policy::NumaNodeLevel => allocator.held.numa_node_level.union_with(&fit.cpus),
        Policy::None | Policy::Default => {}
    }
}
