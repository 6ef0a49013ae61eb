//! Nodes and pods. Only these fields of each object are read, so that no other one can make it unreadable.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_planner::{Amounts, ContainerKind, Pod, manifest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use stelia_cpus::quantity::Quantity;
use stelia_cpus::text::excerpt;
use stelia_kubelet::QosClass;
use stelia_placement_rules::request::VM_RESOURCE;

use super::PodKey;

/// The label by which a node says that VMs can be admitted on it.
const READY: &str = "stelia.io/ready";
/// The label by which the DaemonSet of publishers chooses its nodes.
const CHOSEN_NODE: (&str, &str) = ("stelia.io/steliad", "true");
/// The condition by which a publisher says whether the pod's VM is isolated.
const ISOLATED: &str = "stelia.io/isolated";

/// A member that says nothing where it is `null` or of another type.
fn or_nothing<'de, T: Default + DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).unwrap_or_default())
}

pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|cause| excerpt::cause(&cause))
}

/// A condition of a Node or a pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    #[serde(rename = "type", deserialize_with = "or_nothing")]
    kind: String,
    #[serde(deserialize_with = "or_nothing")]
    pub status: String,
    #[serde(deserialize_with = "or_nothing")]
    pub reason: Option<String>,
    #[serde(deserialize_with = "or_nothing")]
    pub message: Option<String>,
    #[serde(deserialize_with = "or_nothing")]
    last_transition_time: Option<Time>,
}

impl Condition {
    /// Since when it has this status, microseconds since the epoch.
    pub fn since_us(&self) -> Option<u64> {
        microseconds(self.last_transition_time.as_ref()?)
    }
}

/// A taint of a Node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
    pub value: Option<String>,
    pub effect: String,
}

/// A Node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeObject {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`
    pub cordoned: bool,
    /// Why the Node is not `Ready`, by its condition: kubelet, the container runtime or the whole machine does not work.
    pub not_ready: Option<String>,
    /// `status.allocatable`; amounts that cannot be read are left out.
    pub allocatable: BTreeMap<String, Quantity>,
}

#[derive(Deserialize)]
struct RawNode {
    metadata: NodeMetadata,
    spec: Option<NodeSpec>,
    status: Option<NodeStatus>,
}

#[derive(Deserialize)]
struct NodeMetadata {
    name: String,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct NodeSpec {
    taints: Option<Vec<Taint>>,
    unschedulable: Option<bool>,
}

#[derive(Default, Deserialize)]
struct NodeStatus {
    allocatable: Option<BTreeMap<String, Value>>,
    conditions: Option<Vec<Condition>>,
}

impl NodeObject {
    /// The node's name, and what is kept of it.
    pub(super) fn read(text: &str) -> Result<(String, Self), String> {
        let RawNode { metadata, spec, status } = parse(text)?;
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let name = stelia_koordinator::report::name::check(metadata.name).map_err(|cause| cause.to_string())?;
        let amount = |amount: Value| match amount {
            Value::String(text) => text.parse().ok(),
            Value::Number(number) => number.to_string().parse().ok(),
            _ => None,
        };
        let amounts = status.allocatable.into_iter().flatten();
        let mut conditions = status.conditions.into_iter().flatten();
        let not_ready = conditions.find(|condition| condition.kind == "Ready" && condition.status != "True");
        let node = Self {
            labels: metadata.labels.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            cordoned: spec.unschedulable.unwrap_or(false),
            not_ready: not_ready.map(|condition| excerpt::cause(&condition.message.unwrap_or_default())),
            allocatable: amounts.filter_map(|(name, text)| Some((name, amount(text)?))).collect(),
        };
        Ok((name, node))
    }

    /// Whether VMs can be admitted, as its label says; `None` where nobody sets it.
    pub fn is_ready(&self) -> Option<bool> {
        self.labels.get(READY).map(|value| value == "true")
    }

    /// Whether steliad is meant to run there, as the Node says.
    pub fn is_for_vms(&self) -> bool {
        let (label, value) = CHOSEN_NODE;
        self.labels.get(label).is_some_and(|own| own == value)
            || self.labels.contains_key(READY)
            || self.allocatable.contains_key(VM_RESOURCE)
    }
}

/// What is kept of each pod: a cluster has hundreds of thousands.
#[derive(Debug, Clone, Default)]
pub struct PodObject {
    pub uid: String,
    /// Where it is bound.
    pub node: Option<String>,
    /// Whether its requests count no more.
    pub has_ended: bool,
    /// What the scheduler counts for it; nothing where that cannot be read.
    pub requests: Amounts,
    /// How many CPUs of its own it would have where exclusive CPUs are given out.
    pub own_cpus: u64,
    /// Whether it names [`VM_RESOURCE`].
    pub has_vm_resource: bool,
    /// What the publisher of its node says of its VM; `None` where no publisher wrote it.
    pub isolation: Option<Box<Condition>>,
}

/// What the API server says of a pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Status {
    #[serde(deserialize_with = "or_nothing")]
    pub phase: Option<String>,
    #[serde(deserialize_with = "or_nothing")]
    pub reason: Option<String>,
    /// kubelet's message, or the scheduler's where it found no node.
    #[serde(deserialize_with = "or_nothing")]
    pub message: Option<String>,
    #[serde(deserialize_with = "or_nothing")]
    conditions: Vec<Condition>,
}

