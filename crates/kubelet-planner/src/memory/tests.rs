//! Tests named after a function state facts from this function of kubelet's own `policy_static_test.go`.

use std::collections::BTreeMap;

use rstest::rstest;
use stelia_kubelet::memory::{MemoryBlock, MemoryTable, NumaNodeState};

use super::*;
use crate::merge::{HintList, Merged, NodeMask};
use crate::pod::{Amounts, Container, ContainerKind, Pod, Resources};
use crate::testing;

const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;
const PAGES: &str = "hugepages-1Gi";

/// A NUMA node: allocatable and free memory, free huge pages of 1 GiB (one of them is allocatable), its group, blocks on it.
fn numa(memory: (u64, u64), pages: u64, cells: &[u32], assignments: u64) -> NumaNodeState {
    let table = |allocatable: u64, free: u64| MemoryTable {
        total: allocatable,
        system_reserved: 0,
        allocatable,
        reserved: allocatable - free,
        free,
    };
    NumaNodeState {
        assignments,
        cells: cells.to_vec(),
        tables: [
            ("memory".to_owned(), table(memory.0, memory.1)),
            (PAGES.to_owned(), table(GB.max(pages), pages)),
        ]
        .into(),
    }
}

fn state(nodes: impl IntoIterator<Item = NumaNodeState>) -> MemoryState {
    MemoryState {
        nodes: (0..).zip(nodes).collect(),
        ..MemoryState::default()
    }
}

fn amounts(memory: u64, pages: u64) -> Amounts {
    Amounts {
        milli_cpus: Some(1000),
        memory: Some(memory),
        huge_pages: [(GB, pages)].into(),
        ..Amounts::default()
    }
}

fn container(name: &str, kind: ContainerKind, memory: u64, pages: u64) -> Container {
    Container::new(name, kind, Resources::guaranteed(amounts(memory, pages)))
}

fn pod(containers: &[Container]) -> Pod {
    testing::pod("pod1", containers)
}

/// A container of 1 GiB of memory and a huge page of 1 GiB.
fn plain() -> Pod {
    pod(&[container("container1", ContainerKind::App, GB, GB)])
}

fn hint(nodes: Option<u64>, preferred: bool) -> Merged {
    testing::merged(nodes.map(NodeMask::from_bits), preferred)
}

fn block(nodes: &[u32], kind: &str, size: u64) -> MemoryBlock {
    MemoryBlock {
        nodes: nodes.to_vec(),
        kind: kind.to_owned(),
        size,
    }
}

fn free(state: &MemoryState, node: u32, kind: &str) -> u64 {
    state.nodes[&node].tables[kind].free
}

fn allocate(state: &mut MemoryState, pod: &Pod, hint: Merged) -> Result<Option<Vec<MemoryBlock>>, MemoryRefusal> {
    StaticPolicy::new(false).allocate(state, pod, &pod.containers[0], hint)
}

/// TestStaticPolicyAllocate: nothing for pods that are not Guaranteed.
#[test]
fn a_burstable_pod_has_no_memory_here() {
    let mut pod = plain();
    pod.containers[0].resources.limits.memory = Some(2 * GB);
    let mut state = state([numa((1536 * MB, 1536 * MB), GB, &[0], 0)]);
    let before = state.clone();
    assert_eq!(allocate(&mut state, &pod, hint(None, false)), Ok(None));
    assert_eq!(
        StaticPolicy::new(false).hints(&state, &pod, Some(&pod.containers[0]), None),
        Ok(Vec::new())
    );
    assert_eq!(state, before);
}

/// TestStaticPolicyAllocate: a container with an entry keeps it.
#[test]
fn what_is_allocated_stays() {
    let mut state = state([numa((1536 * MB, 512 * MB), 0, &[0], 2)]);
    let blocks = vec![block(&[0], PAGES, GB), block(&[0], "memory", GB)];
    state.set("pod1", "container1", blocks.clone());
    let before = state.clone();
    assert_eq!(allocate(&mut state, &plain(), hint(None, false)), Ok(Some(blocks)));
    assert_eq!(state, before);
}

/// TestStaticPolicyAllocate: without the Topology Manager's nodes, the best ones.
#[test]
fn without_a_hint_the_best_nodes_are_taken() {
    let mut state = state([numa((1536 * MB, 1536 * MB), GB, &[0], 0)]);
    let blocks = allocate(&mut state, &plain(), hint(None, false)).unwrap().unwrap();
    assert_eq!(blocks, [block(&[0], PAGES, GB), block(&[0], "memory", GB)]);
    assert_eq!(state.nodes[&0], numa((1536 * MB, 512 * MB), 0, &[0], 2));
    assert_eq!(state.entry("pod1", "container1"), Some(&blocks[..]));
}

