use std::fs;

use stelia_kubelet::devices::DeviceEntry;
use stelia_kubelet::memory::{MemorySchema, MemoryTable, NumaNodeState};

use super::*;
use crate::report::testing::{facts, numa};
use crate::report::{ApiVersion, report};

const A: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";
const B: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";
const GI: u64 = 1 << 30;

fn pod(uid: &str) -> PodUid {
    PodUid::parse(uid).unwrap()
}

fn living(uids: &[&str]) -> BTreeSet<PodUid> {
    uids.iter().map(|uid| pod(uid)).collect()
}

fn block(nodes: &[u32], kind: &str, size: u64) -> MemoryBlock {
    MemoryBlock {
        nodes: nodes.to_vec(),
        kind: kind.to_owned(),
        size,
    }
}

fn table(total: u64, system_reserved: u64, allocatable: u64, reserved: u64) -> MemoryTable {
    MemoryTable {
        total,
        system_reserved,
        allocatable,
        reserved,
        free: allocatable - reserved,
    }
}

/// Two nodes of 16 GiB with 2 GiB of huge pages; on the first 1 GiB is reserved, pod A has 4 GiB and 512 MiB of pages there,
/// pod B 2 GiB, and both nodes together 1 GiB.
fn state() -> MemoryManagerState {
    let node = |memory: MemoryTable, pages: MemoryTable| NumaNodeState {
        assignments: 1,
        cells: vec![0],
        tables: BTreeMap::from([("memory".to_owned(), memory), ("hugepages-2Mi".to_owned(), pages)]),
    };
    let of = |blocks: Vec<MemoryBlock>| BTreeMap::from([("vm".to_owned(), blocks)]);
    MemoryManagerState {
        schema: MemorySchema::V1,
        policy: "Static".to_owned(),
        nodes: BTreeMap::from([
            (
                0,
                node(
                    table(16 * GI, GI, 13 * GI, 7 * GI),
                    table(2 * GI, GI / 2, 3 * GI / 2, GI / 2),
                ),
            ),
            (1, node(table(16 * GI, 0, 14 * GI, 0), table(2 * GI, 0, 2 * GI, 0))),
        ]),
        entries: BTreeMap::from([
            (
                pod(A),
                of(vec![
                    block(&[0], "memory", 4 * GI),
                    block(&[0], "hugepages-2Mi", GI / 2),
                ]),
            ),
            (
                pod(B),
                of(vec![block(&[0], "memory", 2 * GI), block(&[0, 1], "memory", GI)]),
            ),
        ]),
        pod_entries: BTreeMap::new(),
    }
}

/// A resource of the first zone after the accounting: capacity, allocatable, available.
fn reported(state: &MemoryManagerState, living: LivePods<'_>, name: &str) -> [String; 3] {
    let mut facts = facts();
    memory(&mut facts.numa, state, living);
    let object = report(&facts, ApiVersion::V1Alpha1);
    let found = object.zones[0].resources.iter().find(|one| one.name == name).unwrap();
    [&found.capacity, found.allocatable(), &found.available].map(str::to_owned)
}

#[test]
fn what_the_memory_manager_assigned_is_not_available() {
    let all = living(&[A, B]);
    assert_eq!(reported(&state(), Some(&all), "memory"), ["16Gi", "13Gi", "6Gi"]);
    assert_eq!(reported(&state(), None, "memory"), ["16Gi", "13Gi", "6Gi"]);
    assert_eq!(reported(&state(), None, "hugepages-2Mi"), ["2Gi", "1536Mi", "1Gi"]);
    // What the file does not have stays as the kernel says.
    assert_eq!(reported(&state(), None, "hugepages-1Gi"), ["0", "0", "0"]);
}

#[test]
fn where_nobody_assigns_memory_all_that_is_allocatable_is_available() {
    let state = MemoryManagerState {
        policy: "None".to_owned(),
        ..state()
    };
    assert_eq!(reported(&state, None, "memory"), ["16Gi", "14Gi", "14Gi"]);
    assert_eq!(reported(&state, None, "hugepages-2Mi"), ["2Gi", "2Gi", "1Gi"]);
}

#[test]
fn a_pod_that_is_gone_has_no_memory_but_a_part_that_cannot_be_placed() {
    assert_eq!(
        reported(&state(), Some(&living(&[A])), "memory"),
        ["16Gi", "13Gi", "8Gi"]
    );
    assert_eq!(
        reported(&state(), Some(&living(&[])), "memory"),
        ["16Gi", "13Gi", "12Gi"]
    );
    assert_eq!(
        reported(&state(), Some(&living(&[])), "hugepages-2Mi"),
        ["2Gi", "1536Mi", "1536Mi"]
    );
}

