//! The status of a publisher.

use std::collections::BTreeMap;

/// What something is wrong with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The daemon's file.
    File,
    Daemon,
    /// The API server as a whole.
    Api,
    /// Reading the Node: whose UID the object's owner reference has.
    Node,
    Object,
    Label,
    Capacity,
    Taint,
    Conditions,
    Events,
}

impl Part {
    pub const ALL: [Self; 10] = [
        Self::File,
        Self::Daemon,
        Self::Api,
        Self::Node,
        Self::Object,
        Self::Label,
        Self::Capacity,
        Self::Taint,
        Self::Conditions,
        Self::Events,
    ];

    /// In messages and as a label of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Daemon => "daemon",
            Self::Api => "api",
            Self::Node => "node",
            Self::Object => "object",
            Self::Label => "label",
            Self::Capacity => "capacity",
            Self::Taint => "taint",
            Self::Conditions => "conditions",
            Self::Events => "events",
        }
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
