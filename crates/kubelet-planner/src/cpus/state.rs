//! What kubelet writes into its `cpu_manager_state`.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_kubelet::cpu_manager_state::CpuManagerState;

use crate::pod::by_uid;

/// The state of kubelet's static policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuState {
    /// The shared pool.
    pub default: CpuSet,
    /// Exclusive CPUs by pod and container. Within a pod they may overlap: a finished init container keeps its entry, and
    /// the containers on a pod's own shared pool all carry the same CPUs.
    pub entries: BTreeMap<String, BTreeMap<String, CpuSet>>,
    /// A pod's own CPUs, its shared pool included.
    pub pods: BTreeMap<String, CpuSet>,
}

impl CpuState {
    /// The CPUs of a container.
    pub fn entry(&self, pod: &str, container: &str) -> Option<&CpuSet> {
        self.entries.get(pod)?.get(container)
    }

    /// The CPUs allocated twice: in two pods' entries, or in an entry and in the shared pool or the reserved CPUs.
    /// Empty in a consistent state.
    pub fn conflicts(&self, reserved: &CpuSet) -> CpuSet {
        let (mut held, mut conflicts) = (self.default.union(reserved), CpuSet::new());
        for entries in self.entries.values() {
            let own = entries.values().fold(CpuSet::new(), |own, cpus| own.union(cpus));
            conflicts = conflicts.union(&own.intersection(&held));
            held = held.union(&own);
        }
        conflicts
    }

    /// The CPUs of the pod's other containers.
    pub(super) fn siblings(&self, pod: &str, container: &str) -> CpuSet {
        let all = self.entries.get(pod).into_iter().flatten();
        let others = all.filter(|(name, _)| *name != container);
        others.fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus))
    }

    pub(super) fn set(&mut self, pod: &str, container: &str, cpus: CpuSet) {
        let entries = self.entries.entry(pod.to_owned()).or_default();
        entries.insert(container.to_owned(), cpus);
    }

    /// Removes a container's entry, and with the last one the pod's.
    pub(super) fn remove(&mut self, pod: &str, container: &str) -> Option<CpuSet> {
        let entries = self.entries.get_mut(pod)?;
        let cpus = entries.remove(container)?;
        if entries.is_empty() {
            self.entries.remove(pod);
        }
        Some(cpus)
    }
}

impl From<&CpuManagerState> for CpuState {
    /// As kubelet restores it.
    fn from(checkpoint: &CpuManagerState) -> Self {
        Self {
            default: checkpoint.default_cpus.clone(),
            entries: by_uid(&checkpoint.entries),
            pods: by_uid(&checkpoint.pod_entries),
        }
    }
}
