mod machines;

use std::collections::BTreeMap;

use proptest::prelude::*;
use rstest::rstest;
use stelia_cpus::testing::{Shape, shapes};
use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_kubelet::QosClass;
use stelia_kubelet::cpu_manager_state::CpuManagerState;

use super::*;
use crate::merge::NodeMask;
use crate::pod::ContainerKind::{self, App, Init, Sidecar};
use crate::pod::{Amounts, Container, Pod, Resources};
use crate::testing;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn regular(nodes: u32, cores: u32) -> CpuGroups {
    testing::groups(Shape::new(nodes, cores, 2).interleaved())
}

/// Eight cores of two threads (CPUs 0-15, siblings side by side), and eight of one, on one socket each or on the same.
fn hybrid(sockets: u32) -> CpuGroups {
    let place = |cpu: u32| Cpu {
        package: cpu / 16 % sockets,
        core: if cpu < 16 { cpu / 2 } else { cpu },
        node: cpu / 16 % sockets,
    };
    let cpus = (0..24).map(|cpu| (cpu, place(cpu))).collect();
    CpuGroups::new(&Topology { cpus }, &BTreeMap::new())
}

const ACROSS_NUMA: CpuOptions = CpuOptions {
    full_pcpus_only: false,
    distribute_cpus_across_numa: true,
    align_by_socket: false,
    distribute_cpus_across_cores: false,
    prefer_align_cpus_by_uncorecache: false,
    strict_cpu_reservation: false,
};

const FULL_ACROSS_NUMA: CpuOptions = CpuOptions {
    full_pcpus_only: true,
    ..ACROSS_NUMA
};

const COPIED: Kubelet = Kubelet {
    combinations_copied: true,
    affinity_is_least: false,
    pod_level_resource_managers: false,
};

const POD_LEVEL: Kubelet = Kubelet {
    combinations_copied: false,
    affinity_is_least: false,
    pod_level_resource_managers: true,
};

#[test]
fn cpus_of_others_that_kubelet_hands_out_are_named() {
    let (options, kubelet) = (CpuOptions::default(), Kubelet::default());
    let answer = take(&hybrid(1), options, kubelet, &set("3,12,17"), 2).unwrap();
    assert_eq!(answer.cpus, set("2-3"));
    assert_eq!(answer.faults, [Fault::NotFree(set("2"))]);
    assert!(!answer.is_safe() && answer.faults[0].to_string().ends_with(": 2"));
}

#[test]
fn a_core_that_two_runs_share_gives_a_cpu_too_few() {
    // The first run takes 0-1 as a free core, and 4 alone; the second takes 4-5 as a free core.
    let request = ExclusiveRequest {
        available: &set("1,4-5,16-17"),
        reusable: &CpuSet::new(),
        count: 5,
        affinity: Some(NodeMask::from_bits(1)),
    };
    let answer = allocate(&hybrid(2), CpuOptions::default(), Kubelet::default(), &request).unwrap();
    assert_eq!(answer.cpus, set("0-1,4-5"));
    let too_few = Fault::OtherCount { wanted: 5, got: 4 };
    assert_eq!(answer.faults, [Fault::NotFree(set("0")), too_few]);
}

#[test]
fn chosen_numa_nodes_are_overwritten_unless_they_are_copied() {
    let numa8 = regular(8, 8);
    let ask = |kubelet| take(&numa8, ACROSS_NUMA, kubelet, &CpuSet::below(128), 64).unwrap();
    let (released, copied) = (ask(Kubelet::default()), ask(COPIED));
    assert_eq!(copied.cpus, set("0-31,64-95"));
    assert_eq!(copied.faults, []);
    assert_eq!(released.cpus, set("0-23,56-87,120-127"));
    assert_eq!(released.faults, [Fault::Overwritten]);
    assert!(released.is_safe());
}

#[test]
fn where_kubelet_hangs_the_answer_says_so() {
    let topology = regular(4, 8);
    let policy = StaticPolicy::new(&topology, FULL_ACROSS_NUMA, Kubelet::default(), 4, &set("0,8,16,24"));
    let (mut policy, mut state) = (policy.unwrap(), CpuState::default());
    policy.start(&mut state).unwrap();
    let (before, pod) = (state.clone(), pod(None, &[("vm", App, 54_000, true)]));
    let refusal = policy.allocate(&mut state, &pod, &pod.containers[0], None).unwrap_err();
    assert_eq!(refusal.to_string(), "kubelet would not return");
    assert_eq!(state, before);
}

fn resources(milli_cpus: u64, guaranteed: bool) -> Resources {
    let amounts = Amounts {
        milli_cpus: Some(milli_cpus),
        memory: Some(1 << 20),
        ..Amounts::default()
    };
    if guaranteed {
        Resources::guaranteed(amounts)
    } else {
        Resources {
            requests: amounts,
            limits: Amounts::default(),
        }
    }
}

