//! The schemas with entries by pod and container name.
//!
//! - V2: kubelet 1.18 – 1.35, and 1.36 without the PodLevelResourceManagers gate.
//! - V3: kubelet 1.36 with that gate: the CPUs of whole pods besides. Without pod entries it differs from V2 in the checksum
//!   only.
//! - V4: kubelet 1.37 on: an older schema's keys for older kubelets, and what counts as JSON in a string, with a checksum of
//!   that string. With the gate InPlacePodVerticalScalingExclusiveCPUs the string has `baselines` too: the CPUs that a container was admitted
//!   with, of which its entry has more after a resize.
//!
//! The string's checksum holds whatever keys it has, so a key that is not known here does not make the others doubtful: where `entries` is
//! there, and every entry of its known shape, the key is named and passed over. Where `entries` is not there, it may be what the entries are
//! called now, and the file is refused; so is one with a key that is not known beside `data`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use stelia_cpus::text::excerpt::{cause, name};

use super::error::{CheckpointError, CpuLists, default_place, json, needed, pod_uid, sealed, unknown};
use super::{CpuManagerState, Entries, Schema};
use crate::checksum;

/// Pod UID → container name → CPU list, as in the file.
pub(crate) type Texts = BTreeMap<String, BTreeMap<String, String>>;

/// The keys of V2 and V3, and, without its newer ones, of the string in V4.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default)]
    entries: Texts,
    #[serde(default)]
    pod_entries: BTreeMap<String, PodText>,
    checksum: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PodText {
    /// Left out when it is empty.
    #[serde(default)]
    cpu_set: String,
}

/// The keys beside `data` are declared, so that a new one is noticed, but not read: kubelet does not trust them either.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Envelope {
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

/// The text over which V2's checksum is computed.
pub fn hashed(policy: &str, default: &str, entries: &Texts) -> String {
    beginning(policy, default, entries) + END
}

fn beginning(policy: &str, default: &str, entries: &Texts) -> String {
    let pods = entries.iter();
    let pods = pods.map(|(pod, containers)| (pod, checksum::map(containers.iter())));
    format!(
        "(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string){default} \
         Entries:(map[string]map[string]string){}",
        checksum::map(pods)
    )
}

const END: &str = " Checksum:(checksum.Checksum)0}";

impl File {
    fn hashed_as_v2(&self) -> String {
        hashed(&self.policy_name, &self.default_cpu_set, &self.entries)
    }

    /// The text over which V3's checksum is computed. It has the pods' CPUs as a set, one by one, and not as the file writes them.
    fn hashed_as_v3(&self) -> Result<String, CheckpointError> {
        let mut lists = CpuLists::default();
        let mut pods = Vec::new();
        for (pod, text) in &self.pod_entries {
            let elements = checksum::map(lists.of_pod(pod, &text.cpu_set)?.iter().map(|cpu| (cpu, "{}")));
            let text = format!("{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}}){elements}}}}}");
            pods.push((pod, text));
        }
        Ok(format!(
            "{} PodEntries:(state.PodCPUAssignments){}{END}",
            beginning(&self.policy_name, &self.default_cpu_set, &self.entries),
            checksum::map(pods.into_iter()),
        ))
    }

    /// The state, with every UID and list checked.
    fn state(self, schema: Schema) -> Result<CpuManagerState, CheckpointError> {
        let mut lists = CpuLists::default();
        let default_cpus = lists.read(&self.default_cpu_set, default_place)?;
        let mut entries = Entries::new();
        for (pod, containers) in self.entries {
            let mut cpus_by_container = BTreeMap::new();
            for (container, cpus) in containers {
                let cpus = lists.read(&cpus, || format!("the entry of {}/{}", name(&pod), name(&container)))?;
                cpus_by_container.insert(container, cpus);
            }
            entries.insert(pod_uid(&pod)?, cpus_by_container);
        }
        let mut pod_entries = BTreeMap::new();
        for (pod, text) in self.pod_entries {
            pod_entries.insert(pod_uid(&pod)?, lists.of_pod(&pod, &text.cpu_set)?);
        }
        Ok(CpuManagerState {
            schema,
            policy: self.policy_name,
            default_cpus,
            entries,
            pod_entries,
            ..CpuManagerState::absent()
        })
    }
}