fn three_nodes() -> MemoryState {
    state([
        numa((GB, 512 * MB), GB, &[0], 1),
        numa((512 * MB, 512 * MB), GB, &[1], 0),
        numa((512 * MB, 512 * MB), GB, &[2], 0),
    ])
}

fn a_group_of_two() -> MemoryState {
    state([
        numa((512 * MB, 512 * MB), GB, &[0], 0),
        numa((1536 * MB, 512 * MB), GB, &[1, 2], 1),
        numa((1536 * MB, 512 * MB), GB, &[1, 2], 1),
    ])
}

/// TestStaticPolicyAllocate: the five ways to fail; the last is a node that is in use by itself.
#[rstest]
#[case(state([numa((1536 * MB, 512 * MB), 0, &[0], 2)]), hint(None, false), MemoryRefusal::NoNodes)]
#[case(three_nodes(), hint(None, true), MemoryRefusal::NotPreferred)]
#[case(a_group_of_two(), hint(Some(0b001), false), MemoryRefusal::NoExtension)]
#[case(three_nodes(), hint(Some(0b010), true), MemoryRefusal::ExtensionNotPreferred)]
#[case(three_nodes(), hint(Some(0b011), true), MemoryRefusal::OtherGroup)]
fn where_the_nodes_do_not_do_it_is_rejected(
    #[case] mut state: MemoryState,
    #[case] hint: Merged,
    #[case] expected: MemoryRefusal,
) {
    let before = state.clone();
    assert_eq!(allocate(&mut state, &plain(), hint), Err(expected));
    assert_eq!(state, before);
}

/// TestStaticPolicyAllocate: several nodes become a group; memory is taken from the first on.
#[test]
fn memory_of_several_nodes_makes_them_a_group() {
    let fresh = || (0..4).map(|id| numa((512 * MB, 512 * MB), GB, &[id], 0));
    let mut after = state(fresh());
    let blocks = allocate(&mut after, &plain(), hint(Some(0b0011), true))
        .unwrap()
        .unwrap();
    assert_eq!(blocks, [block(&[0, 1], PAGES, GB), block(&[0, 1], "memory", GB)]);
    assert_eq!(after.nodes[&0], numa((512 * MB, 0), 0, &[0, 1], 2));
    assert_eq!(after.nodes[&1], numa((512 * MB, 0), GB, &[0, 1], 2));
    assert_eq!(after.nodes[&3], numa((512 * MB, 512 * MB), GB, &[3], 0));

    // TestStaticPolicyRemoveContainer: the group is dissolved with its last block.
    StaticPolicy::new(false).remove(&mut after, "pod1", "container1");
    assert_eq!(after, state(fresh()));
}

/// A hint that has too little is extended to a preferred set around it.
#[test]
fn a_hint_is_extended_to_the_nodes_that_have_the_memory() {
    let mut state = state((0..4).map(|id| numa((512 * MB, 512 * MB), GB, &[id], 0)));
    let blocks = allocate(&mut state, &plain(), hint(Some(0b0100), true))
        .unwrap()
        .unwrap();
    assert_eq!(blocks[1], block(&[0, 2], "memory", GB));
}

/// TestStaticPolicyAllocateWithInitContainers: init containers of 7 and 4 GiB, then containers of 4 and 3, and of 5 and 2.
#[rstest]
#[case(7680 * MB, 8 * GB, [4 * GB, 3 * GB])]
#[case(10_240 * MB, 10 * GB, [5 * GB, 2 * GB])]
fn memory_of_init_containers_is_used_again(#[case] memory: u64, #[case] pages: u64, #[case] apps: [u64; 2]) {
    let pod = pod(&[
        container("init1", ContainerKind::Init, 7 * GB, 7 * GB),
        container("init2", ContainerKind::Init, 4 * GB, 4 * GB),
        container("container1", ContainerKind::App, apps[0], apps[0]),
        container("container2", ContainerKind::App, apps[1], apps[1]),
    ]);
    let mut state = state([numa((memory, memory), pages, &[0], 0)]);
    let mut policy = StaticPolicy::new(false);
    for container in &pod.containers {
        policy.allocate(&mut state, &pod, container, hint(None, false)).unwrap();
    }
    assert_eq!(free(&state, 0, "memory"), memory - 7 * GB);
    assert_eq!(free(&state, 0, PAGES), pages - 7 * GB);
    assert_eq!(state.nodes[&0].assignments, 8);
    let size = |name| {
        state
            .entry("pod1", name)
            .unwrap()
            .iter()
            .map(|block| block.size)
            .collect::<Vec<_>>()
    };
    assert_eq!([size("init1"), size("init2")], [[0, 0], [0, 0]]);
    assert_eq!([size("container1"), size("container2")], apps.map(|size| [size, size]));
}