/// The fields of a pod's `spec` that decide where it may run.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub node_name: Option<String>,
    pub node_selector: Option<BTreeMap<String, String>>,
    pub tolerations: Option<Vec<Toleration>>,
    pub affinity: Option<Affinity>,
    pub scheduling_gates: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct RawPod {
    metadata: PodMetadata,
    #[serde(default)]
    spec: Resources,
    status: Option<Status>,
}

#[derive(Deserialize)]
struct PodMetadata {
    name: String,
    namespace: Option<String>,
    #[serde(default, deserialize_with = "or_nothing")]
    uid: String,
}

/// The fields of a pod's `spec` that say what it requests, and where it is bound.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Resources {
    node_name: Option<String>,
    containers: Value,
    init_containers: Option<Value>,
    resources: Option<Value>,
    overhead: Value,
}

impl PodObject {
    /// The pod's namespace and name, what is kept of it, and why its requests cannot be read, if they cannot.
    ///
    /// # Errors
    /// It is no pod.
    pub(super) fn read(text: &str) -> Result<(PodKey, Self, Option<String>), String> {
        let RawPod { metadata, spec, status } = parse(text)?;
        let status = status.unwrap_or_default();
        let node = spec.node_name.clone();
        let (asked, problem) = match spec.asked() {
            Ok(asked) => (asked, None),
            Err(problem) => (<(Pod, Amounts)>::default(), Some(problem)),
        };
        let (pod, requests) = asked;
        let kept = Self {
            uid: metadata.uid,
            node: node.filter(|node| !node.is_empty()),
            has_ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            requests,
            own_cpus: own_cpus(&pod),
            has_vm_resource: text.contains(VM_RESOURCE),
            isolation: status.condition(ISOLATED).cloned().map(Box::new),
        };
        let namespace = metadata.namespace.unwrap_or_else(|| "default".to_owned());
        Ok(((namespace, metadata.name), kept, problem))
    }
}

/// What a pod asks of kubelet, and what the scheduler counts for it.
///
/// # Errors
/// It is no pod, or its requests cannot be read.
pub(crate) fn asked(text: &str) -> Result<(Pod, Amounts), String> {
    parse::<RawPod>(text)?.spec.asked()
}

impl Status {
    /// The same with the scheduler's message, where kubelet has none.
    #[must_use]
    pub(crate) fn with_schedulers_message(mut self) -> Self {
        let unscheduled = self.condition("PodScheduled").filter(|one| one.status == "False");
        let unscheduled = unscheduled.and_then(|condition| condition.message.clone());
        self.message = self.message.or(unscheduled);
        self
    }

    fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

fn with_overhead(mut requests: Amounts, overhead: &Value) -> Amounts {
    let amount = |name: &str| overhead[name].as_str()?.parse::<Quantity>().ok();
    if let Some(cpu) = amount("cpu") {
        requests.milli_cpus = Some(requests.milli_cpus.unwrap_or(0).saturating_add(cpu.milli()));
    }
    if let Some(memory) = amount("memory") {
        requests.memory = Some(requests.memory.unwrap_or(0).saturating_add(memory.value()));
    }
    requests
}

impl Resources {
    /// The containers as kubelet's planner takes them, and what the scheduler counts.
    fn asked(self) -> Result<(Pod, Amounts), String> {
        let mut fields = json!({ "containers": reduced(self.containers) });
        if let Some(containers) = self.init_containers {
            fields["initContainers"] = reduced(containers);
        }
        if let Some(resources) = self.resources {
            fields["resources"] = resources;
        }
        let pod = manifest::pod(&json!({ "metadata": {}, "spec": fields })).map_err(|cause| cause.to_string())?;
        let requests = with_overhead(pod.requests(), &self.overhead);
        Ok((pod, requests))
    }
}

/// The containers without the fields that no resource depends on.
fn reduced(mut containers: Value) -> Value {
    for container in containers.as_array_mut().into_iter().flatten() {
        if let Value::Object(fields) = container {
            fields.retain(|name, _| ["name", "resources", "restartPolicy"].contains(&name.as_str()));
        }
    }
    containers
}

/// The whole CPUs that the containers of a Guaranteed pod request, init containers aside.
pub(crate) fn own_cpus(pod: &Pod) -> u64 {
    if pod.qos() != QosClass::Guaranteed {
        return 0;
    }
    let lasting = pod.containers.iter().filter(|one| one.kind != ContainerKind::Init);
    let milli = lasting.filter_map(|one| one.resources.requests.milli_cpus);
    let whole = milli.filter(|milli| milli.is_multiple_of(1000));
    let whole = whole.map(|milli| milli / 1000);
    whole.fold(0, u64::saturating_add)
}

/// When the object was last written by who publishes it.
pub(super) fn written_us(text: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        managed_fields: Vec<Manager>,
    }
    #[derive(Deserialize)]
    struct Manager {
        #[serde(default, deserialize_with = "or_nothing")]
        time: Option<Time>,
    }
    let Object { metadata } = serde_json::from_str(text).ok()?;
    let times = metadata.managed_fields.iter();
    let times = times.filter_map(|manager| manager.time.as_ref());
    times.filter_map(microseconds).max()
}

/// A time of the API, in microseconds since the epoch.
fn microseconds(time: &Time) -> Option<u64> {
    u64::try_from(time.0.as_microsecond()).ok()
}