#[test]
fn the_containers_of_a_pod_with_memory_of_its_own_count_once() {
    let mut state = state();
    state.pod_entries = BTreeMap::from([(pod(A), vec![block(&[0], "memory", 4 * GI)])]);
    assert_eq!(
        reported(&state, Some(&living(&[B])), "memory"),
        ["16Gi", "13Gi", "10Gi"]
    );
}

#[test]
fn a_file_that_contradicts_itself_gives_nothing_away() {
    let mut state = state();
    let huge = table(u64::MAX, 0, u64::MAX, u64::MAX);
    for node in state.nodes.values_mut() {
        node.tables = ["memory", "hugepages-2Mi"].map(|kind| (kind.to_owned(), huge)).into();
    }
    assert_eq!(reported(&state, None, "memory")[2], "0");
    assert_eq!(reported(&state, None, "hugepages-2Mi"), ["2Gi", "2Gi", "0"]);
    let mut other = numa(2);
    memory(
        &mut other,
        &MemoryManagerState {
            nodes: BTreeMap::new(),
            ..state
        },
        None,
    );
    assert_eq!(other, numa(2));
}

/// Pod A has the device 1 of node 0; pod B had 3 of node 1.
fn nics() -> DeviceManagerState {
    let entry = |uid, node, id: &str| DeviceEntry {
        pod: pod(uid),
        container: "vm".to_owned(),
        resource: "example.com/nic".to_owned(),
        devices: BTreeMap::from([(node, BTreeSet::from([id.to_owned()]))]),
        files: BTreeSet::new(),
    };
    DeviceManagerState {
        entries: vec![entry(A, Some(0), "1"), entry(B, Some(1), "3")],
        registered: BTreeMap::from([("example.com/nic".to_owned(), ["1", "2", "3"].map(str::to_owned).into())]),
    }
}

fn placed(state: &DeviceManagerState, uids: &[&str], place: impl Fn(&str) -> Option<u32>) -> Vec<(u32, usize, usize)> {
    let by_id = |id: &str| place(id).map_or(Place::Unknown, |node| Place::Nodes([node].into()));
    let found = devices(state, Some(&living(uids)), |_| by_id);
    let nodes = found.into_iter().map(|(node, of)| (node, of["example.com/nic"]));
    nodes.map(|(node, devices)| (node, devices.all, devices.free)).collect()
}

#[test]
fn devices_are_counted_where_they_are() {
    // The plugin's own word goes before the place by the id.
    assert_eq!(placed(&nics(), &[A, B], |_| Some(0)), [(0, 2, 1), (1, 1, 0)]);
    assert_eq!(placed(&nics(), &[A], |_| Some(0)), [(0, 2, 1), (1, 1, 1)]);
}

#[test]
fn a_resource_is_left_out_unless_the_place_of_each_device_is_known() {
    assert_eq!(placed(&nics(), &[A, B], |_| None), []);
    let mut nowhere = nics();
    nowhere.entries[0].devices = BTreeMap::from([(None, BTreeSet::from(["1".to_owned()]))]);
    assert_eq!(placed(&nowhere, &[A, B], |_| Some(0)), []);
    let mut at_both = nics();
    at_both.entries[0]
        .devices
        .insert(Some(1), BTreeSet::from(["1".to_owned()]));
    assert_eq!(placed(&at_both, &[A, B], |_| Some(0)), []);
    // One that is not healthy any more does not count at all.
    let mut without = nics();
    without.registered.get_mut("example.com/nic").unwrap().remove("2");
    assert_eq!(placed(&without, &[A, B], |_| None), [(0, 1, 0), (1, 1, 0)]);
}

fn node_by_id(places: &DevicePlaces, id: &str) -> Option<u32> {
    places.by_id(id).single()
}

#[test]
fn the_id_of_a_pci_device_tells_its_place() {
    let sys = tempfile::tempdir().unwrap();
    let write = |id: &str, text: &str| {
        let folder = sys.path().join("sys/bus/pci/devices").join(id);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("numa_node"), text).unwrap();
    };
    write("0000:3b:02.1", "1\n");
    write("0000:3b:02.2", "-1\n");
    let places = DevicePlaces::new(sys.path(), &nics(), "example.com/nic");
    assert_eq!(node_by_id(&places, "0000:3b:02.1"), Some(1));
    assert_eq!(node_by_id(&places, "0000:3B:02.1"), Some(1));
    for other in [
        "0000:3b:02.2",
        "0000:3b:02.3",
        "../../../etc",
        "GPU-1",
        "",
        "0000:3b:02.1/",
    ] {
        assert_eq!(node_by_id(&places, other), None, "{other}");
    }
}

