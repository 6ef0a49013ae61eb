//! The options of a publisher.

use std::time::Duration;

use sha2::{Digest, Sha256};

/// How long a change waits for others that come with it: one write for a burst.
pub const DEBOUNCE: Duration = Duration::from_millis(200);
/// Between two writes of the object, of the label, of the capacity.
pub const WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// How long a daemon that is away, or a file that cannot be used, changes nothing: a restart or an upgrade takes seconds.
pub const GRACE_PERIOD: Duration = Duration::from_secs(60);
/// After this, a tenth more or less, what was written is applied again: the API server writes nothing where nothing changed, and what
/// somebody deleted stands again.
pub const REAPPLY_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// The same interval for the capacity: a kubelet that starts on a node without device plugins sets every extended resource to 0
/// (`reconcileExtendedResource`), and no event reports it.
pub const CAPACITY_REAPPLY_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// A request that takes longer has failed.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Over which the first requests of all nodes are spread.
pub const START_SPREAD: Duration = Duration::from_secs(60);
/// An event that was older when the publisher started is not posted: the API server keeps events for an hour, so it was either posted
/// by the publisher before or is of no use.
pub const MAX_EVENT_AGE: Duration = Duration::from_secs(3600);
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
pub struct Options {
    /// `metadata.name` of the Node; a publication of another node is not used.
    pub node: String,
    /// The name under which the API server keeps what is ours.
    pub field_manager: String,
    /// Over which the first requests of all nodes are spread, each at a place that its name decides.
    pub start_spread: Duration,
    /// Label the Node `stelia.io/ready`.
    pub ready_label: bool,
    /// Tell `stelia.io/vm` among the Node's resources.
    pub vm_capacity: bool,
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

impl Options {
    /// Only the object is written; the rest are opt-ins.
    pub fn new(node: impl Into<String>) -> Self {
        let node = node.into();
        Self {
            field_manager: "steliad".into(),
            start_spread: START_SPREAD,
            ready_label: false,
            vm_capacity: false,
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
