//! A pod's own shared pool (V3, V4): what its containers with exclusive CPUs leave of the pod's CPUs. Every container of
//! such a pod has an entry, and the file does not say whose are exclusive and whose are the pool.

use std::collections::{BTreeMap, BTreeSet};

use super::CpuManagerState;
use crate::cpuset::CpuSet;
use crate::kubelet::PodUid;

/// What a container's entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// CPUs that are its alone.
    Exclusive,
    /// Its pod's shared pool.
    Shared,
}

/// What is known of a pod's entries besides the file, by container. Who is not listed may have either.
pub type Uses = BTreeMap<String, Use>;

impl CpuManagerState {
    /// The shared pool of a pod with CPUs of its own; `None` for another pod, where none is left to share, and where
    /// nothing tells.
    ///
    /// The entry of a container that is known to share is the pool. Without one, several containers with the same CPUs,
    /// which are all that the others leave of the pod's, share them; a container alone with what is left might have it
    /// for itself, and is taken to.
    pub fn pod_shared_pool(&self, pod: &PodUid, uses: &Uses) -> Option<CpuSet> {
        let own = self.pod_entries.get(pod)?;
        let taken = self.taken(pod, uses);
        let shared = self.known(pod, uses, Use::Shared);
        // An init container without a request has what the pool and later containers have together: the least set is the
        // pool.
        if let Some(least) = shared.iter().min_by_key(|cpus| cpus.len()) {
            let within = shared.iter().all(|cpus| least.is_subset(cpus));
            let fits = !least.is_empty() && least.is_subset(own) && least.is_disjoint(&taken);
            return (within && fits).then(|| (*least).clone());
        }
        let sets = self.standing(pod, uses);
        let mut fitting = sets.iter().filter(|cpus| self.several_share(pod, cpus, uses));
        match (fitting.next(), fitting.next()) {
            (Some(cpus), None) => (!cpus.is_empty()).then(|| (*cpus).clone()),
            // Two sets that fit: one of them is exclusive, and nothing tells which.
            (Some(_), Some(_)) => None,
            (None, _) => {
                let left = own.difference(&sets.into_iter().flat_map(CpuSet::iter).collect());
                (!left.is_empty()).then_some(left)
            }
        }
    }

    /// Whether these CPUs, once known as the pod's shared pool, can still be it: they are the pod's, no container is
    /// known to have one of them for itself, and no entry cuts through them.
    pub fn may_be_shared(&self, pod: &PodUid, cpus: &CpuSet, uses: &Uses) -> bool {
        let whole = |entry: &CpuSet| cpus.is_subset(entry) || cpus.is_disjoint(entry);
        let containers = self.entries.get(pod);
        !cpus.is_empty()
            && self.pod_entries.get(pod).is_some_and(|own| cpus.is_subset(own))
            && containers.into_iter().flat_map(BTreeMap::values).all(whole)
            && cpus.is_disjoint(&self.taken(pod, uses))
    }

    /// Whether several containers of a pod with CPUs of its own carry these CPUs, none of them is known to have them for
    /// itself, and they are all that the others leave of the pod's: then they have to be taken for its shared pool.
    pub fn several_share(&self, pod: &PodUid, cpus: &CpuSet, uses: &Uses) -> bool {
        let (Some(own), Some(containers)) = (self.pod_entries.get(pod), self.entries.get(pod)) else {
            return false;
        };
        let standing = self.standing(pod, uses);
        let others = standing.iter().filter(|entry| **entry != cpus);
        let rest = own.difference(&others.flat_map(|entry| entry.iter()).collect());
        let several = containers.values().filter(|entry| *entry == cpus).count() > 1;
        several && rest == *cpus && cpus.is_disjoint(&self.taken(pod, uses))
    }

    /// The entries of the containers that are known to have this use.
    fn known(&self, pod: &PodUid, uses: &Uses, wanted: Use) -> BTreeSet<&CpuSet> {
        let containers = self.entries.get(pod).into_iter().flatten();
        let known = containers.filter(|(name, _)| uses.get(*name) == Some(&wanted));
        known.map(|(_, cpus)| cpus).collect()
    }

    /// The CPUs that containers are known to have for themselves.
    fn taken(&self, pod: &PodUid, uses: &Uses) -> CpuSet {
        let exclusive = self.known(pod, uses, Use::Exclusive);
        exclusive.into_iter().flat_map(CpuSet::iter).collect()
    }

    /// The entries that stand for CPUs in use. One that meets a running container's exclusive CPUs is a finished init
    /// container's: those of containers that run side by side are apart.
    fn standing(&self, pod: &PodUid, uses: &Uses) -> BTreeSet<&CpuSet> {
        let (exclusive, taken) = (self.known(pod, uses, Use::Exclusive), self.taken(pod, uses));
        let containers = self.entries.get(pod).into_iter().flat_map(BTreeMap::values);
        containers
            .filter(|cpus| exclusive.contains(cpus) || cpus.is_disjoint(&taken))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::checkpoint::Schema;

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
            container_entries: BTreeMap::new(),
            pod_entries: [(pod(), cpus(own))].into(),
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
        // Nobody runs on what is left: it is there to float on.
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
        // No CPU is nothing to float on.
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

    #[test]
    fn a_finished_init_container_hides_no_pool() {
        // It had no request, so all of the pod's CPUs: who runs on some of them now tells that it has ended.
        let entries = [("init", "1-3"), ("instance", "2-3")];
        assert_eq!(pool("1-3", &entries, &[]), None);
        assert_eq!(pool("1-3", &entries, &[("instance", Use::Exclusive)]), some("1"));
        let with_side = [("init", "1-3"), ("instance", "2-3"), ("side", "1")];
        assert_eq!(pool("1-3", &with_side, &[("instance", Use::Exclusive)]), None);
        let two = [("init", "1-3"), ("instance", "2-3"), ("a", "1"), ("b", "1")];
        assert_eq!(pool("1-3", &two, &[("instance", Use::Exclusive)]), some("1"));
        // A whole pod's CPUs used again by the one container that is left.
        let again = [("init", "1-3"), ("instance", "1-3")];
        assert_eq!(pool("1-3", &again, &[("instance", Use::Exclusive)]), None);
        // Both share, and the init container the more CPUs.
        let shared = [("init", Use::Shared), ("side", Use::Shared)];
        assert_eq!(pool("1-3", &with_side, &shared), some("1"));
    }

    #[test]
    fn what_contradicts_itself_is_no_pool() {
        let entries = [("instance", "2-3"), ("side", "1-2")];
        let known = [("instance", Use::Exclusive), ("side", Use::Shared)];
        assert_eq!(pool("1-3", &entries, &known), None);
        let apart = [("a", "1"), ("b", "2")];
        assert_eq!(pool("1-3", &apart, &[("a", Use::Shared), ("b", Use::Shared)]), None);
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