/// A Guaranteed pod, by pod-level resources of so many CPUs or by its containers.
fn pod(milli_cpus: Option<u64>, containers: &[(&str, ContainerKind, u64, bool)]) -> Pod {
    let container = |(name, kind, milli_cpus, guaranteed): &(&str, ContainerKind, u64, bool)| {
        Container::new(name, *kind, resources(*milli_cpus, *guaranteed))
    };
    let mut pod = testing::pod("pod", &containers.iter().map(container).collect::<Vec<_>>());
    pod.resources = milli_cpus.map(|milli_cpus| resources(milli_cpus, true));
    assert_eq!(pod.qos(), QosClass::Guaranteed);
    pod
}

/// 16 CPUs on 2 NUMA nodes, of which 0 and 8 are one core and reserved.
fn started(topology: &CpuGroups, options: CpuOptions, kubelet: Kubelet) -> (StaticPolicy<'_>, CpuState) {
    let policy = StaticPolicy::new(topology, options, kubelet, 2, &CpuSet::new()).unwrap();
    let mut state = CpuState::default();
    policy.start(&mut state).unwrap();
    (policy, state)
}

#[test]
fn a_pod_with_its_own_resources_is_divided_into_slices_and_a_pool() {
    let topology = regular(2, 4);
    let (mut policy, mut state) = started(&topology, CpuOptions::default(), POD_LEVEL);
    let pod = pod(
        Some(8_000),
        &[
            ("fetch", Init, 100, false),
            ("mesh", Sidecar, 2_000, true),
            ("migrate", Init, 6_000, true),
            ("check", Init, 100, false),
            ("vm", App, 4_000, true),
            ("logs", App, 500, true),
            ("metrics", App, 1_000, false),
        ],
    );
    let hints = policy.hints(&state, &pod, None).unwrap();
    assert_eq!(Some(hints), testing::hints(&[(0b10, true), (0b11, false)]));

    let second = Some(NodeMask::from_bits(0b10));
    let answer = policy.allocate_pod(&mut state, &pod, second).unwrap().unwrap();
    assert_eq!((answer.cpus, answer.faults), (set("4-7,12-15"), Vec::new()));
    assert_eq!(state.default, set("0-3,8-11"));
    assert_eq!(state.pods["pod"], set("4-7,12-15"));
    let entry = |name| state.entry("pod", name).unwrap().to_string();
    assert_eq!(entry("fetch"), "4-7,12-15");
    assert_eq!(entry("mesh"), "4,12");
    assert_eq!(entry("migrate"), "5-7,13-15");
    assert_eq!(entry("check"), "5-7,13-15");
    assert_eq!(entry("vm"), "5-6,13-14");
    assert_eq!(entry("logs"), "7,15");
    assert_eq!(entry("metrics"), "7,15");
    assert_eq!(state.conflicts(policy.reserved()), CpuSet::new());
    policy.start(&mut state).unwrap();

    for container in &pod.containers {
        assert_eq!(state.default, set("0-3,8-11"), "{} still runs", container.name);
        policy.remove(&mut state, "pod", &container.name);
    }
    assert_eq!(state.default, CpuSet::below(16));
    assert!(state.entries.is_empty() && state.pods.is_empty());
}

#[test]
fn a_file_of_kubelets_own_with_pod_level_resources_is_predicted() {
    let file = "../../tests/data/kubelet-checkpoints/k136-gate-on/05a-podlevel-podscope/cpu_manager_state";
    let written = CpuManagerState::parse(&std::fs::read(file).unwrap()).unwrap();
    let topology = regular(2, 32);
    let mut policy = StaticPolicy::new(&topology, CpuOptions::default(), POD_LEVEL, 2, &set("0,64")).unwrap();
    let mut state = CpuState::default();
    policy.start(&mut state).unwrap();
    const BOTH: Option<NodeMask> = Some(NodeMask::from_bits(0b11));
    let with_uid = |number: u32, pod: Pod| Pod {
        uid: format!("33333333-aaaa-4bbb-8ccc-{number:012}"),
        ..pod
    };

    let vm = [
        ("instance", App, 16_000, true),
        ("virtiofsd", App, 1_000, false),
        ("dnsmasq", App, 500, false),
    ];
    let vm = with_uid(1, pod(Some(20_000), &vm));
    policy.allocate_pod(&mut state, &vm, BOTH).unwrap();
    let plain = with_uid(2, pod(None, &[("instance", App, 4_000, true)]));
    policy.allocate(&mut state, &plain, &plain.containers[0], BOTH).unwrap();
    let mixed = [
        ("init", Init, 4_000, true),
        ("side", Sidecar, 2_000, true),
        ("instance", App, 4_000, true),
        ("helper", App, 1_000, false),
    ];
    let mixed = with_uid(3, pod(Some(8_000), &mixed));
    policy.allocate_pod(&mut state, &mixed, BOTH).unwrap();

    assert_eq!(state, CpuState::from(&written));
}

