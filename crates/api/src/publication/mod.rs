#![doc = include_str!("README.md")]

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where the daemon writes; whoever publishes has it mounted read-only.
pub const DIRECTORY: &str = "/run/stelia/publish";
/// The file in [`DIRECTORY`]; never changed in place.
pub const FILE: &str = "node.json";
/// A file in [`DIRECTORY`] that the daemon has locked (flock(2), exclusively) while it lives and [`FILE`] says how things are. It is open for
/// writing, so inotify tells of the end by `IN_CLOSE_WRITE`. It is locked before it gets this name, by a rename (`IN_MOVED_TO`), over the former
/// one: look for it by its name each time.
pub const LOCK: &str = "lock";
/// It changes when a member changes its meaning; new members may be added without a change.
pub const VERSION: u32 = 1;
/// The attribute (v1alpha2) or annotation (v1alpha1) of the published object that has the node's [`Summary`], as JSON.
pub const SUMMARY: &str = "isolation.stelia.io/summary";
/// The largest file that is read, in bytes. A node with 1024 CPUs and 500 pods needs a tenth of it.
pub const MAX_FILE_BYTES: usize = 4 << 20;

/// What the daemon publishes about its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    pub version: u32,
    /// `metadata.name` of the Node.
    pub node: String,
    /// Whether VMs can be admitted on this node now.
    pub ready: Ready,
    /// The NodeResourceTopology object in the profile that the daemon's setting asks for; `None` while the node's facts cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Value>,
    /// The node in a few words and numbers; `None`: the object has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// The instances whose namespace and name are known, by UID.
    pub pods: Vec<PublishedPod>,
    /// What happened to pods, oldest first; a bounded number for each pod, and in all.
    pub events: Vec<Event>,
}

/// As a condition of Kubernetes has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub status: bool,
    /// `Ready`, `KubeletStateUnusable`, …: one word in upper camel case.
    pub reason: String,
    pub message: String,
}

/// The node in a few words and numbers, for whoever looks at many nodes. It names no pod.
///
/// A text without a member that has no default says nothing about the node's health.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The daemon's version.
    pub version: String,
    /// [`Ready::reason`].
    pub reason: String,
    /// [`Ready::message`], shortened; empty where VMs can be admitted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How many instances are in which state (the D-Bus property `State`). States without an instance are missing.
    #[serde(deserialize_with = "unique_keys")]
    pub instances: BTreeMap<String, u64>,
    /// How many instances have a reason of degradation, whatever their state.
    pub degraded: u64,
    /// The codes of what is wrong on the node, without repetitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// How many instances wait with the reason `WaitingTooLong`.
    pub waiting_too_long: u64,
}

/// Reads counts by name, and refuses a name that is there twice: which of the counts holds is not known.
fn unique_keys<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, u64>, D::Error> {
    struct Counts;
    impl<'de> Visitor<'de> for Counts {
        type Value = BTreeMap<String, u64>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a map of counts")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut counts = BTreeMap::new();
            while let Some((name, count)) = map.next_entry::<String, u64>()? {
                if counts.insert(name, count).is_some() {
                    return Err(A::Error::custom("a key is there twice"));
                }
            }
            Ok(counts)
        }
    }
    from.deserialize_map(Counts)
}

/// An instance of the node, as its pod's condition tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// The container's name.
    pub container: String,
    /// The D-Bus property `Isolation`: `vcpus`, `container`.
    pub isolation: String,
    /// The D-Bus property `State`: `waiting`, `isolated`, `pinned`, `shared`, `evicted`, `releasing`.
    pub state: String,
    /// Whether the promise holds: isolated, and not degraded in what isolation means.
    pub isolated: bool,
    /// One word in upper camel case: `Isolated`, `Pinned`, `Floating`, `Evicted`, …
    pub reason: String,
    /// A text about this pod alone: it names no other pod, UID or CPUs.
    pub message: String,
    /// Since when `isolated` and `reason` are as they are, microseconds since the epoch.
    pub since_us: u64,
}

/// Something that happened to a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Rises with every event; goes on where the last daemon of this boot ended.
    pub number: u64,
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub kind: EventKind,
    /// One word in upper camel case: `Isolated`, `Pinned`, `Refused`, `Evicted`, `Intruded`, …
    pub reason: String,
    /// A text about this pod alone, as [`PublishedPod::message`].
    pub message: String,
    /// When it last happened, microseconds since the epoch.
    pub time_us: u64,
    /// How often it happened since `number` was given to it. A repetition within the daemon's window raises this and `time_us`, and is no
    /// event of its own.
    pub count: u32,
}

/// The type of a Kubernetes event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    Normal,
    Warning,
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("{} bytes, more than {MAX_FILE_BYTES}", .0)]
    TooLarge(usize),
    #[error("{0}")]
    Syntax(#[from] serde_json::Error),
    #[error("version {found}, not {VERSION}: written by a newer steliad")]
    Version { found: u32 },
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl Publication {
    /// # Errors
    /// It is too large, no such object, or of another version.
    pub fn parse(text: &[u8]) -> Result<Self, FormatError> {
        if text.len() > MAX_FILE_BYTES {
            return Err(FormatError::TooLarge(text.len()));
        }
        let Versioned { version: found } = serde_json::from_slice(text)?;
        if found != VERSION {
            return Err(FormatError::Version { found });
        }
        Ok(serde_json::from_slice(text)?)
    }
}