/// Only what an init container had is used again, not what a sidecar has.
#[test]
fn memory_of_sidecars_is_not_used_again() {
    let pod = pod(&[
        container("side", ContainerKind::Sidecar, 2 * GB, 0),
        container("container1", ContainerKind::App, 2 * GB, 0),
    ]);
    let mut state = state([numa((8 * GB, 8 * GB), GB, &[0], 0)]);
    let mut policy = StaticPolicy::new(false);
    for container in &pod.containers {
        policy.allocate(&mut state, &pod, container, hint(None, false)).unwrap();
    }
    assert_eq!(free(&state, 0, "memory"), 4 * GB);
}

fn hints(state: &MemoryState, pod: &Pod) -> BTreeMap<String, HintList> {
    let hints = StaticPolicy::new(false).hints(state, pod, Some(&pod.containers[0]), None);
    hints.unwrap().into_iter().collect()
}

fn for_both(masks: &[(u64, bool)]) -> BTreeMap<String, HintList> {
    let hints = testing::hints(masks);
    [(PAGES.to_owned(), hints.clone()), ("memory".to_owned(), hints)].into()
}

/// TestStaticPolicyGetTopologyHints: from the entry, where there is one that fits; else nothing.
#[rstest]
#[case(vec![block(&[0], PAGES, GB), block(&[0], "memory", GB)], for_both(&[(0b1, true)]))]
#[case(vec![block(&[0], "memory", GB)], BTreeMap::new())]
#[case(vec![block(&[0], "hugepages-2Mi", GB), block(&[0], "memory", GB)], BTreeMap::new())]
#[case(vec![block(&[0], PAGES, GB), block(&[0], "memory", 512 * MB)], BTreeMap::new())]
fn an_entry_gives_its_own_hint(#[case] blocks: Vec<MemoryBlock>, #[case] expected: BTreeMap<String, HintList>) {
    let mut state = state([numa((1536 * MB, 512 * MB), 0, &[0], 2)]);
    state.set("pod1", "container1", blocks);
    assert_eq!(hints(&state, &plain()), expected);
}

/// TestStaticPolicyGetTopologyHints: nodes of another group are left out.
#[test]
fn a_group_in_use_is_none_of_the_hints() {
    let state = state([
        numa((1536 * MB, 0), 0, &[0, 1], 2),
        numa((1536 * MB, GB), 0, &[0, 1], 2),
        numa((1536 * MB, 1536 * MB), GB, &[2], 0),
        numa((1536 * MB, 1536 * MB), GB, &[3], 0),
    ]);
    assert_eq!(
        hints(&state, &plain()),
        for_both(&[(0b0100, true), (0b1000, true), (0b1100, false)])
    );
}

/// TestStaticPolicyGetTopologyHints: the group that is there is a hint, and not preferred where one node would do.
#[test]
fn the_same_group_is_a_hint_that_is_not_preferred() {
    let state = state([
        numa((1536 * MB, 0), 0, &[0, 1], 2),
        numa((1536 * MB, GB), GB, &[0, 1], 2),
    ]);
    assert_eq!(hints(&state, &plain()), for_both(&[(0b11, false)]));
}

/// Rule 13 of the merge's vectors: if nothing fits, that is no preference.
#[test]
fn no_nodes_at_all_are_no_preference() {
    let state = state([numa((GB, 0), GB, &[0], 1)]);
    assert_eq!(hints(&state, &plain()), BTreeMap::new());
}

/// `calculateHints` looks the kind up at every NUMA node.
#[test]
fn a_size_of_huge_pages_that_a_node_does_not_have_is_a_crash() {
    let mut state = state([numa((4 * GB, 4 * GB), GB, &[0], 0), numa((4 * GB, 4 * GB), GB, &[1], 0)]);
    state.nodes.get_mut(&1).unwrap().tables.remove(PAGES);
    let refused = allocate(&mut state, &plain(), hint(None, false)).unwrap_err();
    assert_eq!(refused.reason(), None);
    let (node, kind) = (1, PAGES.to_owned());
    assert_eq!(refused, MemoryRefusal::WouldCrash { node, kind });
}