#[rstest]
#[case(&[("one", App, 1_000, true), ("three", App, 3_000, true), ("rest", App, 100, false)], CpuRefusal::EmptyPodSharedPool)]
#[case(&[("rest", Sidecar, 100, false), ("four", App, 4_000, true)], CpuRefusal::EmptyPodSharedPool)]
#[case(&[("mesh", Sidecar, 4_000, true), ("fetch", Init, 100, false)], CpuRefusal::EmptyPoolOfInitContainers)]
#[case(
    &[("mesh", Sidecar, 1_000, true), ("fetch", Init, 4_000, true)],
    CpuRefusal::InitContainerTooLarge { requested: 4, available: 3 }
)]
fn a_pod_that_leaves_a_container_without_cpus_is_rejected(
    #[case] containers: &[(&str, ContainerKind, u64, bool)],
    #[case] refusal: CpuRefusal,
) {
    let topology = regular(2, 4);
    let (mut policy, mut state) = started(&topology, CpuOptions::default(), POD_LEVEL);
    let (before, pod) = (state.clone(), pod(Some(4_000), containers));
    assert_eq!(policy.hints(&state, &pod, None), Some(Vec::new()));
    assert_eq!(refusal.reason(), "EmptyPodSharedPoolError");
    assert_eq!(policy.allocate_pod(&mut state, &pod, None), Err(refusal));
    assert_eq!(state, before);
}

#[test]
fn in_scope_container_only_guaranteed_containers_get_cpus_of_their_own() {
    let topology = regular(2, 4);
    let (mut policy, mut state) = started(&topology, CpuOptions::default(), POD_LEVEL);
    let pod = pod(Some(4_000), &[("vm", App, 2_000, true), ("logs", App, 1_000, false)]);
    for container in &pod.containers {
        policy.allocate(&mut state, &pod, container, None).unwrap();
    }
    assert_eq!(policy.hints(&state, &pod, Some(&pod.containers[1])), None);
    assert_eq!(state.entries["pod"], BTreeMap::from([("vm".to_owned(), set("1,9"))]));
    assert!(state.pods.is_empty());
}

#[test]
fn without_the_feature_gate_a_pod_with_its_own_resources_gets_nothing() {
    let topology = regular(2, 4);
    let (mut policy, mut state) = started(&topology, CpuOptions::default(), Kubelet::default());
    let (before, pod) = (state.clone(), pod(Some(4_000), &[("vm", App, 2_000, true)]));
    let vm = &pod.containers[0];
    assert_eq!(
        (policy.hints(&state, &pod, Some(vm)), policy.hints(&state, &pod, None)),
        (None, None)
    );
    assert_eq!(policy.allocate(&mut state, &pod, vm, None), Ok(None));
    assert_eq!(policy.allocate_pod(&mut state, &pod, None), Ok(None));
    assert_eq!(state, before);
}

#[test]
fn a_pods_hints_count_what_runs_at_the_same_time() {
    let topology = regular(2, 4);
    let (policy, state) = started(&topology, CpuOptions::default(), Kubelet::default());
    let containers = [
        ("mesh", Sidecar, 2_000, true),
        ("fetch", Init, 7_000, true),
        ("vm", App, 4_000, true),
    ];
    // 9 CPUs while the init container runs: no NUMA node has them.
    let expected = testing::hints(&[(0b11, true)]);
    assert_eq!(policy.hints(&state, &pod(None, &containers), None), expected);
}

#[rstest]
#[case("full-pcpus-only", "distribute-cpus-across-cores")]
#[case("distribute-cpus-across-numa", "prefer-align-cpus-by-uncorecache")]
fn options_that_exclude_each_other_are_refused(#[case] one: &str, #[case] other: &str) {
    let given = |value: &str| BTreeMap::from([one, other].map(|name| (name.to_owned(), value.to_owned())));
    assert!(matches!(
        CpuOptions::parse(&given("true")),
        Err(CpuOptionsError::Exclusive(..))
    ));
    assert_eq!(CpuOptions::parse(&given("false")), Ok(CpuOptions::default()));
    assert!(matches!(
        CpuOptions::parse(&given("yes")),
        Err(CpuOptionsError::Value { .. })
    ));
}

