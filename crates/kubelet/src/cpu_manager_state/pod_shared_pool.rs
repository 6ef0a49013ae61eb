//! A pod's own shared pool (V3, V4): what its containers with exclusive CPUs leave of the pod's CPUs. Every container of
//! such a pod has an entry, and the file does not say whose are exclusive and whose are the pool.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;

use super::CpuManagerState;
use crate::PodUid;

/// How a container has the CPUs of its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// CPUs that no other container has.
    Exclusive,
    /// Its pod's shared pool.
    Shared,
}

/// What is known of a pod's entries beyond the file, by container. A container that is not listed may be either.
pub type Uses = BTreeMap<String, Use>;

impl CpuManagerState {
    /// The shared pool of a pod with CPUs of its own, as far as it is certain that no container has one of these CPUs
    /// exclusively, or ever will. `None` for a pod without CPUs of its own, where no CPUs are shared, and where it is
    /// not certain.
    ///
    /// `runs` is the entry of a container that is known to run and is not an ordinary init container: a container whose
    /// entry overlaps it without being equal has ended.
    pub fn known_pod_pool(&self, pod: &PodUid, uses: &Uses, runs: Option<&CpuSet>) -> Option<CpuSet> {
        let own = self.pod_entries.get(pod)?;
        let containers = || self.entries.get(pod).into_iter().flatten();
        let shares = |name: &str| uses.get(name) == Some(&Use::Shared);
        let shared = containers().filter(|(name, _)| shares(name)).map(|(_, cpus)| cpus);
        // An init container that shares has the pool and, in addition, what later containers will have: the smallest
        // set is the pool, if any is.
        if let Some(least) = shared.min_by_key(|cpus| cpus.len()) {
            // The same CPUs could still become those of one that waits for an init container to end.
            let certain = containers().all(|(name, entry)| shares(name) || entry != least);
            return (certain && self.may_be_shared(pod, least, uses)).then(|| least.clone());
        }
        let ended = |cpus: &CpuSet| runs.is_some_and(|runs| cpus != runs && !cpus.is_disjoint(runs));
        let standing = containers().map(|(_, cpus)| cpus).filter(|cpus| !ended(cpus));
        let remaining = own.difference(&standing.flat_map(CpuSet::iter).collect());
        (!remaining.is_empty()).then_some(remaining)
    }

    /// The shared pool of a pod with CPUs of its own, from all that is known and otherwise from the file alone: several
    /// containers with the same CPUs share them, if these are all that the others leave of the pod's. A single
    /// container with all that is left is treated as having them exclusively.
    pub fn pod_shared_pool(&self, pod: &PodUid, uses: &Uses) -> Option<CpuSet> {
        let by_file = || {
            let containers = self.entries.get(pod).into_iter().flat_map(BTreeMap::values);
            let fitting =
                containers.filter(|cpus| self.several_share(pod, cpus) && self.may_be_shared(pod, cpus, uses));
            let mut fitting = fitting.collect::<BTreeSet<_>>().into_iter();
            // If two sets fit, one is exclusive, and it is not known which.
            fitting.next().filter(|_| fitting.next().is_none()).cloned()
        };
        self.known_pod_pool(pod, uses, None).or_else(by_file)
    }

    /// Whether these CPUs can be a pod's shared pool: they are the pod's, no container is known to have one of them
    /// exclusively, and every entry has all of them or none.
    pub fn may_be_shared(&self, pod: &PodUid, cpus: &CpuSet, uses: &Uses) -> bool {
        let fits = |(name, entry): (&String, &CpuSet)| match uses.get(name) {
            Some(Use::Exclusive) => cpus.is_disjoint(entry),
            Some(Use::Shared) => cpus.is_subset(entry),
            None => cpus.is_subset(entry) || cpus.is_disjoint(entry),
        };
        !cpus.is_empty()
            && self.pod_entries.get(pod).is_some_and(|own| cpus.is_subset(own))
            && self.entries.get(pod).into_iter().flatten().all(fits)
    }

