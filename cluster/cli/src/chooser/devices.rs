//! Where the devices of a pod would be, and whether its CPUs are there too.

use std::collections::BTreeSet;

use kubelet_planner::{ContainerAllocation, Node};
use stelia_cpus::{CpuSet, NodeSet};
use stelia_koordinator::report::Facts;
use stelia_node_plan::Subject;
use stelia_node_plan::hints::{self, by_node, free_words};
use stelia_node_plan::planned_nodes::{NodesVerdict, PlannedNodes};

use crate::pod_request::PodRequest;
use crate::reasons::Refusal;

/// Whether a pod's CPUs and devices would be on the same NUMA nodes of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLocality {
    pub verdict: NodesVerdict,
    /// The NUMA nodes of each, and what is free there.
    pub words: String,
}

/// The devices that a pod requests and whose NUMA nodes the node's object has.
pub(super) fn asked_devices<'a>(node: &'a Node, pod_request: &'a PodRequest) -> impl Iterator<Item = (&'a str, u64)> {
    let known = &node.state().devices.resources;
    let asked = pod_request.requests.devices.iter();
    let asked = asked.filter(|(resource, count)| **count > 0 && known.contains_key(*resource));
    asked.map(|(resource, count)| (resource.as_str(), *count))
}

/// The devices of a node where steliad chooses the CPUs, as kubelet gives them; `None` where the pod requests none of them.
pub(super) fn devices_of(facts: &Facts, pod_request: &PodRequest) -> Option<Subject> {
    let has = |resource: &String| facts.devices.values().any(|devices| devices.contains_key(resource));
    if !pod_request.requests.devices.keys().any(has) {
        return None;
    }
    let subject = Subject::described(facts).ok()?;
    asked_devices(&subject.node, pod_request).next()?;
    Some(subject)
}

/// The NUMA nodes of the devices, where no plugin chooses between several; steliad prefers CPUs there.
pub(super) fn device_nodes(subject: &Subject, containers: &[ContainerAllocation]) -> NodeSet {
    let state = &subject.node.state().devices;
    let nodes_of = |resource: &str, ids: &BTreeSet<String>| -> NodeSet {
        let devices = state.resources.get(resource);
        let devices = devices.into_iter();
        let devices = devices.flat_map(|all| ids.iter().filter_map(|id| all.get(id)));
        devices.flat_map(|device| device.nodes.iter().copied()).collect()
    };
    let chosen = containers.iter().flat_map(|given| &given.devices);
    let mut nodes = NodeSet::new();
    for (resource, chosen) in chosen {
        let among = nodes_of(resource, &chosen.among);
        if !chosen.certain && among.len() > 1 {
            return NodeSet::new();
        }
        nodes.extend(among);
    }
    nodes
}

/// The locality of the container with the worst one. `cpus`: those that steliad chooses.
pub(super) fn worst(
    subject: &Subject,
    containers: &[ContainerAllocation],
    cpus: Option<&CpuSet>,
) -> Option<PlannedNodes> {
    let with_devices = containers.iter().filter(|given| !given.devices.is_empty());
    let all = with_devices.filter_map(|given| match cpus {
        Some(cpus) => PlannedNodes::on(subject, cpus, given),
        None => PlannedNodes::of(subject, given),
    });
    all.max_by_key(|locality| locality.verdict)
}

/// The refusal of a pod with devices, with what is free.
pub(super) fn with_free(refusal: Refusal, subject: &Subject, pod_request: &PodRequest) -> Refusal {
    let state = &subject.node.state().cpus;
    let free = state.default.difference(&subject.node.reserved_cpus());
    match asked_devices(&subject.node, pod_request).next() {
        None => refusal,
        Some(_) => Refusal {
            detail: format!("{}; {}", refusal.detail, all_free(subject, pod_request, &free)),
            ..refusal
        },
    }
}

/// `free: 4 CPUs on NUMA 0, 8 CPUs on NUMA 1; 3 nvidia.com/gpu on NUMA 0, 0 nvidia.com/gpu on NUMA 1`. `free`: CPUs; none where another program gives them.
pub(super) fn all_free(subject: &Subject, pod_request: &PodRequest, free: &CpuSet) -> String {
    let cpus = (!free.is_empty()).then(|| free_words("cpu", &by_node(subject, free)));
    let devices = asked_devices(&subject.node, pod_request);
    let devices = devices.map(|(resource, _)| free_words(resource, &hints::free(subject, resource)));
    let words: Vec<String> = cpus.into_iter().chain(devices).collect();
    format!("free: {}", words.join("; "))
}
