//! The shared pool of an instance's own pod (Kubernetes' pod-level resources). kubelet's file has the pod's CPUs and
//! those of each container, and does not say which of the containers run on the pool.

use stelia_cpus::CpuSet;
use stelia_kernel::containers::{LiveContainer, entry_uses};
use stelia_kubelet::CpuManagerState;
use stelia_kubelet::cpu_manager_state::Use;
use stelia_model::record::Record;

use super::{Instance, Snapshot};

/// The pool of a record's pod. A pool that was recorded counts until kubelet's file contradicts it.
pub fn pool(state: &CpuManagerState, record: &Record, running: &[LiveContainer]) -> Option<CpuSet> {
    let mut uses = entry_uses(state, &record.pod, running);
    let entry = state
        .entries
        .get(&record.pod)
        .and_then(|own| own.get(&record.container));
    let runs = entry.filter(|entry| **entry == record.entry);
    if runs.is_some() {
        uses.insert(record.container.clone(), Use::Exclusive);
    }
    let remembered = || record.pod_pool.clone();
    let stands = |cpus: &CpuSet| state.may_be_shared(&record.pod, cpus, &uses);
    state
        .known_pod_pool(&record.pod, &uses, runs)
        .or_else(|| remembered().filter(stands))
}

/// Whether the other containers of a record's pod have to be read: the pod has CPUs of its own besides the record's,
/// and which of them are its shared pool is not known yet.
pub fn is_open(state: &CpuManagerState, record: &Record) -> bool {
    let own = state.pod_entries.get(&record.pod);
    own.is_some_and(|own| !own.is_subset(&record.entry)) && pool(state, record, &[]).is_none()
}

