//! `cpu_manager_state`: kubelet's record of the CPUs it gave away.
//!
//! One reader a schema; all end in [`CpuManagerState`], which the rest of the program sees. A file of a schema that is not
//! known whole is refused, never read as "no instances".

mod error;
mod shared;
mod v1;
pub mod v2;
mod v3;
mod v4;

use std::collections::BTreeMap;

use serde_json::Value;

pub use error::{CheckpointError, MAX_BYTES, MAX_LISTED};
pub(super) use error::{content, json, pod_uid};
pub use shared::{Use, Uses};

use stelia_cpus::CpuSet;

use super::pod::PodUid;

/// File name below kubelet's root directory.
pub const CPU_MANAGER_STATE: &str = "cpu_manager_state";

/// The shape a checkpoint was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Schema {
    /// kubelet 1.8 – 1.11: by container id, without a checksum.
    V0,
    /// kubelet 1.12 – 1.17: by container id.
    V1,
    /// kubelet 1.18 – 1.35, and 1.36 without the PodLevelResourceManagers gate: by pod and container name.
    V2,
    /// kubelet 1.36 with the PodLevelResourceManagers gate: with CPUs of whole pods.
    V3,
    /// kubelet 1.37 on: the content in a string with a checksum of its own.
    V4,
}

/// Exclusive CPUs by pod and container name.
pub type Entries = BTreeMap<PodUid, BTreeMap<String, CpuSet>>;

/// What kubelet's static CPU manager says, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuManagerState {
    /// The shape it was read from.
    pub schema: Schema,
    /// `static` or `none`.
    pub policy: String,
    /// The CPUs no Guaranteed container owns.
    pub default_cpus: CpuSet,
    /// Exclusive CPUs by pod and container name (V2 on). Within a pod they may overlap: a finished init container keeps
    /// its entry, and the containers on a pod's own shared pool all carry the same CPUs.
    pub entries: Entries,
    /// Exclusive CPUs by container id (V0 and V1 know no pods).
    pub container_entries: BTreeMap<String, CpuSet>,
    /// A pod's own CPUs, its shared pool included (V3 and V4).
    pub pod_entries: BTreeMap<PodUid, CpuSet>,
}

type Reader = fn(&[u8]) -> Result<CpuManagerState, CheckpointError>;

impl CpuManagerState {
    /// Parse and check the bytes of a `cpu_manager_state`.
    ///
    /// # Errors
    /// Every [`CheckpointError`]; nothing of a file in doubt is used.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let bytes = content(bytes)?;
        let mut first = None;
        for read in readers(&json(bytes)?) {
            match read(bytes) {
                Ok(state) => return Ok(state),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| CheckpointError::UnknownSchema("no reader".to_owned())))
    }

    /// What stands for a kubelet that is not there: policy `none`, no entries.
    pub fn absent() -> Self {
        Self {
            schema: Schema::V4,
            policy: "none".to_owned(),
            default_cpus: CpuSet::new(),
            entries: Entries::new(),
            container_entries: BTreeMap::new(),
            pod_entries: BTreeMap::new(),
        }
    }

    /// Whether the policy is the one that gives out exclusive CPUs.
    pub fn is_static(&self) -> bool {
        self.policy == "static"
    }

    /// All CPUs that some entry names.
    pub fn assigned(&self) -> CpuSet {
        let containers = self.entries.values().flat_map(BTreeMap::values);
        let all = containers
            .chain(self.container_entries.values())
            .chain(self.pod_entries.values());
        all.flat_map(CpuSet::iter).collect()
    }

    /// The shared pool: the default set less everything an entry names. kubelet writes one change as two files, and this
    /// is safe at each step in between.
    pub fn shared_pool(&self) -> CpuSet {
        self.default_cpus.difference(&self.assigned())
    }
}

/// The readers to try on a file, by the keys it has: what V1, V2 and V3 write without entries differs in the checksum only.
fn readers(file: &Value) -> &'static [Reader] {
    let has = |key: &str| file.get(key).is_some();
    let entry = file
        .get("entries")
        .and_then(|entries| entries.as_object()?.values().next());
    match entry {
        _ if has("data") || has("dataChecksum") => &[v4::read],
        _ if has("podEntries") => &[v3::read],
        Some(Value::String(_)) => &[v1::read],
        Some(_) => &[v2::read, v3::read],
        None if has("checksum") => &[v2::read, v3::read, v1::read],
        None => &[v1::read],
    }
}

#[cfg(test)]
mod tests;
