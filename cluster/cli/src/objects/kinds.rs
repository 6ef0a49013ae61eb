//! Nodes and pods. Only these fields of each object are read.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Node, PodCondition, PodStatus, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta;
use kubelet_planner::{Amounts, ContainerKind, Pod, manifest};
use serde::Deserialize;
use serde_json::{Value, json};
use stelia_cpus::quantity::Quantity;
use stelia_cpus::text::excerpt;
use stelia_koordinator::report::meta::ObjectMeta;
use stelia_kubelet::QosClass;
use stelia_placement_rules::request::VM_RESOURCE;

/// The label by which a node says that VMs can be admitted on it.
const READY: &str = "stelia.io/ready";
/// The label by which the DaemonSet of publishers chooses its nodes.
const CHOSEN_NODE: (&str, &str) = ("stelia.io/steliad", "true");
/// The condition by which a publisher says whether the pod's VM is isolated.
const ISOLATED: &str = "stelia.io/isolated";

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

impl NodeObject {
    /// The node's name, and what is kept of it.
    pub(super) fn read(text: &str) -> Result<(String, Self), String> {
        let Node { metadata, spec, status } = serde_json::from_str(text).map_err(|cause| excerpt::cause(&cause))?;
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let name = metadata.name.unwrap_or_default();
        let name = stelia_koordinator::report::name::check(name).map_err(|cause| cause.to_string())?;
        let amounts = status.allocatable.into_iter().flatten();
        let mut conditions = status.conditions.into_iter().flatten();
        let node = Self {
            labels: metadata.labels.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            cordoned: spec.unschedulable.unwrap_or(false),
            not_ready: conditions
                .find(|condition| condition.type_ == "Ready" && condition.status != "True")
                .map(|condition| excerpt::cause(&condition.message.unwrap_or_default())),
            allocatable: amounts
                .filter_map(|(name, amount)| Some((name, amount.0.parse().ok()?)))
                .collect(),
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

/// A pod.
#[derive(Debug, Clone)]
pub struct PodObject {
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Where it may run, and where it is bound.
    pub spec: PodSpec,
    /// Its containers, as kubelet's planner takes them, or why its requests are not known.
    pub pod: Result<Pod, String>,
    /// Whether it names [`VM_RESOURCE`].
    pub has_vm_resource: bool,
    /// What the publisher of its node says of its VM; `None` where no publisher wrote it.
    pub isolation: Option<Box<PodCondition>>,
    pub status: Status,
}

/// What the API server says of a pod. A cluster has many: the rest of their status is not kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    pub phase: Option<String>,
    pub reason: Option<String>,
    /// kubelet's message, or the scheduler's where it found no node.
    pub message: Option<String>,
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
    pub overhead: Option<Value>,
    /// What [`Pod`] has of these is read, and they are not kept.
    containers: Value,
    init_containers: Option<Value>,
    resources: Option<Value>,
}

#[derive(Deserialize)]
struct RawPod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    status: Option<PodStatus>,
}

impl PodObject {
    /// The pod's namespace and name, and what is kept of it.
    ///
    /// # Errors
    /// It is no pod.
    pub(crate) fn read(text: &str) -> Result<((String, String), Self), String> {
        let written: RawPod = serde_json::from_str(text).map_err(|cause| excerpt::cause(&cause))?;
        let (mut spec, status) = (written.spec, written.status.unwrap_or_default());
        let conditions = status.conditions.unwrap_or_default();
        let mut unscheduled = conditions.iter();
        let unscheduled =
            unscheduled.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
        let unscheduled = unscheduled.and_then(|condition| condition.message.clone());
        let isolation = conditions.into_iter().find(|condition| condition.type_ == ISOLATED);
        let kept = Self {
            uid: written.metadata.uid,
            labels: written.metadata.labels,
            annotations: written.metadata.annotations,
            pod: spec.take_containers(),
            spec,
            has_vm_resource: text.contains(VM_RESOURCE),
            isolation: isolation.map(Box::new),
            status: Status {
                phase: status.phase,
                reason: status.reason,
                message: status.message.or(unscheduled),
            },
        };
        let namespace = written.metadata.namespace.unwrap_or_else(|| "default".to_owned());
        Ok(((namespace, written.metadata.name), kept))
    }

    /// Where it is bound.
    pub fn node(&self) -> Option<&str> {
        self.spec.node_name.as_deref().filter(|node| !node.is_empty())
    }

    /// Whether it has ended: its requests count no more.
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// What the scheduler counts for it.
    pub fn requests(&self) -> Amounts {
        let mut requests = self.pod.as_ref().map(Pod::requests).unwrap_or_default();
        let overhead = |name: &str| {
            self.spec
                .overhead
                .as_ref()?
                .get(name)?
                .as_str()?
                .parse::<Quantity>()
                .ok()
        };
        if let Some(cpu) = overhead("cpu") {
            requests.milli_cpus = Some(requests.milli_cpus.unwrap_or(0).saturating_add(cpu.milli()));
        }
        if let Some(memory) = overhead("memory") {
            requests.memory = Some(requests.memory.unwrap_or(0).saturating_add(memory.value()));
        }
        requests
    }

    /// How many CPUs of its own it would have where exclusive CPUs are given out.
    pub fn own_cpus(&self) -> u64 {
        self.pod.as_ref().map_or(0, own_cpus)
    }
}

impl PodSpec {
    /// The containers as kubelet's planner takes them.
    fn take_containers(&mut self) -> Result<Pod, String> {
        let mut fields = json!({ "containers": reduced(self.containers.take()) });
        if let Some(containers) = self.init_containers.take() {
            fields["initContainers"] = reduced(containers);
        }
        if let Some(resources) = self.resources.take() {
            fields["resources"] = resources;
        }
        manifest::pod(&json!({ "metadata": {}, "spec": fields })).map_err(|cause| cause.to_string())
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
    milli
        .filter(|milli| milli.is_multiple_of(1000))
        .fold(0, |all: u64, milli| all.saturating_add(milli / 1000))
}

/// When the object was last written by who publishes it.
pub(super) fn written_us(text: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Object {
        metadata: meta::v1::ObjectMeta,
    }
    let Object { metadata } = serde_json::from_str(text).ok()?;
    let managers = metadata.managed_fields?.into_iter();
    managers.filter_map(|manager| microseconds(&manager.time?)).max()
}

/// A time of the API, in microseconds since the epoch.
pub(crate) fn microseconds(time: &meta::v1::Time) -> Option<u64> {
    u64::try_from(time.0.as_microsecond()).ok()
}