pub(super) fn of(snapshot: &Snapshot, instance: &Instance) -> Option<CpuSet> {
    let state = snapshot.kubelet.as_ref().ok()?;
    let running = snapshot.siblings.get(&instance.record.pod);
    pool(state, &instance.record, running.map_or(&[], Vec::as_slice))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kubelet_planner::cpus::{CpuGroups, CpuOptions, CpuState, Kubelet, StaticPolicy};
    use kubelet_planner::{Amounts, Container, ContainerKind, Pod, Resources};
    use proptest::prelude::*;
    use stelia_cpus::{Cpu, Topology};
    use stelia_kubelet::CpuRequest;
    use stelia_kubelet::cpu_manager_state::{Schema, Uses};
    use stelia_model::record::testing::record;

    use super::*;
    use crate::testing::{instance, snapshot};

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
            entry_uses(&state, &record().pod, &[running(Some("a"), "1-3", shares)])
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
    fn two_that_run_on_the_same_cpus_share_them_whatever_they_request() {
        let state = state(&[("a", "1"), ("b", "1")]);
        let (a, b) = (running(Some("a"), "1", 1024), running(Some("b"), "1", 1024));
        assert_eq!(found(&state, &[a.clone(), b]).as_deref(), Some("1"));
        // One container, while it is restarted.
        assert_eq!(found(&state, &[a.clone(), a]), None);
    }

    #[test]
    fn a_nameless_container_tells_nothing_of_another_with_its_cpus() {
        // A running init container without a request, and one that waits for its end to have these CPUs alone.
        let two = state(&[("init", "1"), ("later", "1")]);
        assert_eq!(found(&two, &[running(None, "1", 3072)]), None);
        // Nor does it contradict a name.
        let beside = [running(Some("a"), "1", 3072), running(None, "1", 1024)];
        let told = entry_uses(&state(&[("a", "1"), ("b", "1")]), &record().pod, &beside);
        let expected = [("a", Use::Shared), ("b", Use::Exclusive)];
        assert_eq!(told, expected.map(|(name, what)| (name.to_owned(), what)).into());
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
        // Now a container has it exclusively.
        assert_eq!(of(&unchanged, &[running(Some("side"), "1", 1024)]), None);
        let mut gone = unchanged.clone();
        gone.pod_entries.clear();
        assert_eq!(of(&gone, &[]), None);
    }

    #[test]
    fn a_pod_without_cpus_of_its_own_has_no_pool() {
        let plain = snapshot(vec![instance()]);
        assert_eq!(of(&plain, plain.first()), None);
        assert!(!is_open(plain.kubelet.as_ref().unwrap(), &record()));
        // Nor is there anything to share beside a container that has them all.
        let mut whole = state(&[]);
        whole.pod_entries.insert(record().pod, cpus("2-3"));
        assert!(!is_open(&whole, &record()));
    }

    /// A pod's containers: what each is, its CPUs in thousandths, whether it asks for them as a Guaranteed one, whether
    /// it runs.
    fn pods() -> impl Strategy<Value = Vec<(ContainerKind, u64, bool, bool)>> {
        let kind = prop_oneof![
            Just(ContainerKind::Init),
            Just(ContainerKind::Sidecar),
            Just(ContainerKind::App)
        ];
        let container = (kind, prop_oneof![Just(0), Just(500), Just(1000), Just(2000)]);
        proptest::collection::vec((container, any::<bool>(), any::<bool>()), 1..5).prop_map(|some| {
            let flat = some
                .into_iter()
                .map(|((kind, milli), own, runs)| (kind, milli, own, runs));
            let mut all: Vec<_> = flat.collect();
            // Init containers and sidecars are listed before the others.
            all.sort_by_key(|(kind, ..)| *kind == ContainerKind::App);
            all
        })
    }

    fn resources(milli_cpus: u64, guaranteed: bool) -> Resources {
        let requests = Amounts {
            milli_cpus: Some(milli_cpus),
            memory: Some(1 << 30),
            ..Amounts::default()
        };
        if guaranteed {
            Resources::guaranteed(requests)
        } else {
            Resources {
                requests,
                limits: Amounts::default(),
            }
        }
    }

    /// What kubelet gives that pod, with a VM of 2 CPUs among its containers.
    fn divided(
        all: &[(ContainerKind, u64, bool, bool)],
        vm_at: usize,
        cpus: u64,
    ) -> Option<(Vec<Container>, CpuState)> {
        let container = |(at, (kind, milli_cpus, guaranteed, _)): (usize, &(ContainerKind, u64, bool, bool))| {
            Container::new(&format!("c{at}"), *kind, resources(*milli_cpus, *guaranteed))
        };
        let mut containers: Vec<Container> = all.iter().enumerate().map(container).collect();
        // Before containers of other kinds it is a sidecar itself.
        let at = vm_at % (containers.len() + 1);
        let kind = if containers.get(at).is_some_and(|next| next.kind != ContainerKind::App) {
            ContainerKind::Sidecar
        } else {
            ContainerKind::App
        };
        containers.insert(at, Container::new("instance", kind, resources(2000, true)));
        let pod = Pod {
            uid: record().pod.to_string(),
            resources: Some(resources(1000 * cpus, true)),
            containers,
        };
        let cpu = |cpu: u32| {
            let (package, core, node) = (cpu / 8, cpu / 2, cpu / 8);
            (cpu, Cpu { package, core, node })
        };
        let host = Topology {
            cpus: (0..16).map(cpu).collect(),
        };
        let topology = CpuGroups::new(&host, &BTreeMap::new());
        let kubelet = Kubelet {
            pod_level_resource_managers: true,
            ..Kubelet::default()
        };
        let mut policy = StaticPolicy::new(&topology, CpuOptions::default(), kubelet, 0, &CpuSet::new()).ok()?;
        let mut given = CpuState::default();
        policy.start(&mut given).ok()?;
        policy.allocate_pod(&mut given, &pod, None).ok()??;
        Some((pod.containers, given))
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_global_rejects: 1_000_000, ..ProptestConfig::default() })]

        #[test]
        fn however_kubelet_divides_a_pod_its_pool_is_nobodys_alone(
            all in pods(), vm_at in 0usize..6, count in 2u64..9, named in any::<bool>(),
        ) {
            let Some((containers, given)) = divided(&all, vm_at, count) else { return Err(TestCaseError::reject("rejected")) };
            let pod = record().pod;
            let own = given.pods[pod.as_str()].clone();
            let entries: BTreeMap<String, CpuSet> = given.entries[pod.as_str()].clone().into_iter().collect();
            let mut state = state(&[]);
            state.pod_entries = [(pod.clone(), own.clone())].into();
            state.entries = [(pod.clone(), entries.clone())].into();
            let at = containers.iter().position(|container| container.name == "instance").unwrap();
            let asked = |container: &Container| container.resources.requests.milli_cpus.unwrap_or(0);
            let exclusive = |container: &Container| {
                container.resources.limits.milli_cpus.is_some() && asked(container).is_multiple_of(1000) && asked(container) > 0
            };
            // While the VM runs the ordinary init containers before it have ended; those after it run one by one, and what
            // is listed after one, sidecars too, starts when it has ended.
            let is_init = |one: &Container| one.kind == ContainerKind::Init && runs(&all, one);
            let init = containers.iter().enumerate().position(|(place, one)| place > at && is_init(one));
            let alive = |(place, one): &(usize, &Container)| {
                let started = match one.kind {
                    ContainerKind::Init => init == Some(*place),
                    ContainerKind::Sidecar | ContainerKind::App => init.is_none_or(|init| *place < init),
                };
                started && one.name != "instance" && runs(&all, one)
            };
            let running: Vec<LiveContainer> = containers.iter().enumerate().filter(alive).map(|(_, one)| {
                let shares = if asked(one) == 0 { 1000 * count } else { asked(one) };
                let name = named.then_some(one.name.as_str());
                running(name, &entries[&one.name].to_string(), shares * 1024 / 1000)
            }).collect();
            let record = Record { entry: entries["instance"].clone(), ..record() };
            if let Some(found) = pool(&state, &record, &running) {
                prop_assert!(!found.is_empty() && found.is_subset(&own));
                for one in containers.iter().filter(|one| one.kind != ContainerKind::Init && exclusive(one)) {
                    prop_assert!(found.is_disjoint(&entries[&one.name]), "{found} meets {} in {:?} of {:?}", one.name, entries, containers);
                }
            }
        }
    }

    fn runs(all: &[(ContainerKind, u64, bool, bool)], container: &Container) -> bool {
        let at = container
            .name
            .strip_prefix('c')
            .and_then(|number| number.parse::<usize>().ok());
        at.is_some_and(|at| all[at].3)
    }
}