    /// Whether several containers of a pod with CPUs of its own have exactly these CPUs, and these are all that the
    /// others leave of the pod's: then none is treated as having them exclusively.
    pub fn several_share(&self, pod: &PodUid, cpus: &CpuSet) -> bool {
        let (Some(own), Some(containers)) = (self.pod_entries.get(pod), self.entries.get(pod)) else {
            return false;
        };
        let others = containers.values().filter(|entry| *entry != cpus);
        let rest = own.difference(&others.flat_map(CpuSet::iter).collect());
        containers.values().filter(|entry| *entry == cpus).count() > 1 && rest == *cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_manager_state::Schema;

    const POD: &str = "33333333-aaaa-4bbb-8ccc-000000000001";

    fn pod() -> PodUid {
        PodUid::parse(POD).unwrap()
    }

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn state(own: &str, containers: &[(&str, &str)]) -> CpuManagerState {
        let entries = containers.iter().map(|(name, list)| ((*name).to_owned(), cpus(list)));
        CpuManagerState {
            schema: Schema::V3,
            policy: "static".into(),
            default_cpus: CpuSet::new(),
            entries: [(pod(), entries.collect())].into(),
            pod_entries: [(pod(), cpus(own))].into(),
            ..CpuManagerState::absent()
        }
    }

    fn uses(known: &[(&str, Use)]) -> Uses {
        known.iter().map(|(name, what)| ((*name).to_owned(), *what)).collect()
    }

    /// The pool of a pod with these CPUs and entries.
    fn pool(own: &str, containers: &[(&str, &str)], known: &[(&str, Use)]) -> Option<String> {
        let pool = state(own, containers).pod_shared_pool(&pod(), &uses(known));
        pool.map(|cpus| cpus.to_string())
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_pods_pool_is_told_from_an_init_containers_cpus_used_again() {
        let unknown = &[];
        // What is left is in no entry; the VM can float there.
        assert_eq!(pool("1-4", &[("init", "1-2"), ("vm", "1-2")], unknown), some("3-4"));
        // Either pair could be the one that shares.
        assert_eq!(
            pool(
                "1-4",
                &[("init", "1-2"), ("vm", "1-2"), ("a", "3-4"), ("b", "3-4")],
                unknown
            ),
            None
        );
        assert_eq!(pool("1-4", &[("a", "1-4"), ("b", "1-4")], unknown), some("1-4"));
        assert_eq!(pool("1-4", &[], unknown), some("1-4"));
        // An empty set is not a pool.
        assert_eq!(pool("", &[("a", ""), ("b", "")], unknown), None);
        assert_eq!(pool("1", &[("a", ""), ("b", ""), ("c", "1")], unknown), None);
    }

    #[test]
    fn one_sidecar_is_taken_to_have_its_cpus_for_itself_until_it_is_known_to_share() {
        let entries = [("instance", "2-3"), ("side", "1")];
        assert_eq!(pool("1-3", &entries, &[]), None);
        assert_eq!(pool("1-3", &entries, &[("instance", Use::Exclusive)]), None);
        assert_eq!(pool("1-3", &entries, &[("side", Use::Shared)]), some("1"));
        let both = [("instance", Use::Exclusive), ("side", Use::Shared)];
        assert_eq!(pool("1-3", &entries, &both), some("1"));
        let alone = [("instance", Use::Exclusive), ("side", Use::Exclusive)];
        assert_eq!(pool("1-3", &entries, &alone), None);
    }

    /// The certain pool, with a container that runs on CPUs 2-3.
    fn known(own: &str, containers: &[(&str, &str)], known: &[(&str, Use)]) -> Option<String> {
        let pool = state(own, containers).known_pod_pool(&pod(), &uses(known), Some(&cpus("2-3")));
        pool.map(|cpus| cpus.to_string())
    }

    #[test]
    fn a_finished_init_container_hides_no_pool() {
        // The init container had no request, so it had all of the pod's CPUs: that another now runs on some of them
        // shows that it has ended.
        let entries = [("init", "1-3"), ("instance", "2-3")];
        assert_eq!(pool("1-3", &entries, &[]), None);
        assert_eq!(known("1-3", &entries, &[]), some("1"));
        let with_side = [("init", "1-3"), ("instance", "2-3"), ("side", "1")];
        assert_eq!(known("1-3", &with_side, &[]), None);
        assert_eq!(known("1-3", &with_side, &[("side", Use::Shared)]), some("1"));
        // The init container still runs, and the instance is a sidecar: the remaining CPUs may be assigned to a later
        // container.
        assert_eq!(
            known(
                "0-3",
                &[("init", "0-1"), ("instance", "2-3"), ("a", "1"), ("b", "0")],
                &[("init", Use::Shared)]
            ),
            None
        );
        assert_eq!(
            known(
                "1-3",
                &[("init", "1"), ("instance", "2-3"), ("a", "1")],
                &[("init", Use::Shared)]
            ),
            None
        );
    }

    #[test]
    fn of_several_with_the_same_cpus_all_must_tell_that_they_share() {
        let entries = [("instance", "2-3"), ("a", "1"), ("b", "1")];
        // From the file alone it seems to be the pool.
        assert_eq!(pool("1-3", &entries, &[]), some("1"));
        // One could be an init container, and then the other has its CPU exclusively.
        assert_eq!(known("1-3", &entries, &[]), None);
        assert_eq!(pool("1-3", &entries, &[("b", Use::Exclusive)]), None);
        assert_eq!(known("1-3", &entries, &[("a", Use::Shared)]), None);
        assert_eq!(
            known("1-3", &entries, &[("a", Use::Shared), ("b", Use::Shared)]),
            some("1")
        );
    }

    #[test]
    fn what_contradicts_itself_is_no_pool() {
        let entries = [("instance", "2-3"), ("side", "1-2")];
        let both = [("instance", Use::Exclusive), ("side", Use::Shared)];
        assert_eq!(known("1-3", &entries, &both), None);
        let apart = [("a", "1"), ("b", "2")];
        assert_eq!(known("1-3", &apart, &[("a", Use::Shared), ("b", Use::Shared)]), None);
    }

    #[test]
    fn a_pool_once_known_stands_while_the_file_says_nothing_against_it() {
        let may = |own: &str, entries: &[(&str, &str)], known: &[(&str, Use)]| {
            state(own, entries).may_be_shared(&pod(), &cpus("1"), &uses(known))
        };
        let entries = [("init", "1-3"), ("instance", "2-3"), ("side", "1")];
        assert!(may("1-3", &entries, &[("instance", Use::Exclusive)]));
        assert!(!may("1-3", &entries, &[("side", Use::Exclusive)]));
        assert!(!may("2-3", &[("instance", "2-3")], &[]));
        let wide = state("1-4", &[("instance", "3-4"), ("side", "1")]);
        assert!(!wide.may_be_shared(&pod(), &cpus("1-2"), &Uses::new()));
    }
}
