//! What is asked, and reading it as text.

use serde::{Deserialize, Serialize};
use stelia_kubelet::QosClass;
use stelia_text::excerpt;

use super::ScoringStrategy;
use crate::{
    CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos, Schedule, Wish,
};

/// Most requests of a call.
pub const MAX_REQUESTS: usize = 1024;
/// Longest text of requests. Each has less than 1 KiB.
const MAX_BYTES: usize = 1 << 20;

/// A pod, as a scheduler knows it. The names are those of RegisterInstance's options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Request {
    /// Kubernetes' class, which bounds what the pod may have. Without it nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_class: Option<QosClass>,
    /// The class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<Qos>,
    /// How many CPUs of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// The container's CPU limit (`cpu.max`), thousandths of a CPU: by default what `cpus` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<u32>,
    /// How CPUs lie on cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_bind_policy: Option<CpuBindPolicy>,
    /// How they must lie there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_cpu_bind_policy: Option<CpuBindPolicy>,
    /// Whose company is avoided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_exclusive_policy: Option<CpuExclusivePolicy>,
    /// Which NUMA nodes come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_allocate_strategy: Option<NumaAllocateStrategy>,
    /// What must hold of the NUMA nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_topology_alignment_policy: Option<NumaTopologyAlignmentPolicy>,
    /// What the score favours.
    pub scoring_strategy: ScoringStrategy,
}

impl Request {
    /// What it asks of the allocator. The limit is the kernel's word there, not the caller's.
    pub fn wish(&self) -> Wish {
        Wish {
            cpus: self.cpus,
            qos: self.qos,
            bind: self.cpu_bind_policy,
            required: self.required_cpu_bind_policy,
            limit_milli: None,
            exclusive: self.cpu_exclusive_policy,
            strategy: self.numa_allocate_strategy,
            alignment: self.numa_topology_alignment_policy,
            schedule: Schedule::default(),
        }
    }
}

/// Why a text holds no requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestsError {
    /// The text is too long.
    #[error("the text has {0} bytes, more than {MAX_BYTES}")]
    TooLarge(usize),
    /// It is no list of requests.
    #[error("it is no JSON list of requests: {0}")]
    Text(String),
    /// There are too many.
    #[error("{0} requests are more than {MAX_REQUESTS}")]
    TooMany(usize),
}

/// Read a JSON list of requests, or one alone.
///
/// # Errors
/// What is wrong with the text.
pub fn requests(text: &str) -> Result<Vec<Request>, RequestsError> {
    if text.len() > MAX_BYTES {
        return Err(RequestsError::TooLarge(text.len()));
    }
    let wrong = |cause: serde_json::Error| RequestsError::Text(excerpt::cause(&cause));
    let requests: Vec<Request> = match text.trim_start().starts_with('{') {
        true => vec![serde_json::from_str(text).map_err(wrong)?],
        false => serde_json::from_str(text).map_err(wrong)?,
    };
    match requests.len() > MAX_REQUESTS {
        true => Err(RequestsError::TooMany(requests.len())),
        false => Ok(requests),
    }
}
