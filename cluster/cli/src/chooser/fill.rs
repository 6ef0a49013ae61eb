//! One more pod on a node, and copies of a pod until one is refused.

use kubelet_planner::{Node, Pod, admit};
use stelia_koordinator::allocator::evaluate::{self, EvaluateRequest, Fit};
use stelia_koordinator::allocator::{AllocatorNode, Qos};
use stelia_koordinator::report::Facts;
use stelia_node_plan::Subject;
use stelia_node_plan::planned_nodes::PlannedNodes;

use super::{Fits, devices};
use crate::pod_request::PodRequest;
use crate::reasons::Refusal;

/// What one more pod gets.
pub(super) struct Placed {
    /// kubelet's part of the node with the pod.
    after: Option<Node>,
    /// steliad's answer.
    fit: Option<Fit>,
    /// The NUMA nodes of its devices and CPUs, as far as they are published.
    pub(super) nodes: Option<PlannedNodes>,
}

/// Admits the pod: `kubelet` all of it, or where `steliad` chooses the CPUs its devices.
pub(super) fn place(
    kubelet: Option<&Subject>,
    steliad: Option<&AllocatorNode>,
    pod_request: &PodRequest,
    pod: &Pod,
) -> Result<Placed, Refusal> {
    let refused = |subject| move |rejection: Box<_>| Refusal::of_kubelet(&rejection, subject, pod_request);
    let admission = kubelet.map(|subject| admit(&subject.node, pod).map_err(refused(subject)));
    let admission = admission.transpose()?;
    let with_devices = kubelet.zip(admission.as_ref());
    let near = with_devices.map(|(subject, admission)| devices::device_nodes(subject, &admission.containers));
    let near = near.unwrap_or_default();
    let fit = steliad.map(|node| evaluate::answer_near(node, &pod_request.request(), &near));
    let fit = fit.transpose().map_err(|error| Refusal::of_steliad(&error))?;
    let nodes = with_devices.and_then(|(subject, admission)| {
        let cpus = fit.as_ref().map(|fit| &fit.runs_on);
        devices::worst(subject, &admission.containers, cpus)
    });
    Ok(Placed {
        after: admission.map(|admission| admission.node),
        fit,
        nodes,
    })
}

/// Admits copies of the pod until one is refused, at most `most`.
pub(super) fn until_full(
    mut kubelet: Option<Subject>,
    mut steliad: Option<Facts>,
    pod_request: &PodRequest,
    most: u64,
) -> Fits {
    let asked = |subject: &Subject| devices::asked_devices(&subject.node, pod_request).next().is_some();
    let mut fits = Fits {
        together: kubelet.as_ref().is_some_and(asked).then_some(0),
        ..Fits::default()
    };
    let (mut pod, request) = (pod_request.pod.clone(), pod_request.request());
    while fits.count < most {
        pod.uid = format!("{}-{}", pod_request.pod.uid, fits.count);
        let node = steliad.as_ref().and_then(|facts| facts.allocator_node().ok());
        let Placed { after, fit, nodes } = match place(kubelet.as_ref(), node.as_ref(), pod_request, &pod) {
            Ok(placed) => placed,
            Err(refusal) => {
                fits.then = Some(refusal);
                break;
            }
        };
        fits.count += 1;
        if let Some(together) = &mut fits.together {
            *together += u64::from(nodes.is_some_and(|nodes| nodes.verdict.is_together()));
        }
        if fit.as_ref().is_some_and(|fit| fit.cpus.is_empty()) && kubelet.is_none() {
            // On a shared pool: nothing is used up.
            fits.count = most;
        }
        if let (Some(subject), Some(after)) = (&mut kubelet, after) {
            subject.node = after;
        }
        if let (Some(facts), Some(fit)) = (&mut steliad, fit) {
            take(facts, &request, &fit);
        }
    }
    fits
}

/// The node with one more instance.
fn take(facts: &mut Facts, request: &EvaluateRequest, fit: &Fit) {
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
