//! How fast a VM's CPUs wake up: the names of the levels.

use stelia_text::named;

/// What is allowed, and what a pod asks for. A greater one keeps the CPUs in lighter idle states, and costs more power and
/// turbo of the neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LatencyLevel {
    /// As the node is.
    Default,
    /// Within the microseconds of the setting `latency-low-us`.
    Low,
    /// No idle state: the CPUs poll.
    Polling,
}

named!(LatencyLevel {
    Default = "default",
    Low = "low",
    Polling = "polling"
});
