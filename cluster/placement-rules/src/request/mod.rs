//! What a pod asks of a node: its resources, as kubelet's managers look at them, and what its VM's runner will ask of steliad.

mod environment;
mod options;
#[cfg(test)]
mod tests;

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use kubelet_planner::manifest::{self, ManifestError};
use kubelet_planner::{Amounts, Container, ContainerKind, Pod, Resources};
use serde_json::Value;
pub use stelia_api::VM_RESOURCE;
use stelia_cpus::text::excerpt;
use stelia_koordinator::allocator::evaluate::ScoringStrategy;
use stelia_koordinator::allocator::{AllocationRequest, Qos, koordinator};

use environment::{Environment, Text};

/// Koordinator's label of a pod, its class.
pub const QOS_CLASS: &str = "koordinator.sh/qosClass";
/// The UID of a pod that is only evaluated: nothing on any node has it.
const TRIAL_UID: &str = "tried";

/// What a pod asks. Equal requests have equal answers on equal nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// As the API server stores it, without UID.
    pub pod: Pod,
    /// Its VM; `None` of a pod that has none, for which kubelet alone decides.
    pub vm: Option<RequestedVm>,
    pub strategy: ScoringStrategy,
    /// It was not read in full: it counts by its CPUs, and whether it gets any of its own is not known.
    pub is_estimate: bool,
}

/// A pod's VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedVm {
    /// The container that asks for [`VM_RESOURCE`].
    pub container: String,
    /// What its runner asks of steliad's allocator.
    pub allocation: AllocationRequest,
    /// Whether the runner reads the CPUs that a scheduler assigned (`--resource-status`): the node then gives the VM these or refuses
    /// it. Otherwise the node chooses.
    pub follows_scheduler: bool,
}

/// Why a pod cannot be placed anywhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("containers {0:?} and {1:?} ask for {VM_RESOURCE}: a pod has one VM")]
    SeveralVms(String, String),
    #[error("container {container}: {problem}")]
    Options { container: String, problem: String },
    #[error("annotation {0}: {1}")]
    Annotation(&'static str, String),
}

impl Request {
    /// What a Pod asks, JSON as the API server gives it.
    ///
    /// # Errors
    /// The API server would not have stored it, or its runner would refuse it.
    pub fn of_pod(document: &Value, strategy: ScoringStrategy) -> Result<Self, RequestError> {
        let mut pod = manifest::pod(document)?;
        let count = |container: &Container| container.resources.limits.devices.get(VM_RESOURCE).copied();
        let asking = pod.containers.iter();
        let mut asking = asking.filter(|one| count(one).is_some_and(|count| count > 0));
        let vm = match (asking.next(), asking.next()) {
            (Some(one), Some(other)) => return Err(RequestError::SeveralVms(one.name.clone(), other.name.clone())),
            (Some(one), None) => Some(vm(document, &one.name)?),
            (None, _) => None,
        };
        // kube-scheduler compares it with the node's status, and its devices are at no NUMA node, so it changes nothing of kubelet's choice.
        for container in &mut pod.containers {
            container.resources.limits.devices.remove(VM_RESOURCE);
            container.resources.requests.devices.remove(VM_RESOURCE);
        }
        Ok(Self::new(pod, vm, strategy))
    }

    /// A pod that is on a node although its document cannot be read in full. It counts by its whole CPUs alone, as those of one container.
    pub fn of_cpus(cpus: u64, has_vm: bool, strategy: ScoringStrategy) -> Self {
        let amounts = Amounts {
            milli_cpus: Some(cpus.saturating_mul(1000)),
            memory: Some(1),
            ..Amounts::default()
        };
        let container = Container::new("all", ContainerKind::App, Resources::guaranteed(amounts));
        let vm = has_vm.then(|| RequestedVm {
            container: container.name.clone(),
            allocation: AllocationRequest::default(),
            follows_scheduler: false,
        });
        let pod = Pod {
            containers: vec![container],
            ..Pod::default()
        };
        Self {
            is_estimate: true,
            ..Self::new(pod, vm, strategy)
        }
    }

    /// The pod's UID does not count: an answer is of one pod more.
    pub fn new(pod: Pod, vm: Option<RequestedVm>, strategy: ScoringStrategy) -> Self {
        let pod = Pod {
            uid: TRIAL_UID.to_owned(),
            ..pod
        };
        Self {
            pod,
            vm,
            strategy,
            is_estimate: false,
        }
    }

    /// The CPU limit of the VM's container and of its pod, whichever is less, thousandths; `None` without one. kubelet
    /// writes at least 10 into `cpu.max`.
    pub(crate) fn limit_milli(&self, vm: &RequestedVm) -> Option<u64> {
        let mut containers = self.pod.containers.iter();
        let container = containers.find(|container| container.name == vm.container);
        let own = container.and_then(|container| container.resources.limits.milli_cpus);
        let pods = self.pod.own().and_then(|own| own.limits.milli_cpus);
        let limits = [own, pods].into_iter().flatten().filter(|milli| *milli > 0);
        limits.min().map(|milli| milli.max(MIN_QUOTA_MILLI_CPUS))
    }
}

/// `MinMilliCPUQuota` of kubelet: a quota of 1 ms in 100 ms.
const MIN_QUOTA_MILLI_CPUS: u64 = 10;

/// The class of a pod's VM: that of the command line's option, or else that of the pod's label [`QOS_CLASS`]. A label that names no class is ignored.
pub fn qos_class(option: Option<Qos>, label: Option<&str>) -> Option<Qos> {
    option.or_else(|| label.and_then(Qos::parse))
}

fn container<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let lists = [&pod["spec"]["containers"], &pod["spec"]["initContainers"]];
    let mut all = lists.into_iter().filter_map(Value::as_array).flatten();
    all.find(|one| one["name"].as_str() == Some(name))
}

fn vm(document: &Value, container: &str) -> Result<RequestedVm, RequestError> {
    let found = self::container(document, container).unwrap_or(&Value::Null);
    let environment = Environment::of(document, found);
    let words = [&found["command"], &found["args"]].into_iter();
    let words = words.filter_map(Value::as_array);
    let words = words.flatten().filter_map(Value::as_str);
    let words: Vec<Text> = words.map(|word| environment.expand(word)).collect();
    let refused = |problem| RequestError::Options {
        container: container.to_owned(),
        problem,
    };
    let options = options::parse(&words).map_err(refused)?;
    let mut allocation = options.allocation;
    allocation.qos = qos_class(allocation.qos, document["metadata"]["labels"][QOS_CLASS].as_str());
    if options.has_spec {
        let text = document["metadata"]["annotations"][koordinator::RESOURCE_SPEC].as_str();
        koordinator::add_spec(&mut allocation, text.unwrap_or_default())
            .map_err(|problem| RequestError::Annotation(koordinator::RESOURCE_SPEC, excerpt::excerpt(&problem)))?;
    }
    Ok(RequestedVm {
        container: container.to_owned(),
        allocation,
        follows_scheduler: options.has_status,
    })
}

/// A request that is stored once: two are equal if they are the same one.
#[derive(Debug, Clone)]
pub struct SharedRequest(Arc<Request>);

impl SharedRequest {
    pub fn new(request: Request) -> Self {
        Self(Arc::new(request))
    }

    /// The same for the same request, as long as it is stored.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

impl Deref for SharedRequest {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.0
    }
}

impl PartialEq for SharedRequest {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedRequest {}

impl Hash for SharedRequest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}
