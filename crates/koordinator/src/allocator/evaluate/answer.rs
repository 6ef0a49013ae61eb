//! An answer, on D-Bus and in JSON alike.

use serde::{Deserialize, Serialize};
use stelia_api::Error;
use stelia_cpus::{CpuSet, NodeSet};

use super::Score;
use crate::allocator::{Exclusivity, Qos};

/// What a pod would get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Fit {
    pub qos: Qos,
    /// Exclusive CPUs; empty for LS and BE.
    pub cpus: CpuSet,
    /// What its vCPUs would run on: its exclusive CPUs, or its pool.
    pub runs_on: CpuSet,
    /// The NUMA nodes of those.
    #[serde(with = "stelia_cpus::node_set::as_array")]
    pub numa_nodes: NodeSet,
    /// Whether they are within one NUMA node.
    pub aligned: bool,
    pub exclusivity: Exclusivity,
    #[serde(flatten)]
    pub score: Score,
}

/// The answer to a request. Where it does not fit, only why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct EvaluateAnswer {
    pub fit: bool,
    /// The name of the error that RegisterInstance would answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// That error's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(flatten)]
    pub place: Option<Fit>,
}

impl From<Result<Fit, Error>> for EvaluateAnswer {
    fn from(decided: Result<Fit, Error>) -> Self {
        match decided {
            Ok(place) => Self {
                fit: true,
                place: Some(place),
                ..Self::default()
            },
            Err(refusal) => Self {
                error: Some(refusal.kind.name().to_owned()),
                reason: Some(refusal.to_string()),
                ..Self::default()
            },
        }
    }
}
