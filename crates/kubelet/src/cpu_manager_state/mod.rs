//! `cpu_manager_state`: kubelet's record of the CPUs it gave away.
//!
//! Every schema is read into the same [`CpuManagerState`]. A file with a key that its schema does not have is refused, never
//! read as "no instances"; except that the newest may have keys beside entries that are read whole (`v2_to_v4`). Source: `pkg/kubelet/cm/cpumanager/state/checkpoint.go`.

mod error;
mod pod_shared_pool;
mod schema;
pub mod v2_to_v4;

use std::collections::BTreeMap;

pub use error::{CheckpointError, MAX_BYTES, MAX_LISTED};
pub(super) use error::{content, json, needed, pod_uid, sealed, unknown};
pub use pod_shared_pool::{Use, Uses};
pub use schema::Schema;

use stelia_cpus::CpuSet;

use super::pod::PodUid;

/// File name below kubelet's root directory.
pub const CPU_MANAGER_STATE: &str = "cpu_manager_state";

/// Exclusive CPUs by pod and container name.
pub type Entries = BTreeMap<PodUid, BTreeMap<String, CpuSet>>;

/// The parsed content of a `cpu_manager_state`, its checksum verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuManagerState {
    /// The shape it was read from.
    pub schema: Schema,
    /// `static` or `none`.
    pub policy: String,
    /// kubelet's `defaultCpuSet`: the CPUs that no Guaranteed container has.
    pub default_cpus: CpuSet,
    /// Exclusive CPUs by pod and container name. Within a pod they may overlap: a finished init container keeps
    /// its entry, and the containers on a pod's own shared pool all carry the same CPUs.
    pub entries: Entries,
    /// A pod's own CPUs, its shared pool included (V3 and V4).
    pub pod_entries: BTreeMap<PodUid, CpuSet>,
    /// The CPUs that containers were admitted with, where kubelet may resize them in place (V4): a part of their entries. Nothing is decided by them.
    pub baselines: Entries,
    /// Keys beside the entries that are not known here: of a kubelet that is newer than this program.
    pub unknown_keys: Vec<String>,
}

impl CpuManagerState {
    /// The state of a node without kubelet: policy `none`, no entries.
    pub fn absent() -> Self {
        Self {
            schema: Schema::V4,
            policy: "none".to_owned(),
            default_cpus: CpuSet::new(),
            entries: Entries::new(),
            pod_entries: BTreeMap::new(),
            baselines: Entries::new(),
            unknown_keys: Vec::new(),
        }
    }

    /// Whether the policy assigns exclusive CPUs.
    pub fn is_static(&self) -> bool {
        self.policy == "static"
    }

    /// All CPUs that some entry names.
    pub fn assigned(&self) -> CpuSet {
        let containers = self.entries.values().flat_map(BTreeMap::values);
        containers
            .chain(self.pod_entries.values())
            .flat_map(CpuSet::iter)
            .collect()
    }

    /// The first entry that has CPUs of the default set, which kubelet does not start with again: the pod, the container, and these CPUs.
    pub fn overlap(&self) -> Option<(&PodUid, &str, CpuSet)> {
        let mut entries = self.entries.iter().flat_map(|(pod, containers)| {
            containers
                .iter()
                .map(move |(container, cpus)| (pod, container.as_str(), cpus.intersection(&self.default_cpus)))
        });
        entries.find(|(_, _, both)| !both.is_empty())
    }

    /// The shared pool: the default set less everything an entry names. kubelet writes one change as two files, and this
    /// is safe at each step in between.
    pub fn shared_pool(&self) -> CpuSet {
        self.default_cpus.difference(&self.assigned())
    }
}

#[cfg(test)]
mod tests;
