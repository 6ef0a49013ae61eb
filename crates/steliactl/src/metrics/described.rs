//! What the daemon tells, as far as metrics come of it.

use std::collections::BTreeMap;

use serde::Deserialize;
use stelia_api::metrics::Counted;
use stelia_node::locality::Localities;

use crate::client::Failure;
use crate::node::Node;

/// The daemon's description. What is not told is absent: an older daemon knows less.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Described {
    /// Whose the CPUs are.
    pub node: Node,
    /// The daemon's version.
    pub version: String,
    /// What it counted.
    pub metrics: Counted,
    /// Drift found and repaired.
    pub drift: Drift,
    /// How many scopes are left alone.
    pub unreadable: usize,
    /// More of each instance, by pod.
    pub instances: BTreeMap<String, Instance>,
    /// What each instance uses, by pod.
    pub usage: BTreeMap<String, Usage>,
    /// Where each instance's memory is.
    pub locality: Localities,
}

/// Drift, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Drift {
    /// Things found changed by somebody else.
    #[serde(rename = "drift_found", default)]
    pub found: u64,
    /// Those put right in the same pass.
    #[serde(rename = "drift_repaired", default)]
    pub repaired: u64,
}

/// An instance, beyond what [`Node`] tells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Instance {
    /// The scope's cgroup, relative to the cgroup root.
    pub scope: String,
    /// Microseconds since the epoch.
    pub registered_us: u64,
    /// Microseconds since the epoch; 0 before.
    pub isolated_us: u64,
    /// The vCPU threads.
    pub vcpus: Vec<Vcpu>,
}

/// A vCPU thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Vcpu {
    /// The number of its [`ThreadRole`](stelia_api::ThreadRole).
    pub index: u32,
    /// The thread.
    pub task: Task,
    /// The CPU it is pinned to.
    pub cpu: Option<u32>,
}

/// A thread that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Task {
    /// Its number on the host.
    pub id: i32,
    /// When it started, clock ticks since boot.
    #[serde(default)]
    pub start: u64,
}

/// What an instance uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Of the scope, bytes.
    pub memory_bytes: u64,
    /// Of the container's own cgroup, bytes.
    pub origin_memory_bytes: u64,
}

impl Described {
    /// Of the text that `Describe` answers.
    ///
    /// # Errors
    /// It is no such text.
    pub fn parse(description: &str) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Whole {
            #[serde(default)]
            version: String,
            node: More,
            #[serde(default)]
            usage: BTreeMap<String, Usage>,
            #[serde(default)]
            locality: Localities,
            #[serde(default)]
            metrics: Counted,
        }
        #[derive(Deserialize)]
        struct More {
            #[serde(default)]
            counters: Drift,
            #[serde(default)]
            unreadable: Vec<serde::de::IgnoredAny>,
            instances: BTreeMap<String, Instance>,
        }
        let node = Node::parse(description)?;
        let whole: Whole = serde_json::from_str(description).map_err(|cause| {
            Failure::Other(format!(
                "the daemon describes itself in words this program does not know: {cause}"
            ))
        })?;
        Ok(Self {
            node,
            version: whole.version,
            metrics: whole.metrics,
            drift: whole.node.counters,
            unreadable: whole.node.unreadable.len(),
            instances: whole.node.instances,
            usage: whole.usage,
            locality: whole.locality,
        })
    }
}
