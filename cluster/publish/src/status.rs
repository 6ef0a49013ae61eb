//! The status of a publisher.

use std::collections::BTreeMap;

use stelia_cpus::text::named;

named! {
    /// What something is wrong with.
    #[derive(PartialOrd, Ord)]
    pub enum Part {
        /// The daemon's file.
        File = "file",
        Daemon = "daemon",
        /// The API server as a whole.
        Api = "api",
        /// Reading the Node: whose UID the object's owner reference has.
        Node = "node",
        Object = "object",
        Label = "label",
        Taint = "taint",
        Conditions = "conditions",
        Events = "events",
    }
}

/// What a publisher does and what keeps it from more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// What is wrong, by what it is wrong with. Empty on the good day.
    pub problems: BTreeMap<Part, String>,
    /// Requests sent, answered or not.
    pub requests: u64,
    /// Requests that did not succeed.
    pub failures: u64,
    /// Writes of the object that the API server accepted, changed or not.
    pub object_writes: u64,
    pub events_posted: u64,
    /// Events that will never be posted: there were too many while the API server was away, or it refused them.
    pub events_dropped: u64,
    /// Everything that is wanted stands, or cannot be written.
    pub settled: bool,
}
