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
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct PublishOptions {
    /// `metadata.name` of the Node; a publication of another node is not used.
    #[arg(skip)]
    pub node: String,
    /// Name of the field manager in the API server.
    #[arg(long, value_name = "NAME", env = "STELIA_FIELD_MANAGER", default_value = "steliad")]
    pub field_manager: String,
    /// Time over which the first requests of all nodes are spread, in seconds. The name of a node decides its place.
    #[arg(long, value_name = "SECONDS", env = "STELIA_START_SPREAD", default_value = "60", value_parser = seconds)]
    pub start_spread: Duration,
    /// Set the label stelia.io/ready of the Node: true while VMs can be admitted, otherwise false.
    #[arg(long, env = "STELIA_READY_LABEL")]
    pub ready_label: bool,
    /// Remove this taint, such as stelia.io/not-ready, from the Node once VMs can be admitted.
    #[arg(long, value_name = "KEY", env = "STELIA_REMOVE_TAINT")]
    pub remove_taint: Option<String>,
    /// Pods whose condition stelia.io/isolated is written.
    #[arg(long, value_name = "PODS", env = "STELIA_POD_CONDITIONS", default_value = "off")]
    pub pod_conditions: PodConditions,
    /// Post events of VMs as events of their pods.
    #[arg(long, env = "STELIA_POD_EVENTS")]
    pub pod_events: bool,
    /// Id of this boot, a part of the names of events, whose numbers begin again after each boot. Default: the kernel's boot id, if /proc/sys
    /// can be read.
    #[arg(long, value_name = "ID", env = "STELIA_BOOT_ID")]
    pub boot_id: Option<String>,
    /// The wall clock when the publisher starts, microseconds since the epoch: what is an old event.
    #[arg(skip)]
    pub started_us: u64,
    /// Where jitter begins; of the node's name, so that nodes differ and a run can be repeated.
    #[arg(skip)]
    pub seed: u64,
}

fn seconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse::<u32>().map(|seconds| Duration::from_secs(seconds.into()))
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
            boot_id: None,
            started_us: 0,
            seed: seed(&node),
            node,
        }
    }

    /// The same for this node.
    #[must_use]
    pub fn of_node(self, node: String) -> Self {
        Self {
            seed: seed(&node),
            node,
            ..self
        }
    }
}

/// Eight bytes of the name's hash.
fn seed(node: &str) -> u64 {
    let hash: [u8; 32] = Sha256::digest(node.as_bytes()).into();
    let (first, _) = hash.split_at(8);
    first.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
