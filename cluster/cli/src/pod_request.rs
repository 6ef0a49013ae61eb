//! The pod that is asked about: from the cluster, from a manifest, or in words.

use std::mem;

use kubelet_planner::manifest::NodeRequirements;
use kubelet_planner::{Amounts, ContainerKind, Pod, manifest};
use serde::Deserialize;
use serde_json::Value;
use stelia_koordinator::allocator::evaluate::{EvaluateRequest, SchedulerOptions};
use stelia_koordinator::allocator::{AllocationRequest, koordinator};
use stelia_koordinator::report::meta::ObjectMeta;
use stelia_placement_rules::request::{self, QOS_CLASS};

use crate::cluster::Cluster;
use crate::objects::{self, NodeObject, PodKey, PodSpec, Status};

/// A pod, and what it requests from the scheduler and from the program that chooses its CPUs.
#[derive(Debug, Clone, Default)]
pub struct PodRequest {
    /// As the answer calls it.
    pub name: String,
    /// Namespace and name, for a pod of the cluster: what it uses itself is counted as free for it.
    pub key: Option<PodKey>,
    pub pod: Pod,
    /// What the scheduler counts.
    pub requests: Amounts,
    /// Where it may run.
    pub spec: PodSpec,
    /// What its labels, its annotations and the command line ask of steliad's allocator.
    pub allocation: AllocationRequest,
    /// The status of a pod of the cluster.
    pub status: Status,
    /// What KubeVirt requires of the node of a VM, until [`Self::in_cluster`] makes it part of `spec` and `requests`.
    pub(crate) requirements: NodeRequirements,
    /// What was assumed to make the pod of a template.
    pub assumed: Vec<String>,
}

impl PodRequest {
    /// Containers in words, as `steliactl plan --container` takes them.
    ///
    /// # Errors
    /// They are not understood.
    pub fn in_words(containers: &[String], allocation: &AllocationRequest) -> Result<Self, String> {
        let pod = manifest::in_words(containers).map_err(|cause| format!("--container: {cause}"))?;
        Ok(Self {
            name: "pod".to_owned(),
            requests: pod.requests(),
            pod,
            allocation: allocation.clone(),
            ..Self::default()
        }
        .with_uid())
    }

    /// The only pod of a manifest, or the one with this name: a Pod, or an object with the template of one.
    ///
    /// # Errors
    /// There is none, or it is not understood.
    pub fn of_manifest(text: &str, name: Option<&str>, allocation: &AllocationRequest) -> Result<Self, String> {
        // Which of the documents it is, and whether the API server would take its resources.
        let found = manifest::described(text, name).map_err(|cause| cause.to_string())?;
        let mut document = found.document;
        // A manifest may leave the name to the API server.
        document["metadata"]["name"] = Value::String(found.name.clone());
        let pod_request = Self::of(found.name, &document.to_string(), allocation)?;
        Ok(Self {
            requirements: found.requirements,
            assumed: found.assumed,
            ..pod_request
        })
    }

    /// The same in this cluster: the labels and devices that KubeVirt requires of a VM's node become part of it, if any node has labels or
    /// devices of KubeVirt. Otherwise nodes without them would all be refused where they are only not described.
    #[must_use]
    pub fn in_cluster(mut self, cluster: &Cluster) -> Self {
        let requirements = mem::take(&mut self.requirements);
        let is_of_kubevirt = |node: &NodeObject| {
            let mut resources = node.allocatable.keys();
            node.labels.contains_key(NodeRequirements::NODE_LABEL)
                || resources.any(|resource| NodeRequirements::is_device(resource))
        };
        let mut nodes = cluster.members.iter().filter_map(|member| member.node.as_ref());
        if nodes.any(is_of_kubevirt) {
            if !requirements.labels.is_empty() {
                let selector = self.spec.node_selector.get_or_insert_default();
                selector.extend(requirements.labels);
            }
            self.requests.devices.extend(requirements.devices);
            return self;
        }
        let (labels, devices) = (requirements.labels_in_words(), requirements.devices_in_words());
        for (kind, names) in [("labels", labels), ("devices", devices)] {
            if !names.is_empty() {
                let none = format!("none of the nodes has {kind} of KubeVirt, and they are not considered");
                let assumed = format!("KubeVirt requires the {kind} {names} of the node: {none}");
                self.assumed.push(assumed);
            }
        }
        self
    }

    /// A pod of the cluster, as the API server has it.
    ///
    /// # Errors
    /// It is not understood.
    pub fn of_cluster(key: &PodKey, pod: &str, allocation: &AllocationRequest) -> Result<Self, String> {
        let (namespace, name) = key;
        let pod_request = Self::of(format!("{namespace}/{name}"), pod, allocation)?;
        Ok(Self {
            key: Some(key.clone()),
            ..pod_request
        })
    }

    fn of(name: String, text: &str, given: &AllocationRequest) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Asked {
            metadata: ObjectMeta,
            #[serde(default)]
            spec: PodSpec,
            status: Option<Status>,
        }
        let Asked { metadata, spec, status } = objects::parse(text)?;
        let (pod, requests) = objects::asked(text)?;
        let mut allocation = given.clone();
        allocation.qos = request::qos_class(allocation.qos, metadata.labels.get(QOS_CLASS).map(String::as_str));
        if let Some(text) = metadata.annotations.get(koordinator::RESOURCE_SPEC) {
            let failed = |cause| format!("annotation {}: {cause}", koordinator::RESOURCE_SPEC);
            koordinator::add_spec(&mut allocation, text).map_err(failed)?;
        }
        Ok(Self {
            name,
            requests,
            pod,
            spec,
            allocation,
            status: status.unwrap_or_default().with_schedulers_message(),
            ..Self::default()
        }
        .with_uid())
    }

    /// The question is about one more pod: with a UID that kubelet knows the answer would be what that pod has.
    fn with_uid(mut self) -> Self {
        "plan".clone_into(&mut self.pod.uid);
        self
    }

    /// What is asked of steliad's allocator: CPUs for the container that runs the VM, which is the one with the most.
    pub fn request(&self) -> EvaluateRequest {
        let lasting = self.pod.containers.iter().filter(|one| one.kind != ContainerKind::Init);
        let limits = lasting.filter_map(|one| one.resources.limits.milli_cpus);
        let limit = limits.max().and_then(|milli| u32::try_from(milli).ok());
        EvaluateRequest {
            allocation: AllocationRequest {
                cpu_limit: self.allocation.cpu_limit.or(limit),
                ..self.allocation.clone()
            },
            options: SchedulerOptions {
                kubernetes_class: Some(self.pod.qos()),
                ..SchedulerOptions::default()
            },
        }
    }
}
