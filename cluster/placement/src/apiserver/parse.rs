//! The parts of pods and nodes' objects that this program reads.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use stelia_cpus::CpuSet;
use stelia_cpus::quantity::Quantity;
use stelia_kubelet::Uid;
use stelia_placement_rules::request::VM_RESOURCE;

use super::watch::Source;
use crate::reservations::{NodeName, Version};

/// Pods that have not succeeded. Failed pods are among them: only its status says that a node refused a pod.
pub const PODS: Source = Source {
    path: "/api/v1/pods",
    fields: "status.phase!=Succeeded",
};
pub const OBJECTS: Source = Source {
    path: "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
    fields: "",
};

/// A pod, without what it asks for.
#[derive(Debug, Clone)]
pub struct ParsedPod {
    /// `metadata.uid`. Whoever may make pods may write every annotation, so no other text names a pod.
    pub uid: Uid,
    /// kubelet's UID of a static pod, by which the node's object shows it. kubelet runs no other pod with this annotation.
    pub shown_as: Option<Uid>,
    /// `namespace/name`.
    pub name: Arc<str>,
    pub version: Version,
    pub node: Option<NodeName>,
    /// For which node kube-scheduler evicts victims for it.
    pub nominated_node: Option<String>,
    /// The CPUs that a scheduler assigned to it.
    pub cpus: Option<CpuSet>,
    pub ending: bool,
    /// `status.phase` is Running.
    pub is_running: bool,
    /// `spec.priority`.
    pub priority: i64,
    /// kube-scheduler says that it found no node for it.
    pub unschedulable: bool,
    /// Its status says that it failed, and why.
    pub failed: Option<String>,
    /// Whether it may get CPUs of its own: it requests a VM, or one of its containers whole CPUs.
    pub may_own_cpus: bool,
    pub has_vm: bool,
    /// Whether its class allows CPUs of its own, as the API server says; true if it does not say so.
    pub may_be_guaranteed: bool,
    /// The sum of the whole CPUs of its containers, or those of the pod as a whole.
    pub whole_cpus: u64,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<String>,
    annotations: Annotations,
}

/// The annotations that are read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "scheduling.koordinator.sh/resource-status")]
    status: Option<String>,
    /// kubelet's UID of a static pod, whose mirror has another one.
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
    priority: i64,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    resources: Option<Resources>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Container {
    resources: Resources,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    limits: Limits,
    requests: Limits,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Limits {
    cpu: Option<Value>,
    #[serde(rename = "stelia.io/vm")]
    vm: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    reason: String,
    qos_class: Option<String>,
    nominated_node_name: Option<String>,
    conditions: Vec<Condition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    reason: String,
}

impl Condition {
    fn is_unschedulable(&self) -> bool {
        (&*self.r#type, &*self.status, &*self.reason) == ("PodScheduled", "False", "Unschedulable")
    }
}

/// The annotation's value, as far as it says CPUs.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Chosen {
    cpuset: String,
}

fn whole(cpu: &Value) -> Option<u64> {
    let milli = match cpu {
        Value::String(text) => text.parse::<Quantity>().ok()?.milli(),
        Value::Number(number) => number.as_u64()?.checked_mul(1000)?,
        _ => return None,
    };
    (milli > 0 && milli % 1000 == 0).then_some(milli / 1000)
}

impl Resources {
    fn has_vm(&self) -> bool {
        self.limits.vm.is_some() || self.requests.vm.is_some()
    }

    fn whole_cpus(&self) -> u64 {
        let cpus = |limits: &Limits| limits.cpu.as_ref().and_then(whole);
        cpus(&self.limits).or(cpus(&self.requests)).unwrap_or(0)
    }
}

/// Parses a pod. `None` if it has no UID or version.
pub fn pod(text: &str) -> Option<ParsedPod> {
    serde_json::from_str(text).ok().and_then(of_object)
}

/// As [`pod`], of a parsed document.
pub fn pod_of(document: &Value) -> Option<ParsedPod> {
    Object::deserialize(document).ok().and_then(of_object)
}

fn of_object(object: Object) -> Option<ParsedPod> {
    debug_assert_eq!(VM_RESOURCE, "stelia.io/vm");
    let Object { metadata, spec, status } = object;
    let containers = || {
        let all = spec.containers.iter().chain(&spec.init_containers);
        all.map(|container| &container.resources)
    };
    let own = || spec.resources.iter();
    let has_vm = containers().chain(own()).any(Resources::has_vm);
    let sum = containers().map(Resources::whole_cpus).fold(0, u64::saturating_add);
    let whole_cpus = own().map(Resources::whole_cpus).fold(sum, u64::max);
    let chosen = metadata.annotations.status.as_deref().unwrap_or_default();
    let chosen: Chosen = serde_json::from_str(chosen).unwrap_or_default();
    let cpus: Option<CpuSet> = chosen.cpuset.trim().parse().ok();
    Some(ParsedPod {
        uid: Uid::parse(&metadata.uid)?,
        shown_as: metadata.annotations.mirror.as_deref().and_then(Uid::parse),
        name: format!("{}/{}", metadata.namespace, metadata.name).into(),
        version: metadata.resource_version.parse().ok()?,
        node: spec.node_name.filter(|node| !node.is_empty()).map(Into::into),
        cpus: cpus.filter(|cpus| !cpus.is_empty()),
        priority: spec.priority,
        unschedulable: status.conditions.iter().any(Condition::is_unschedulable),
        ending: metadata.deletion_timestamp.is_some(),
        is_running: status.phase == "Running",
        nominated_node: status.nominated_node_name,
        failed: (status.phase == "Failed").then_some(status.reason),
        may_own_cpus: has_vm || whole_cpus > 0,
        has_vm,
        may_be_guaranteed: status.qos_class.is_none_or(|class| class == "Guaranteed"),
        whole_cpus,
    })
}

/// The metadata of a node's object.
#[derive(Debug)]
pub struct NodeObject {
    pub name: NodeName,
    pub version: Version,
}

/// `None`: it has no name or version.
pub fn node_object(text: &str) -> Option<NodeObject> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Metadata,
    }
    let Named { metadata } = serde_json::from_str(text).ok()?;
    Some(NodeObject {
        version: metadata.resource_version.parse().ok()?,
        name: Some(metadata.name).filter(|name| !name.is_empty())?.into(),
    })
}

/// The annotation's value that tells a runner its CPUs.
pub fn status(cpus: &CpuSet) -> String {
    serde_json::json!({"cpuset": cpus.to_string()}).to_string()
}
