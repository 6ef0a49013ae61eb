//! The schemas of a `cpu_manager_state`, and by what a file's own is known.

use serde_json::Value;

use super::{CheckpointError, CpuManagerState, content, json, v2_to_v4};

/// The shape a checkpoint was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Schema {
    /// kubelet 1.18 – 1.35, and 1.36 without the PodLevelResourceManagers gate: by pod and container name.
    V2,
    /// kubelet 1.36 with the PodLevelResourceManagers gate: with CPUs of whole pods.
    V3,
    /// kubelet 1.37 on: the content in a string with a checksum of its own.
    V4,
}

impl CpuManagerState {
    /// Parse and check the bytes of a `cpu_manager_state`.
    ///
    /// # Errors
    /// Every [`CheckpointError`]; nothing of an invalid file is used.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let bytes = content(bytes)?;
        let keys: Value = json(bytes)?;
        let has = |key: &str| keys.get(key).is_some();
        if has("data") || has("dataChecksum") {
            v2_to_v4::read_v4(bytes)
        } else {
            v2_to_v4::read(bytes, has("podEntries"))
        }
    }
}
