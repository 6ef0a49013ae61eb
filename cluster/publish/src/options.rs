//! The options of a publisher.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::intervals::START_SPREAD;

/// Limit of the events that wait for the API server; beyond it the oldest is dropped and counted.
pub const MAX_QUEUED_EVENTS: usize = 256;

/// Whose conditions are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PodConditions {
    /// No pods.
    #[default]
    Off,
    /// Pods whose readiness gates name the condition. Each pod is read once.
    Gated,
    /// The pods of all VMs.
    All,
}

/// The settings of one publisher. Nothing else decides what it does: no environment, no clock, no source of chance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishOptions {
    /// `metadata.name` of the Node; a publication of another node is not used.
    pub node: String,
    /// The name under which the API server keeps what is ours.
    pub field_manager: String,
    /// Over which the first requests of all nodes are spread, each at a place that its name decides.
    pub start_spread: Duration,
    /// Label the Node `stelia.io/ready`.
    pub ready_label: bool,
    /// The key of the taint to remove once VMs can be admitted.
    pub remove_taint: Option<String>,
    pub pod_conditions: PodConditions,
    pub pod_events: bool,
    /// The id of the boot: events are numbered anew after each.
    pub boot: String,
    /// The wall clock when the publisher starts, microseconds since the epoch: what is an old event.
    pub started_us: u64,
    /// Where jitter begins; of the node's name, so that nodes differ and a run can be repeated.
    pub seed: u64,
}

impl PublishOptions {
    /// Only the object is written; the rest are opt-ins.
    pub fn new(node: impl Into<String>) -> Self {
        let node = node.into();
        Self {
            field_manager: "steliad".into(),
            start_spread: START_SPREAD,
            ready_label: false,
            remove_taint: None,
            pod_conditions: PodConditions::Off,
            pod_events: false,
            boot: String::new(),
            started_us: 0,
            seed: seed(&node),
            node,
        }
    }
}

/// Eight bytes of the name's hash.
fn seed(node: &str) -> u64 {
    let hash: [u8; 32] = Sha256::digest(node.as_bytes()).into();
    let (first, _) = hash.split_at(8);
    first.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
