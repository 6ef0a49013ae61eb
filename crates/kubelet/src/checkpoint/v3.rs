//! V3 (kubelet 1.36 with the PodLevelResourceManagers gate): V2, and the CPUs of whole pods. Without pod entries it looks
//! like V2 and differs in the checksum only.

use std::collections::BTreeMap;

use serde::Deserialize;
use stelia_cpus::CpuSet;
use stelia_text::excerpt::name;

use super::error::{CheckpointError, CpuLists, default_place, json, pod_uid};
use super::{CpuManagerState, Schema, v2};
use crate::{PodUid, checksum};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default)]
    entries: v2::Texts,
    #[serde(default)]
    pod_entries: PodTexts,
    checksum: u32,
}

/// Pod UID → its own CPUs, as in the file.
pub(super) type PodTexts = BTreeMap<String, PodText>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PodText {
    /// Left out when it is empty.
    #[serde(default)]
    cpu_set: String,
}

/// The pods' own CPUs, every UID and list checked.
pub(super) fn pod_entries(texts: PodTexts, lists: &mut CpuLists) -> Result<BTreeMap<PodUid, CpuSet>, CheckpointError> {
    let mut entries = BTreeMap::new();
    for (pod, text) in texts {
        let cpus = lists.read(&text.cpu_set, || format!("the entry of pod {}", name(&pod)))?;
        entries.insert(pod_uid(&pod)?, cpus);
    }
    Ok(entries)
}

/// The text the checksum is of. It holds the pods' CPUs as a set, one by one, and not as the file writes them.
fn hashed(file: &File) -> Result<String, CheckpointError> {
    let mut lists = CpuLists::default();
    let mut pods = Vec::new();
    for (pod, text) in &file.pod_entries {
        let cpus = lists.read(&text.cpu_set, || format!("the entry of pod {}", name(pod)))?;
        let elements = checksum::map(cpus.iter().map(|cpu| (cpu, "{}")));
        pods.push((
            pod,
            format!("{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}}){elements}}}}}"),
        ));
    }
    Ok(format!(
        "{} PodEntries:(state.PodCPUAssignments){}{}",
        v2::hashed(&file.policy_name, &file.default_cpu_set, &file.entries),
        checksum::map(pods.into_iter()),
        v2::HASHED_END
    ))
}

pub(super) fn read(bytes: &[u8]) -> Result<CpuManagerState, CheckpointError> {
    let file: File = json(bytes)?;
    checksum::verify(file.checksum, checksum::fnv1a(&hashed(&file)?))?;
    let mut lists = CpuLists::default();
    Ok(CpuManagerState {
        schema: Schema::V3,
        policy: file.policy_name,
        default_cpus: lists.read(&file.default_cpu_set, default_place)?,
        entries: v2::entries(file.entries, &mut lists)?,
        container_entries: BTreeMap::new(),
        pod_entries: pod_entries(file.pod_entries, &mut lists)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashed_text_is_the_one_kubelet_hashes() {
        let folder = "../../tests/data/kubelet-checkpoints/hash-strings";
        let bytes = std::fs::read(format!("{folder}/cpu-v3.json")).unwrap();
        let genuine = std::fs::read_to_string(format!("{folder}/cpu-v3.txt")).unwrap();
        assert_eq!(hashed(&json(&bytes).unwrap()).unwrap(), genuine);
        assert_eq!(checksum::fnv1a(&genuine), 90_959_989);
    }
}
