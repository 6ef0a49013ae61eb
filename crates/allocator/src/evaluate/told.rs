//! An answer as it is told: on D-Bus and in JSON alike.

use serde::{Deserialize, Serialize};
use stelia_api::Error;

use super::Answer;

/// A request's answer. Where it fits not, only why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Told {
    /// Whether it fits.
    pub fit: bool,
    /// The name of the error that RegisterInstance would answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it would get.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

/// What a pod that fits would get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Place {
    /// The class.
    pub qos: String,
    /// CPUs of its own, as a CPU list; empty for LS and BE.
    pub cpus: String,
    /// What its vCPUs would run on, as a CPU list.
    pub runs_on: String,
    /// The NUMA nodes of those.
    pub numa_nodes: Vec<u32>,
    /// Whether they are within one NUMA node.
    pub aligned: bool,
    /// What would become of its exclusive policy: not-asked, kept, downgraded or dropped.
    pub exclusivity: String,
    /// A + B.
    pub score: u32,
    /// A: of the NUMA nodes.
    pub score_numa: u32,
    /// B: of the CPUs.
    pub score_cpus: u32,
}

impl From<&Answer> for Place {
    fn from(answer: &Answer) -> Self {
        Self {
            qos: answer.qos.name().to_owned(),
            cpus: answer.cpus.to_string(),
            runs_on: answer.runs_on.to_string(),
            numa_nodes: answer.numa_nodes.iter().copied().collect(),
            aligned: answer.numa_nodes.len() == 1,
            exclusivity: answer.exclusivity.name().to_owned(),
            score: answer.score.sum(),
            score_numa: answer.score.numa,
            score_cpus: answer.score.cpus,
        }
    }
}

impl From<&Result<Answer, Error>> for Told {
    fn from(answer: &Result<Answer, Error>) -> Self {
        match answer {
            Ok(answer) => Self {
                fit: true,
                place: Some(answer.into()),
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
