//! The pod that is asked about: from the cluster, from a manifest, or in words.

use kubelet_planner::{Amounts, ContainerKind, Pod, manifest};
use serde_json::Value;
use stelia_allocator::evaluate::{Request, SchedulerOptions};
use stelia_allocator::{AllocationRequest, koordinator};
use stelia_kubelet::config::yaml_options;
use stelia_placement_rules::request::{self, QOS_CLASS};
use stelia_text::excerpt;

use crate::objects::{PodDetails, PodKey, PodSpec, Status, with_overhead};

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

    /// The only Pod of a manifest, or the one with this name.
    ///
    /// # Errors
    /// There is none, or it is not understood.
    pub fn of_manifest(text: &str, name: Option<&str>, allocation: &AllocationRequest) -> Result<Self, String> {
        // Which of the documents it is, and whether the API server would take its resources.
        let (found, _) = manifest::read(text, name).map_err(|cause| cause.to_string())?;
        let documents: Vec<Value> = match serde_json::from_str(text) {
            Ok(document) => vec![document],
            Err(_) => serde_saphyr::from_multiple_with_options(text, yaml_options())
                .map_err(|cause| excerpt::cause(&cause))?,
        };
        let is_it = |document: &&Value| {
            let metadata = &document["metadata"];
            let own = metadata["name"].as_str().or(metadata["generateName"].as_str());
            document["kind"] == "Pod" && own.unwrap_or_default() == found
        };
        let mut document = documents.iter().find(is_it).cloned().unwrap_or_default();
        // A manifest may leave the name to the API server.
        document["metadata"]["name"] = Value::String(found.clone());
        let asked = PodDetails::read(&document.to_string())?;
        Self::of(found, asked, allocation)
    }

    /// A pod of the cluster, by the text of its object.
    ///
    /// # Errors
    /// It is not understood.
    pub fn of_cluster(key: &PodKey, text: &str, allocation: &AllocationRequest) -> Result<Self, String> {
        let (namespace, name) = key;
        let pod_request = Self::of(format!("{namespace}/{name}"), PodDetails::read(text)?, allocation)?;
        Ok(Self {
            key: Some(key.clone()),
            ..pod_request
        })
    }

    fn of(name: String, asked: PodDetails, given: &AllocationRequest) -> Result<Self, String> {
        let mut allocation = given.clone();
        allocation.qos = request::qos_class(allocation.qos, asked.labels.get(QOS_CLASS).map(String::as_str));
        if let Some(text) = asked.annotations.get(koordinator::RESOURCE_SPEC) {
            koordinator::add_spec(&mut allocation, text)
                .map_err(|cause| format!("annotation {}: {cause}", koordinator::RESOURCE_SPEC))?;
        }
        Ok(Self {
            name,
            requests: with_overhead(asked.pod.requests(), asked.spec.overhead.as_ref()),
            pod: asked.pod,
            spec: asked.spec,
            allocation,
            status: asked.status,
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
    pub fn request(&self) -> Request {
        let lasting = self.pod.containers.iter().filter(|one| one.kind != ContainerKind::Init);
        let limits = lasting.filter_map(|one| one.resources.limits.milli_cpus);
        let limit = limits.max().and_then(|milli| u32::try_from(milli).ok());
        Request {
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
