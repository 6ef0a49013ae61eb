//! V2 (kubelet 1.18 – 1.35, and 1.36 without the PodLevelResourceManagers gate): entries by pod and container name.

use std::collections::BTreeMap;

use serde::Deserialize;
use stelia_text::excerpt::name;

use super::error::{CheckpointError, CpuLists, default_place, json, pod_uid};
use super::{CpuManagerState, Entries, Schema};
use crate::checksum;

/// Pod UID → container name → CPU list, as in the file.
pub(crate) type Texts = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default)]
    entries: Texts,
    #[serde(default)]
    checksum: u32,
}

/// The beginning of the text that V2's and V3's checksums are of.
pub fn hashed(policy: &str, default: &str, entries: &Texts) -> String {
    let pods = entries
        .iter()
        .map(|(pod, containers)| (pod, checksum::map(containers.iter())));
    format!(
        "(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string){default} \
         Entries:(map[string]map[string]string){}",
        checksum::map(pods)
    )
}

/// How that text ends.
pub const HASHED_END: &str = " Checksum:(checksum.Checksum)0}";

/// The entries, every UID and list checked.
pub(super) fn entries(texts: Texts, lists: &mut CpuLists) -> Result<Entries, CheckpointError> {
    let mut entries = Entries::new();
    for (pod, containers) in texts {
        let mut cpus_by_container = BTreeMap::new();
        for (container, cpus) in containers {
            let cpus = lists.read(&cpus, || format!("the entry of {}/{}", name(&pod), name(&container)))?;
            cpus_by_container.insert(container, cpus);
        }
        entries.insert(pod_uid(&pod)?, cpus_by_container);
    }
    Ok(entries)
}

pub(super) fn read(bytes: &[u8]) -> Result<CpuManagerState, CheckpointError> {
    let file: File = json(bytes)?;
    // kubelet itself takes 0 for a file from before there were checksums.
    if file.checksum != 0 {
        let text = hashed(&file.policy_name, &file.default_cpu_set, &file.entries) + HASHED_END;
        checksum::verify(file.checksum, checksum::fnv1a(&text))?;
    }
    let mut lists = CpuLists::default();
    Ok(CpuManagerState {
        schema: Schema::V2,
        policy: file.policy_name,
        default_cpus: lists.read(&file.default_cpu_set, default_place)?,
        entries: entries(file.entries, &mut lists)?,
        container_entries: BTreeMap::new(),
        pod_entries: BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashed_text_is_the_one_kubelet_hashes() {
        let folder = "../../tests/data/kubelet-checkpoints";
        let bytes = std::fs::read(format!("{folder}/k136-gate-off/02-article/cpu_manager_state")).unwrap();
        let file: File = json(&bytes).unwrap();
        let genuine = std::fs::read_to_string(format!("{folder}/hash-strings/cpu-v2-article.txt")).unwrap();
        let text = hashed(&file.policy_name, &file.default_cpu_set, &file.entries) + HASHED_END;
        assert_eq!(text, genuine);
        assert_eq!(checksum::fnv1a(&text), 3_944_432_841);
    }
}
