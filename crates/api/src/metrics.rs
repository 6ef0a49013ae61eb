//! The counters and histograms of `Describe`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Upper bounds of the histograms' buckets, in microseconds; one more bucket has no bound.
pub const BOUNDS_US: [u64; 13] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// `metrics` of `Describe`, counted since the daemon started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Microseconds since the epoch.
    pub started_us: u64,
    /// Steps taken, failed ones included.
    pub steps: u64,
    /// Writes to cgroup files.
    pub writes: u64,
    /// Cgroup moves of processes and threads.
    pub moves: u64,
    pub failed: u64,
    /// How long passes took, by trigger.
    pub passes: BTreeMap<String, DurationHistogram>,
    /// How long calls took, by operation.
    pub calls: BTreeMap<String, DurationHistogram>,
    /// Calls that were answered with an error, by the error's name.
    pub refusals: BTreeMap<String, u64>,
    /// From kubelet's write to the floats' update.
    pub follow: DurationHistogram,
    /// Since when kubelet's file can be used, or cannot, microseconds since the epoch.
    pub kubelet_since_us: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurationHistogram {
    /// By bucket: up to each of [`BOUNDS_US`], and above the last.
    pub counts: Vec<u64>,
    /// Microseconds.
    pub sum_us: u64,
}
