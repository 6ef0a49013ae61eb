//! The shared pool of an instance's own pod (Kubernetes' pod-level resources): kubelet's file, and what it does not say.

use super::admission::LiveContainer;
use super::{Instance, Record, Snapshot};
use crate::cpuset::CpuSet;
use crate::kubelet::checkpoint::{Use, Uses};
use crate::kubelet::{CpuManagerState, PodUid};

/// What the running containers of a pod tell of its entries.
///
/// A container with exclusive CPUs requests exactly as many. That one requests as many as the pod has says nothing: a
/// container without a request has the whole pod's shares.
pub fn uses(state: &CpuManagerState, pod: &PodUid, running: &[LiveContainer]) -> Uses {
    let (Some(own), Some(entries)) = (state.pod_entries.get(pod), state.entries.get(pod)) else {
        return Uses::new();
    };
    let told = |name: &String, entry: &CpuSet| {
        let is_it = |other: &&LiveContainer| match &other.name {
            Some(known) => known == name,
            None => other.cpus == *entry,
        };
        let told = running.iter().filter(is_it);
        let told = told.filter_map(|container| container.request.is_of(entry.len()));
        // Of several that may be it one with such a request is enough: no float shall meet CPUs that are somebody's.
        match told.max()? {
            true if entry == own => None,
            true => Some(Use::Exclusive),
            false => Some(Use::Shared),
        }
    };
    let known = entries.iter().map(|(name, entry)| (name.clone(), told(name, entry)));
    known.filter_map(|(name, what)| Some((name, what?))).collect()
}

/// The pool of a record's pod; what was once known of it stands while kubelet's file says nothing against it.
pub fn pool(state: &CpuManagerState, record: &Record, running: &[LiveContainer]) -> Option<CpuSet> {
    let mut uses = uses(state, &record.pod, running);
    let entry = state
        .entries
        .get(&record.pod)
        .and_then(|own| own.get(&record.container));
    if entry == Some(&record.entry) {
        uses.insert(record.container.clone(), Use::Exclusive);
    }
    let remembered = || record.pod_pool.clone();
    let stands = |cpus: &CpuSet| state.may_be_shared(&record.pod, cpus, &uses);
    state
        .pod_shared_pool(&record.pod, &uses)
        .or_else(|| remembered().filter(stands))
}

/// Whether the other containers of a record's pod have to be looked at: the pod has CPUs of its own, and which of them
/// are its shared pool is not known yet.
pub fn is_open(state: &CpuManagerState, record: &Record) -> bool {
    state.pod_entries.contains_key(&record.pod) && pool(state, record, &[]).is_none()
}

/// The pool of an instance's pod as the snapshot shows it.
pub(super) fn of(snapshot: &Snapshot, instance: &Instance) -> Option<CpuSet> {
    let state = snapshot.kubelet.as_ref().ok()?;
    let running = snapshot.siblings.get(&instance.record.pod);
    pool(state, &instance.record, running.map_or(&[], Vec::as_slice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::CpuRequest;
    use crate::kubelet::checkpoint::Schema;
    use crate::plan::record::tests::record;
    use crate::plan::steps::tests::{instance, snapshot};

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn running(name: Option<&str>, list: &str, shares: u64) -> LiveContainer {
        LiveContainer {
            id: "b2".into(),
            name: name.map(str::to_owned),
            cpus: cpus(list),
            request: CpuRequest {
                shares: Some(shares),
                weight: None,
            },
        }
    }

    /// kubelet's state: the record's pod has CPUs 1-3, its container 2-3, and these containers.
    fn state(others: &[(&str, &str)]) -> CpuManagerState {
        let mut state = snapshot(vec![]).kubelet.unwrap();
        let pod = record().pod;
        state.schema = Schema::V3;
        state.default_cpus = cpus("0,4-7");
        state.pod_entries.insert(pod.clone(), cpus("1-3"));
        let entries = state.entries.entry(pod).or_default();
        entries.extend(others.iter().map(|(name, list)| ((*name).to_owned(), cpus(list))));
        state
    }

    fn found(state: &CpuManagerState, containers: &[LiveContainer]) -> Option<String> {
        pool(state, &record(), containers).map(|cpus| cpus.to_string())
    }

    #[test]
    fn a_sidecars_own_request_says_whether_it_shares() {
        let state = state(&[("side", "1")]);
        // Nobody runs, or it has one CPU for itself.
        assert_eq!(found(&state, &[]), None);
        assert_eq!(found(&state, &[running(Some("side"), "1", 1024)]), None);
        // Without a request: the pod's limit of 3 CPUs; or the least there is; or a fraction.
        for shares in [3072, 2, 512] {
            let told = found(&state, &[running(Some("side"), "1", shares)]);
            assert_eq!(told.as_deref(), Some("1"), "{shares}");
        }
        // By its CPUs, where the runtime tells no name.
        assert_eq!(found(&state, &[running(None, "1", 3072)]).as_deref(), Some("1"));
        // Nor is the sandbox anybody's witness.
        assert_eq!(found(&state, &[running(None, "", 2)]), None);
    }

    #[test]
    fn a_request_of_all_the_pods_cpus_says_nothing() {
        let whole = |shares| {
            let mut state = state(&[]);
            state
                .entries
                .insert(record().pod, [("a".to_owned(), cpus("1-3"))].into());
            uses(&state, &record().pod, &[running(Some("a"), "1-3", shares)])
        };
        assert_eq!(whole(3072), Uses::new());
        assert_eq!(whole(512), [("a".to_owned(), Use::Shared)].into());
    }

    #[test]
    fn who_might_have_cpus_for_himself_is_left_alone() {
        // Two nameless containers on the same CPUs, of which one asked for as many.
        let state = state(&[("side", "1")]);
        let containers = [running(None, "1", 3072), running(None, "1", 1024)];
        assert_eq!(found(&state, &containers), None);
    }

    #[test]
    fn what_was_known_stands_while_a_sidecar_is_away_and_not_when_its_cpus_change() {
        let known = Record {
            pod_pool: Some(cpus("1")),
            ..record()
        };
        let of = |state: &CpuManagerState, running: &[LiveContainer]| pool(state, &known, running);
        let unchanged = state(&[("side", "1")]);
        assert_eq!(of(&unchanged, &[]), Some(cpus("1")));
        assert!(!is_open(&unchanged, &known) && is_open(&unchanged, &record()));
        // Now it is somebody's alone.
        assert_eq!(of(&unchanged, &[running(Some("side"), "1", 1024)]), None);
        let mut gone = unchanged.clone();
        gone.pod_entries.clear();
        assert_eq!(of(&gone, &[]), None);
    }

    #[test]
    fn a_pod_without_cpus_of_its_own_has_no_pool() {
        let plain = snapshot(vec![instance()]);
        assert_eq!(of(&plain, &plain.instances[0]), None);
        assert!(!is_open(plain.kubelet.as_ref().unwrap(), &record()));
    }
}
