//! How fast a VM's CPUs wake up: the names of the levels.

use stelia_cpus::text::named;

named! {
    /// What is allowed, and what a pod asks for. A greater one keeps the CPUs in lighter idle states, and costs more power and
    /// turbo of the neighbours.
    #[derive(Default, PartialOrd, Ord)]
    pub enum LatencyLevel {
        /// As the node is.
        #[default]
        Default = "default",
        /// Within the microseconds of the setting `latency-low-us`.
        Low = "low",
        /// No idle state: the CPUs poll.
        Polling = "polling",
    }
}