/// A resource with these ids, of which a container may have one with these files.
fn groups(ids: &[&str], given: Option<(&str, &[&str])>) -> DeviceManagerState {
    let mut state = nics();
    state.registered = BTreeMap::from([(
        "example.com/nic".to_owned(),
        ids.iter().map(|id| (*id).to_owned()).collect(),
    )]);
    state.entries.truncate(1);
    match given {
        Some((id, files)) => {
            state.entries[0].devices = BTreeMap::from([(None, BTreeSet::from([id.to_owned()]))]);
            state.entries[0].files = files.iter().map(|file| (*file).to_owned()).collect();
        }
        None => state.entries.clear(),
    }
    state
}

#[test]
fn the_number_of_an_iommu_group_tells_the_place_of_its_devices() {
    let sys = tempfile::tempdir().unwrap();
    let add = |group: &str, id: &str, driver: &str, node: &str| {
        let device = sys.path().join("sys/bus/pci/devices").join(id);
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("numa_node"), node).unwrap();
        let driver = sys.path().join("sys/bus/pci/drivers").join(driver);
        std::os::unix::fs::symlink(driver, device.join("driver")).unwrap();
        fs::create_dir_all(
            sys.path()
                .join("sys/kernel/iommu_groups")
                .join(group)
                .join("devices")
                .join(id),
        )
        .unwrap();
    };
    add("41", "0000:40:00.0", "pcieport", "0\n");
    add("41", "0000:41:00.0", "vfio-pci", "1\n");
    add("41", "0000:41:00.1", "vfio-pci", "1\n");
    add("42", "0000:42:00.0", "nvidia", "1\n");
    add("43", "0000:43:00.0", "vfio-pci", "-1\n");
    add("44", "0000:44:00.0", "vfio-pci", "0\n");
    add("44", "0000:44:00.1", "vfio-pci", "1\n");
    let shown = groups(&["41", "45"], Some(("41", &["/dev/vfio/vfio", "/dev/vfio/41"])));
    let places = DevicePlaces::new(sys.path(), &shown, "example.com/nic");
    assert_eq!(node_by_id(&places, "41"), Some(1));
    for other in ["041", "42", "43", "44", "45"] {
        assert_eq!(node_by_id(&places, other), None, "{other}");
    }

    // Numbers of a plugin's own, of which some are groups by chance.
    let node = |state: &DeviceManagerState| node_by_id(&DevicePlaces::new(sys.path(), state, "example.com/nic"), "41");
    assert_eq!(node(&groups(&["41", "43"], None)), Some(1));
    assert_eq!(node(&groups(&["41", "42"], None)), None, "the host's driver has 42");
    assert_eq!(node(&groups(&["41", "45"], None)), None, "there is no group 45");
    assert_eq!(node(&groups(&["41", "43"], Some(("41", &["/dev/fuse"])))), None);
    assert_eq!(
        node(&groups(&["41", "43"], Some(("41", &[])))),
        Some(1),
        "its plugin gave it no files"
    );
    let by_device = groups(&["41", "43"], Some(("41", &["/dev/vfio/devices/vfio0", "/dev/iommu"])));
    assert_eq!(node(&by_device), Some(1), "iommufd");

    // A plugin's own number is the group's by chance.
    let other = groups(&["41", "43"], Some(("41", &["/dev/vfio/vfio", "/dev/vfio/17"])));
    assert_eq!(node(&other), None, "41 is not the group that it gave");
    let mut two = groups(
        &["41", "43"],
        Some(("41", &["/dev/vfio/vfio", "/dev/vfio/41", "/dev/vfio/17"])),
    );
    two.entries[0].devices.insert(Some(0), BTreeSet::from(["2".to_owned()]));
    assert_eq!(node(&two), None, "2 has no file");
    two.entries[0].files.insert("/dev/vfio/2".to_owned());
    assert_eq!(node(&two), Some(1), "each id has its file");
    for files in [["/dev/vfio/vfio", "/dev/vfio/17"], ["/dev/fuse", "/dev/null"]] {
        let mut doubtful = shown.clone();
        doubtful.entries.extend(groups(&[], Some(("45", &files))).entries);
        assert_eq!(node(&doubtful), None, "another container has {files:?}");
    }
}