#[test]
fn align_by_socket_needs_a_numa_node_for_each_socket() {
    let place = |cpu: u32| Cpu {
        package: cpu / 2,
        core: cpu,
        node: 0,
    };
    let cpus = (0..4).map(|cpu| (cpu, place(cpu))).collect();
    let topology = CpuGroups::new(&Topology { cpus }, &BTreeMap::new());
    let options = CpuOptions {
        align_by_socket: true,
        ..CpuOptions::default()
    };
    assert_eq!(options.check(&topology), Err(CpuOptionsError::MoreSocketsThanNodes));
    assert_eq!(options.check(&regular(2, 4)), Ok(()));
}

fn any_options() -> impl Strategy<Value = CpuOptions> {
    let option = any::<bool>;
    let all = (option(), option(), option(), option(), option(), option());
    let options = all.prop_map(|(full, numa, socket, cores, cache, strict)| CpuOptions {
        full_pcpus_only: full,
        distribute_cpus_across_numa: numa,
        align_by_socket: socket,
        distribute_cpus_across_cores: cores && !full && !numa,
        prefer_align_cpus_by_uncorecache: cache && !numa && (full || !cores),
        strict_cpu_reservation: strict,
    });
    options.prop_filter("kubelet starts", |options| options.check(&regular(2, 4)).is_ok())
}

proptest! {
    /// Kubelet's faults need irregular cores: everywhere else it hands out free CPUs, as many as wanted, or says that it
    /// cannot.
    #[test]
    fn on_regular_nodes_answers_are_safe(
        shape in shapes(),
        options in any_options(),
        copied in any::<bool>(),
        picked in proptest::collection::vec(any::<bool>(), 1024),
        share in 0.0f64..1.1,
        affinity in proptest::option::of((1u64..256).prop_map(NodeMask::from_bits)),
    ) {
        let topology = CpuGroups::new(&shape.topology(), &BTreeMap::new());
        let free: CpuSet = topology.cpus().iter().filter(|cpu| picked[*cpu as usize]).collect();
        let kubelet = Kubelet { combinations_copied: copied, ..Kubelet::default() };
        let count = (free.len() as f64 * share) as usize;
        let request = ExclusiveRequest { available: &free, reusable: &CpuSet::new(), count, affinity };
        match allocate(&topology, options, kubelet, &request) {
            Ok(answer) => {
                prop_assert!(answer.is_safe(), "{:?}", answer.faults);
                prop_assert!(!copied || answer.faults.is_empty());
                prop_assert_eq!(answer.cpus.len(), count);
                prop_assert!(answer.cpus.is_subset(&free));
            }
            Err(CpuRefusal::NotEnough { .. }) => prop_assert!(count > free.len()),
            Err(CpuRefusal::WouldNotReturn) => {
                prop_assert!(options.full_pcpus_only && options.distribute_cpus_across_numa);
            }
            // The overwritten NUMA nodes may have too few.
            Err(refusal) => prop_assert!(matches!(refusal, CpuRefusal::TooFewTaken(_)) && !copied, "{refusal}"),
        }
    }

    /// Whatever is allocated and removed on a regular node, no CPU is lost or assigned twice.
    #[test]
    fn no_cpu_is_lost_or_in_two_hands(
        shape in shapes(),
        options in any_options(),
        steps in proptest::collection::vec((0usize..6, 0usize..3, any::<bool>()), 1..40),
        sizes in proptest::collection::vec(1u64..9, 18),
    ) {
        let topology = CpuGroups::new(&shape.topology(), &BTreeMap::new());
        let Ok(mut policy) = StaticPolicy::new(&topology, options, Kubelet::default(), 1, &CpuSet::new()) else {
            return Ok(());
        };
        let mut state = CpuState::default();
        policy.start(&mut state).unwrap();
        let all = state.default.clone();
        let kinds = [Init, Sidecar, App];
        let pods: Vec<Pod> = (0..6).map(|pod| Pod {
            uid: format!("pod{pod}"),
            resources: None,
            containers: (0..3).map(|index| {
                Container::new(&format!("c{index}"), kinds[index], resources(sizes[pod * 3 + index] * 1000, true))
            }).collect(),
        }).collect();
        for (pod, container, remove) in steps {
            let (pod, container) = (&pods[pod], &pods[pod].containers[container]);
            if remove {
                policy.remove(&mut state, &pod.uid, &container.name);
            } else {
                // Rejected or not.
                let _ = policy.allocate(&mut state, pod, container, None);
            }
            let held = state.entries.values().flat_map(BTreeMap::values);
            let known = held.fold(state.default.clone(), |known, cpus| known.union(cpus));
            prop_assert_eq!(&known, &all);
            prop_assert_eq!(state.conflicts(policy.reserved()), CpuSet::new());
        }
    }
}
