use std::collections::{BTreeMap, BTreeSet};

use rstest::rstest;
use stelia_kubelet::DeviceManagerState;

use super::*;
use crate::merge::{HintList, Merged, NodeMask};
use crate::pod::{Amounts, Container, ContainerKind, Pod, Resources};
use crate::testing;

const GPU: &str = "nvidia.com/gpu";

/// `gpu0`, `gpu1`, … at these NUMA nodes.
fn state(nodes: &[&[u32]]) -> DeviceState {
    let device = |(number, nodes): (usize, &&[u32])| {
        let nodes = nodes.iter().copied().collect();
        (format!("gpu{number}"), Device { nodes, healthy: true })
    };
    DeviceState {
        resources: [(GPU.to_owned(), nodes.iter().enumerate().map(device).collect())].into(),
        ..DeviceState::default()
    }
}

/// Other containers have these.
fn used(mut state: DeviceState, ids: &[&str]) -> DeviceState {
    let given = [(GPU.to_owned(), set(ids))].into();
    state
        .entries
        .insert("other".to_owned(), [("c".to_owned(), given)].into());
    state
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn container(name: &str, kind: ContainerKind, count: u64) -> Container {
    let amounts = Amounts {
        devices: [(GPU.to_owned(), count)].into(),
        ..Amounts::default()
    };
    Container::new(name, kind, Resources::guaranteed(amounts))
}

fn pod(containers: &[Container]) -> Pod {
    testing::pod("pod", containers)
}

fn hint(bits: u64) -> Merged {
    testing::merged(Some(NodeMask::from_bits(bits)), true)
}

const NO_HINT: Merged = testing::merged(None, false);
const FOUR_NODES: NodeMask = NodeMask::from_bits(0b1111);

fn hints(state: &DeviceState, count: u64) -> HintList {
    let pod = pod(&[container("vm", ContainerKind::App, count)]);
    let mut hints = DeviceManager::default()
        .hints(state, FOUR_NODES, &pod, Some(&pod.containers[0]))
        .unwrap();
    assert_eq!(hints.len(), 1);
    hints.remove(0).1
}

/// `generateDeviceTopologyHints`: over the nodes that have such devices (1.36); preferred is what all devices, used ones
/// too, would allow.
#[rstest]
#[case(state(&[&[0], &[2]]), 1, testing::hints(&[(0b001, true), (0b100, true), (0b101, false)]))]
#[case(used(state(&[&[0], &[2]]), &["gpu0"]), 1, testing::hints(&[(0b100, true), (0b101, false)]))]
#[case(used(state(&[&[0], &[0], &[2]]), &["gpu0"]), 2, testing::hints(&[(0b101, false)]))]
#[case(state(&[&[0, 1], &[1]]), 2, testing::hints(&[(0b10, true), (0b11, false)]))]
#[case(used(state(&[&[0], &[2]]), &["gpu0"]), 2, Some(Vec::new()))]
#[case(state(&[&[], &[]]), 1, None)]
#[case(state(&[&[], &[0]]), 2, Some(Vec::new()))]
fn hints_are_the_node_sets_that_have_enough(
    #[case] state: DeviceState,
    #[case] count: u64,
    #[case] expected: HintList,
) {
    assert_eq!(hints(&state, count), expected);
}

/// A device of a node that the machine does not have is never a hint.
#[test]
fn nodes_that_are_not_there_are_no_hint() {
    assert_eq!(hints(&state(&[&[0], &[7]]), 1), testing::hints(&[(0b1, true)]));
}

/// `GetTopologyHints`: allocated devices give their own hints; a request for another number gives none.
#[test]
fn devices_that_a_container_has_give_their_own_hints() {
    let mut state = state(&[&[0], &[2]]);
    let given = [(GPU.to_owned(), set(&["gpu1"]))].into();
    state
        .entries
        .insert("pod".to_owned(), [("vm".to_owned(), given)].into());
    assert_eq!(hints(&state, 1), testing::hints(&[(0b100, true), (0b101, false)]));
    assert_eq!(hints(&state, 2), Some(Vec::new()));
}

#[test]
fn a_resource_of_no_plugin_is_somebody_elses() {
    let mut state = DeviceState::default();
    let pod = pod(&[container("vm", ContainerKind::App, 1)]);
    let mut manager = DeviceManager::default();
    assert_eq!(
        manager.hints(&state, FOUR_NODES, &pod, Some(&pod.containers[0])),
        Ok(Vec::new())
    );
    assert_eq!(
        manager.allocate(&mut state, "pod", &pod.containers[0], NO_HINT),
        Ok(BTreeMap::new())
    );
}

/// `getPodDeviceRequest`: sidecars and containers together, or an init container beside the sidecars before it.
#[test]
fn a_pods_hints_are_for_what_it_needs_together() {
    let state = state(&[&[0], &[0], &[1], &[1], &[1]]);
    let pod = pod(&[
        container("side", ContainerKind::Sidecar, 1),
        container("init", ContainerKind::Init, 2),
        container("vm", ContainerKind::App, 1),
    ]);
    let hints = DeviceManager::default().hints(&state, FOUR_NODES, &pod, None).unwrap();
    assert_eq!(
        hints,
        [(GPU.to_owned(), testing::hints(&[(0b10, true), (0b11, false)]))]
    );
}

/// Every device of the next test.
const ALL: &[&str] = &["gpu0", "gpu1", "gpu2", "gpu3"];

fn chosen(state: &mut DeviceState, count: u64, hint: Merged) -> Result<Chosen, DeviceRefusal> {
    let container = container("vm", ContainerKind::App, count);
    let all = DeviceManager::default().allocate(state, "pod", &container, hint);
    all.map(|mut all| all.remove(GPU).unwrap_or_default())
        .map_err(|(_, refusal)| refusal)
}

/// `devicesToAllocate`: devices at the hint's nodes, then at others, then without nodes. Where kubelet has a choice within
/// one of these, it is not certain.
#[rstest]
#[case(hint(0b10), 1, &["gpu1"], &["gpu1", "gpu2"])]
#[case(hint(0b10), 2, &["gpu1", "gpu2"], &["gpu1", "gpu2"])]
#[case(hint(0b01), 1, &["gpu0"], &["gpu0"])]
#[case(hint(0b01), 2, &["gpu0", "gpu1"], ALL)]
#[case(hint(0b01), 3, &["gpu0", "gpu1", "gpu2"], ALL)]
#[case(hint(0b01), 4, ALL, ALL)]
#[case(NO_HINT, 2, &["gpu0", "gpu1"], ALL)]
fn devices_near_the_hint_come_first(
    #[case] hint: Merged,
    #[case] count: u64,
    #[case] ids: &[&str],
    #[case] among: &[&str],
) {
    let mut state = state(&[&[0], &[1], &[1], &[]]);
    let (ids, among) = (set(ids), set(among));
    assert_eq!(
        chosen(&mut state, count, hint),
        Ok(Chosen {
            certain: ids == among,
            ids: ids.clone(),
            among,
        })
    );
    assert_eq!(state.entry("pod", "vm", GPU), Some(&ids));
}

#[test]
fn too_few_devices_are_rejected_with_kubelets_words() {
    let mut busy = used(state(&[&[0], &[1]]), &["gpu0"]);
    assert_eq!(
        chosen(&mut busy, 2, NO_HINT).unwrap_err().to_string(),
        "requested number of devices unavailable for nvidia.com/gpu. Requested: 2, Available: 1"
    );
    let mut gone = state(&[&[0]]);
    gone.resources.get_mut(GPU).unwrap().get_mut("gpu0").unwrap().healthy = false;
    assert_eq!(
        chosen(&mut gone, 1, NO_HINT),
        Err(DeviceRefusal::NoneHealthy(GPU.to_owned()))
    );
    let mut unregistered = used(DeviceState::default(), &["gpu0"]);
    assert_eq!(
        chosen(&mut unregistered, 1, NO_HINT),
        Err(DeviceRefusal::Unregistered(GPU.to_owned()))
    );
}

/// `Allocate`: devices of init containers are used again, those of sidecars are not.
#[test]
fn devices_of_init_containers_are_used_again() {
    let mut state = state(&[&[0], &[1], &[1]]);
    let mut manager = DeviceManager::default();
    let mut give = |container: &Container, hint| {
        let mut all = manager.allocate(&mut state, "pod", container, hint).unwrap();
        all.remove(GPU).unwrap()
    };
    let init = give(&container("init", ContainerKind::Init, 1), hint(0b01));
    let side = give(&container("side", ContainerKind::Sidecar, 1), hint(0b10));
    let vm = give(&container("vm", ContainerKind::App, 2), hint(0b10));
    assert_eq!((init.ids, side.ids), (set(&["gpu0"]), set(&["gpu0"])));
    assert_eq!((vm.ids, vm.certain), (set(&["gpu1", "gpu2"]), true));
}

/// A set of nodes must include the devices that can be reused.
#[test]
fn devices_that_can_be_used_again_bind_the_hints() {
    let mut state = state(&[&[0], &[1], &[1]]);
    let pod = pod(&[
        container("init", ContainerKind::Init, 1),
        container("vm", ContainerKind::App, 1),
    ]);
    let mut manager = DeviceManager::default();
    manager
        .allocate(&mut state, "pod", &pod.containers[0], hint(0b01))
        .unwrap();
    let hints = manager
        .hints(&state, FOUR_NODES, &pod, Some(&pod.containers[1]))
        .unwrap();
    assert_eq!(hints[0].1, testing::hints(&[(0b01, true), (0b11, false)]));
}

#[test]
fn a_genuine_checkpoint_becomes_a_state() {
    let file = "../../tests/data/kubelet-checkpoints/k136-gate-off/08-device/kubelet_internal_checkpoint";
    let written = DeviceManagerState::parse(&std::fs::read(file).unwrap()).unwrap();
    let state = DeviceState::from(&written);
    assert_eq!(state.available(GPU), ["GPU-9d0e"].into());
    assert_eq!(state.resources[GPU]["GPU-1f3a"].nodes, [0].into());
    assert_eq!(state.resources[GPU]["GPU-9d0e"].nodes, [].into());
    assert_eq!(
        state.entry("ce32ebd2-f905-449e-b74b-4231a84b88e1", "instance", GPU),
        Some(&set(&["GPU-1f3a", "GPU-2b4c"]))
    );
}
