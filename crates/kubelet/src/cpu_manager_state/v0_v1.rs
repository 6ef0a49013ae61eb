//! V0 (kubelet 1.8 – 1.11) and V1 (1.12 – 1.17): entries by container id. V0 has no checksum.

use std::collections::BTreeMap;

use serde::Deserialize;
use stelia_cpus::text::excerpt::name;

use super::error::{CheckpointError, CpuLists, default_place, json};
use super::{CpuManagerState, Schema};
use crate::checksum;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default)]
    entries: BTreeMap<String, String>,
    checksum: Option<u32>,
}

/// The text over which V1's checksum is computed.
fn hashed(file: &File) -> String {
    format!(
        "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} Entries:(map[string]string){} \
         Checksum:(checksum.Checksum)0}}",
        file.policy_name,
        file.default_cpu_set,
        checksum::map(file.entries.iter())
    )
}

pub(super) fn read(bytes: &[u8]) -> Result<CpuManagerState, CheckpointError> {
    let file: File = json(bytes)?;
    let found = file.checksum.unwrap_or(0);
    // kubelet itself takes 0 for a file from a version without checksums.
    if found != 0 {
        checksum::verify(found, checksum::fnv1a(&hashed(&file)))?;
    }
    let mut lists = CpuLists::default();
    let mut container_entries = BTreeMap::new();
    for (id, cpus) in file.entries {
        let cpus = lists.read(&cpus, || format!("the entry of container {}", name(&id)))?;
        container_entries.insert(id, cpus);
    }
    Ok(CpuManagerState {
        schema: file.checksum.map_or(Schema::V0, |_| Schema::V1),
        policy: file.policy_name,
        default_cpus: lists.read(&file.default_cpu_set, default_place)?,
        container_entries,
        ..CpuManagerState::absent()
    })
}