/// `getPodRequestedResources`: what containers need at the same time, of the kinds that the pod's own containers request.
#[test]
fn a_pod_needs_what_its_containers_need_together() {
    let pod = pod(&[
        container("side", ContainerKind::Sidecar, GB, 0),
        container("init", ContainerKind::Init, 4 * GB, 0),
        container("one", ContainerKind::App, GB, 0),
        container("two", ContainerKind::App, 2 * GB, 0),
    ]);
    assert_eq!(requests::of_pod(&pod, false)["memory"], 5 * GB);
    let mut only_init = pod.clone();
    for container in &mut only_init.containers[2..] {
        container.resources.requests.huge_pages.clear();
    }
    assert_eq!(
        requests::of_pod(&only_init, false).into_keys().collect::<Vec<_>>(),
        ["memory"]
    );
}

fn with_own(memory: u64, containers: &[Container]) -> Pod {
    Pod {
        resources: Some(Resources::guaranteed(Amounts {
            huge_pages: BTreeMap::new(),
            ..amounts(memory, 0)
        })),
        ..pod(containers)
    }
}

fn sharing(name: &str, kind: ContainerKind) -> Container {
    Container::new(name, kind, Resources::default())
}

/// `validatePodScopeResources`
#[rstest]
#[case(&[container("vm", ContainerKind::App, 4 * GB, 0), sharing("logs", ContainerKind::App)], MemoryRefusal::EmptyPodSharedPool("memory".into()))]
#[case(&[container("mesh", ContainerKind::Sidecar, 4 * GB, 0), sharing("fetch", ContainerKind::Init)], MemoryRefusal::EmptyPoolOfInitContainers("memory".into()))]
#[case(
    &[container("mesh", ContainerKind::Sidecar, GB, 0), container("fetch", ContainerKind::Init, 4 * GB, 0)],
    MemoryRefusal::InitContainerTooLarge { kind: "memory".into(), requested: 4 * GB, available: 3 * GB }
)]
fn a_pod_that_leaves_a_container_without_memory_is_rejected(
    #[case] containers: &[Container],
    #[case] expected: MemoryRefusal,
) {
    let mut state = state([numa((8 * GB, 8 * GB), GB, &[0], 0)]);
    let pod = with_own(4 * GB, containers);
    let mut policy = StaticPolicy::new(true);
    let hints = policy.hints(&state, &pod, None, None).unwrap();
    assert_eq!(hints, [("memory".to_owned(), Some(Vec::new()))]);
    let refused = policy.allocate_pod(&mut state, &pod, hint(None, true)).unwrap_err();
    assert_eq!(refused.reason(), Some("EmptyPodSharedPoolError"));
    assert_eq!(refused, expected);
}

#[test]
fn without_the_feature_gate_a_pod_with_its_own_resources_has_no_memory_here() {
    let mut state = state([numa((8 * GB, 8 * GB), GB, &[0], 0)]);
    let pod = with_own(4 * GB, &[container("vm", ContainerKind::App, 2 * GB, 0)]);
    assert_eq!(hints(&state, &pod), BTreeMap::new());
    assert_eq!(allocate(&mut state, &pod, hint(None, false)), Ok(None));
}

/// The last container's removal gives the pod's memory back.
#[test]
fn a_divided_pods_memory_goes_as_a_whole() {
    let fresh = state([numa((8 * GB, 8 * GB), GB, &[0], 0)]);
    let mut state = fresh.clone();
    let pod = with_own(
        4 * GB,
        &[
            container("vm", ContainerKind::App, 2 * GB, 0),
            sharing("logs", ContainerKind::App),
        ],
    );
    let mut policy = StaticPolicy::new(true);
    assert_eq!(policy.allocate_pod(&mut state, &pod, hint(None, true)), Ok(true));
    assert_eq!(free(&state, 0, "memory"), 4 * GB);
    assert_eq!(state.entry("pod1", "logs"), Some(&[block(&[0], "memory", 2 * GB)][..]));
    policy.remove(&mut state, "pod1", "vm");
    assert_eq!(free(&state, 0, "memory"), 4 * GB);
    policy.remove(&mut state, "pod1", "logs");
    assert_eq!(state, fresh);
}
