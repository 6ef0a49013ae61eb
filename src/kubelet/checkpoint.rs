//! `cpu_manager_state`: kubelet's record of the CPUs it gave away.
//!
//! One reader a schema; all end in [`CpuManagerState`], which the rest of the program sees. A file of a schema that is not
//! known whole is refused, never read as "no instances".

use std::collections::BTreeMap;

use serde::Deserialize;

use super::checksum;
use super::pod::PodUid;
use crate::cpuset::{CpuSet, ParseError};

/// File name below kubelet's root directory.
pub const CPU_MANAGER_STATE: &str = "cpu_manager_state";
/// A checkpoint larger than this is refused before it is parsed (a real one of 512 pods is under 100 kB).
pub const MAX_BYTES: usize = 8 << 20;

/// The shape a checkpoint was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Schema {
    /// kubelet 1.18 – 1.35, and 1.36 without the PodLevelResourceManagers gate.
    V2,
}

/// What kubelet's static CPU manager says, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuManagerState {
    /// The shape it was read from.
    pub schema: Schema,
    /// `static` or `none`.
    pub policy: String,
    /// The CPUs no Guaranteed container owns.
    pub default_cpus: CpuSet,
    /// Exclusive CPUs by pod and container name.
    pub entries: BTreeMap<PodUid, BTreeMap<String, CpuSet>>,
    /// Exclusive CPUs by container id (V0 and V1 know no pods).
    pub container_entries: BTreeMap<String, CpuSet>,
    /// A pod's own CPUs, its shared pool included (V3 and V4).
    pub pod_entries: BTreeMap<PodUid, CpuSet>,
}

/// Why a checkpoint cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The file has no bytes (a crash between open and write of a tool that is not kubelet).
    #[error("cpu_manager_state is empty")]
    Empty,
    /// The file is absurdly large.
    #[error("cpu_manager_state has {0} bytes, more than {MAX_BYTES}")]
    TooLarge(usize),
    /// The file is not JSON of a known shape; the text says where.
    #[error("cpu_manager_state is of no known schema: {0}")]
    UnknownSchema(String),
    /// The checksum does not fit the content.
    #[error("cpu_manager_state has checksum {found}, its content gives {computed}")]
    Checksum {
        /// As the file says.
        found: u32,
        /// As computed from the content.
        computed: u32,
    },
    /// A CPU list in it does not parse.
    #[error("cpu_manager_state, {place}: {cause}")]
    Cpus {
        /// Which list.
        place: String,
        /// What is wrong with it.
        cause: ParseError,
    },
    /// A pod UID in it is none.
    #[error("cpu_manager_state: {0:?} is no pod UID")]
    PodUid(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct V2 {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    checksum: u32,
}

impl CpuManagerState {
    /// Parse and check the bytes of a `cpu_manager_state`.
    ///
    /// # Errors
    /// Every [`CheckpointError`]; nothing of a file in doubt is used.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        if bytes.len() > MAX_BYTES {
            return Err(CheckpointError::TooLarge(bytes.len()));
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err(CheckpointError::Empty);
        }
        let file: V2 =
            serde_json::from_slice(bytes).map_err(|cause| CheckpointError::UnknownSchema(cause.to_string()))?;
        file.check()
    }

    /// All CPUs that some entry names.
    pub fn assigned(&self) -> CpuSet {
        let containers = self.entries.values().flat_map(BTreeMap::values);
        let all = containers
            .chain(self.container_entries.values())
            .chain(self.pod_entries.values());
        all.flat_map(CpuSet::iter).collect()
    }

    /// What of a pod's own CPUs no container of it has for itself: what its containers have in common are the CPUs of
    /// those that share. `None` for a pod without CPUs of its own, or with none left to share.
    pub fn pod_shared_pool(&self, pod: &PodUid) -> Option<CpuSet> {
        let all = self.pod_entries.get(pod)?;
        let containers: Vec<&CpuSet> = self.entries.get(pod).into_iter().flat_map(BTreeMap::values).collect();
        let exclusive = containers.iter().enumerate().filter(|(index, cpus)| {
            let same = |(other, theirs): (usize, &&CpuSet)| other != *index && theirs == *cpus;
            **cpus != all && !containers.iter().enumerate().any(same)
        });
        let exclusive: CpuSet = exclusive.flat_map(|(_, cpus)| cpus.iter()).collect();
        let shared = all.difference(&exclusive);
        (!shared.is_empty()).then_some(shared)
    }

    /// The shared pool: the default set less everything an entry names. kubelet writes one change as two files, and this
    /// is safe at each step in between.
    pub fn shared_pool(&self) -> CpuSet {
        self.default_cpus.difference(&self.assigned())
    }
}

