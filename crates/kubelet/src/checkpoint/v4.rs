//! V4 (kubelet 1.37 on): an older schema's keys for older kubelets, and what counts as JSON in a string, with a checksum
//! of that string.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::error::{CheckpointError, CpuLists, default_place, json};
use super::{CpuManagerState, Schema, v2, v3};
use crate::checksum;

/// The keys beside `data` are known, so that a new one is noticed, and not looked at: kubelet does not trust them either.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    #[serde(rename = "policyName")]
    _policy_name: Option<IgnoredAny>,
    #[serde(rename = "defaultCpuSet")]
    _default_cpu_set: Option<IgnoredAny>,
    #[serde(rename = "entries")]
    _entries: Option<IgnoredAny>,
    // In no released kubelet; its main branch had it for a while.
    #[serde(rename = "podEntries")]
    _pod_entries: Option<IgnoredAny>,
    #[serde(rename = "checksum")]
    _checksum: Option<IgnoredAny>,
    data: String,
    data_checksum: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Data {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default)]
    entries: v2::Texts,
    #[serde(default)]
    pod_entries: v3::PodTexts,
}

pub(super) fn read(bytes: &[u8]) -> Result<CpuManagerState, CheckpointError> {
    let file: File = json(bytes)?;
    checksum::verify(file.data_checksum, checksum::of_data(&file.data))?;
    let data: Data = json(file.data.as_bytes())?;
    let mut lists = CpuLists::default();
    Ok(CpuManagerState {
        schema: Schema::V4,
        policy: data.policy_name,
        default_cpus: lists.read(&data.default_cpu_set, default_place)?,
        entries: v2::entries(data.entries, &mut lists)?,
        container_entries: BTreeMap::new(),
        pod_entries: v3::pod_entries(data.pod_entries, &mut lists)?,
    })
}