/// V2 or V3, told apart by the checksum; with `podEntries` it must be V3.
pub(super) fn read(bytes: &[u8], has_pod_entries: bool) -> Result<CpuManagerState, CheckpointError> {
    let file: File = json(bytes)?;
    if has_pod_entries {
        checksum::verify(needed(file.checksum)?, checksum::fnv1a(&file.hashed_as_v3()?))?;
        return file.state(Schema::V3);
    }
    // kubelet itself takes 0 for a file from a version without checksums.
    let found = file.checksum.unwrap_or(0);
    let computed = checksum::fnv1a(&file.hashed_as_v2());
    if found == 0 || found == computed {
        return file.state(Schema::V2);
    }
    if found == checksum::fnv1a(&file.hashed_as_v3()?) {
        return file.state(Schema::V3);
    }
    Err(CheckpointError::Checksum { found, computed })
}

/// The keys of the string in V4.
const KEYS: [&str; 5] = ["policyName", "defaultCpuSet", "entries", "podEntries", "checksum"];
const BASELINES: &str = "baselines";

/// The CPUs that a container was admitted with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Baseline {
    baseline: String,
}

pub(super) fn read_v4(bytes: &[u8]) -> Result<CpuManagerState, CheckpointError> {
    let envelope: Envelope = json(bytes)?;
    let mut keys: Map<String, Value> = sealed(&envelope.data, envelope.data_checksum, |keys: &Map<String, Value>| {
        keys.get("checksum").map(|_| 0)
    })?;
    let baselines = keys.remove(BASELINES);
    let others = keys.keys().filter(|key| !KEYS.contains(&key.as_str()));
    let mut unknown_keys: Vec<String> = others.map(|key| name(key)).collect();
    if !unknown_keys.is_empty() && !keys.contains_key("entries") {
        return Err(unknown(&format!(
            "unknown field `{}` in data, which has no entries",
            unknown_keys[0]
        )));
    }
    keys.retain(|key, _| KEYS.contains(&key.as_str()));
    let file: File = serde_json::from_value(keys.into()).map_err(|error| unknown(&cause(&error)))?;
    let mut state = file.state(Schema::V4)?;
    match baselines.map(read_baselines).transpose() {
        Ok(read) => state.baselines = read.unwrap_or_default(),
        // Nothing is decided by them.
        Err(_) => unknown_keys.push(BASELINES.to_owned()),
    }
    state.unknown_keys = unknown_keys;
    Ok(state)
}

fn read_baselines(value: Value) -> Result<Entries, CheckpointError> {
    let texts: BTreeMap<String, BTreeMap<String, Baseline>> =
        serde_json::from_value(value).map_err(|error| unknown(&cause(&error)))?;
    let mut lists = CpuLists::default();
    let mut baselines = Entries::new();
    for (pod, containers) in texts {
        let mut read = BTreeMap::new();
        for (container, Baseline { baseline }) in containers {
            let place = || format!("the baseline of {}/{}", name(&pod), name(&container));
            let cpus = lists.read(&baseline, place)?;
            read.insert(container, cpus);
        }
        baselines.insert(pod_uid(&pod)?, read);
    }
    Ok(baselines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "../../tests/data/kubelet-checkpoints";

    fn read(path: &str) -> String {
        std::fs::read_to_string(format!("{FOLDER}/{path}")).unwrap()
    }

    #[test]
    fn the_hashed_text_of_v2_is_the_one_kubelet_hashes() {
        let file: File = json(read("k136-gate-off/02-article/cpu_manager_state").as_bytes()).unwrap();
        let text = file.hashed_as_v2();
        assert_eq!(text, read("hash-strings/cpu-v2-article.txt"));
        assert_eq!(checksum::fnv1a(&text), 3_944_432_841);
    }

    #[test]
    fn the_hashed_text_of_v3_is_the_one_kubelet_hashes() {
        let file: File = json(read("hash-strings/cpu-v3.json").as_bytes()).unwrap();
        let genuine = read("hash-strings/cpu-v3.txt");
        assert_eq!(file.hashed_as_v3().unwrap(), genuine);
        assert_eq!(checksum::fnv1a(&genuine), 90_959_989);
    }
}