impl V2 {
    fn check(self) -> Result<CpuManagerState, CheckpointError> {
        // kubelet itself accepts 0 (written before checksums were) for the schemas up to V2.
        if self.checksum != 0 {
            let computed = checksum::fnv1a(&checksum::cpu_v2_text(
                &self.policy_name,
                &self.default_cpu_set,
                &self.entries,
            ));
            if computed != self.checksum {
                return Err(CheckpointError::Checksum {
                    found: self.checksum,
                    computed,
                });
            }
        }
        let mut entries = BTreeMap::new();
        for (pod, containers) in self.entries {
            let uid = PodUid::parse(&pod).map_err(|_| CheckpointError::PodUid(pod.chars().take(64).collect()))?;
            let mut cpus_by_container = BTreeMap::new();
            for (container, cpus) in containers {
                let cpus = cpu_list(&cpus, || format!("entry {pod}/{container}"))?;
                cpus_by_container.insert(container, cpus);
            }
            entries.insert(uid, cpus_by_container);
        }
        Ok(CpuManagerState {
            schema: Schema::V2,
            policy: self.policy_name,
            default_cpus: cpu_list(&self.default_cpu_set, || "defaultCpuSet".into())?,
            entries,
            container_entries: BTreeMap::new(),
            pod_entries: BTreeMap::new(),
        })
    }
}

fn cpu_list(text: &str, place: impl Fn() -> String) -> Result<CpuSet, CheckpointError> {
    text.parse()
        .map_err(|cause| CheckpointError::Cpus { place: place(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const ARTICLE: &str = r#"{"policyName":"static","defaultCpuSet":"2-11","entries":{"3ceda12c-3ee9-40fa-9f42-61428fe654a6":{"instance":"0-1,12-13"},"416de7c2-21de-472d-817c-fa9d4306cb7d":{"instance":"14-17"},"b41f38d8-2c21-4168-af77-6d0cc5482dcb":{"instance":"18-19"}},"checksum":3944432841}"#;

    #[test]
    fn the_articles_example_is_read_whole() {
        let state = CpuManagerState::parse(ARTICLE.as_bytes()).unwrap();
        assert_eq!(state.policy, "static");
        assert_eq!(state.shared_pool().to_string(), "2-11");
        let uid = PodUid::parse("416de7c2-21de-472d-817c-fa9d4306cb7d").unwrap();
        assert_eq!(state.entries[&uid]["instance"].to_string(), "14-17");
    }

    #[rstest]
    #[case("", "empty")]
    #[case("{", "no known schema")]
    #[case(r#"{"policyName":"static","defaultCpuSet":"0-3","data":"{}"}"#, "no known schema")]
    #[case(
        r#"{"policyName":"static","defaultCpuSet":"0-3","podEntries":{}}"#,
        "no known schema"
    )]
    #[case(r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":1}"#, "checksum 1")]
    #[case(r#"{"policyName":"static","defaultCpuSet":"0-x"}"#, "defaultCpuSet")]
    #[case(r#"{"policyName":"static","defaultCpuSet":"0","entries":{"../x":{}}}"#, "no pod UID")]
    fn a_file_in_doubt_is_refused_with_the_reason(#[case] text: &str, #[case] reason: &str) {
        let error = CpuManagerState::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn one_changed_byte_is_found() {
        let changed = ARTICLE.replace("14-17", "14-18");
        assert!(matches!(
            CpuManagerState::parse(changed.as_bytes()),
            Err(CheckpointError::Checksum { .. })
        ));
    }

    #[rstest]
    fn genuine_files_of_kubelet_1_36_are_accepted(
        #[files("tests/data/kubelet-checkpoints/k136-gate-off/*/cpu_manager_state")] path: std::path::PathBuf,
    ) {
        let state = CpuManagerState::parse(&std::fs::read(path).unwrap()).unwrap();
        assert!(state.shared_pool().is_disjoint(&state.assigned()));
    }

    #[test]
    fn the_hashed_text_is_the_one_kubelet_hashes() {
        let genuine =
            std::fs::read_to_string("tests/data/kubelet-checkpoints/hash-strings/cpu-v2-article.txt").unwrap();
        assert_eq!(checksum::fnv1a(genuine.trim_end_matches('\n')), 3_944_432_841);
    }
}
