//! What is asked.

use serde::{Deserialize, Serialize};
use stelia_cpus::NodeSet;
use stelia_kubelet::QosClass;

use super::ScoringStrategy;
use crate::allocator::{AllocationRequest, Requester};

/// Most requests of a call.
pub const MAX_REQUESTS: usize = 1024;

/// What a scheduler says of a pod beside its request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct SchedulerOptions {
    /// Kubernetes' class, which bounds what the pod may have. Without it nothing does: an administrator asks, as on the system
    /// bus.
    pub kubernetes_class: Option<QosClass>,
    /// What the score favours.
    pub scoring_strategy: ScoringStrategy,
}

/// A pod, as a scheduler knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluateRequest {
    /// What RegisterInstance would be asked. Its `cpu-limit` is the container's limit (`cpu.max`), by default what `cpus` says.
    #[serde(flatten)]
    pub allocation: AllocationRequest,
    /// What RegisterInstance does not take.
    #[serde(flatten)]
    pub options: SchedulerOptions,
}

impl EvaluateRequest {
    /// The request without `cpu-limit`: at a registration the limit is the kernel's, so it is part of
    /// [`Self::requester`].
    pub fn wanted(&self) -> AllocationRequest {
        AllocationRequest {
            cpu_limit: None,
            ..self.allocation.clone()
        }
    }

    /// The container, as far as the request says.
    pub fn requester(&self) -> Requester {
        let class = self.options.kubernetes_class;
        let by_cpus = self.allocation.cpus.map(|cpus| 1000 * u64::from(cpus));
        Requester {
            class: class.unwrap_or(QosClass::Guaranteed),
            limit_milli: self.allocation.cpu_limit.map(u64::from).or(by_cpus),
            bound: class.is_some(),
            memory: None,
            devices: NodeSet::new(),
        }
    }
}
