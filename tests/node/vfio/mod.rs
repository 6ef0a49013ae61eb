//! Passed-through devices, on a node with an emulated IOMMU (`node run --vfio`): a guest drives a network card and a disk of the node by VFIO, in a pod
//! that has them of a device plugin. Where their NUMA nodes, memory and interrupts are is what the kernel says.

pub mod devices;
pub mod guest;
pub mod interrupts;
mod unplug;

use serde_json::Value;

use self::devices::{CARD, DISK, Given, Kind, Plugins};
use self::guest::{MEMORY_MIB, guest_memory, held, migrate_pages, qemu_pid, start, wait_working};
use crate::support::*;

/// A test with the plugins' devices: what it leaves is taken away however it ends.
pub fn with_devices(body: impl FnOnce()) {
    with_plugins(|| Plugins::start(Given::files_of_group), body);
}

pub fn with_plugins(start: fn() -> Plugins, body: impl FnOnce()) {
    on_node_undoing(device_plugin::stop, || {
        let _plugins = start();
        body();
    });
}

/// What `show` says of the instance's NUMA nodes.
pub fn locality(pod: &Pod) -> Value {
    json(&run(&["steliactl", "--json", "show", "-l", &pod.uid]))["locality"].clone()
}

/// The devices that `show` names, each with its NUMA node and whether that is the VM's.
pub fn shown_devices(locality: &Value) -> Vec<(String, u64, bool)> {
    let list = |name: &str| locality[name].as_array().expect("a list").iter();
    let of_kubelet = list("devices").map(|one| (one["name"].as_str().map(str::to_owned), one));
    let of_vfio = list("pci").map(|one| (one["address"].as_str().map(|address| format!("VFIO {address}")), one));
    let mut devices: Vec<_> = of_kubelet
        .chain(of_vfio)
        .filter_map(|(name, one)| {
            let own = list("nodes").any(|node| *node == one["node"]);
            Some((name?, one["node"].as_u64()?, own))
        })
        .collect();
    devices.sort();
    devices
}

/// `show` names these devices, each by kubelet's resource and by its address, on NUMA node 0, which is the VM's.
pub fn assert_shown_on_node_0(locality: &Value, given: &[Given]) {
    let names = given.iter().flat_map(|one| [one.kind.resource.to_owned(), one.shown()]);
    let mut expected: Vec<_> = names.map(|name| (name, 0, true)).collect();
    expected.sort();
    assert_eq!(shown_devices(locality), expected, "{locality:#}");
}

/// The bytes of a VM's memory without page cache, and those on NUMA nodes without CPUs of the VM's.
pub fn held_and_remote(locality: &Value) -> Option<(u64, u64)> {
    let nodes = locality["nodes"].as_array()?;
    let mut sums = (0, 0);
    for (node, memory) in locality["memory"].as_object()? {
        let kinds = ["anon", "shmem", "huge"];
        let held: u64 = kinds.iter().filter_map(|kind| memory[*kind].as_u64()).sum();
        let is_own = nodes.contains(&node.parse::<u64>().ok()?.into());
        sums = (sums.0 + held, if is_own { sums.1 } else { sums.1 + held });
    }
    Some(sums)
}

/// Once the daemon has looked since the VM took its memory, of which it holds so much.
pub fn settled_locality(pod: &Pod, at_least_mib: u64) -> Value {
    wait_until(&format!("the memory of {} is known", pod.name), || {
        let locality = locality(pod);
        let (held, _) = held_and_remote(&locality)?;
        (held >= at_least_mib << 20).then_some(locality)
    })
}

#[test]
fn a_vm_with_its_devices_on_its_own_node_has_its_memory_pinned_there() {
    with_devices(|| {
        let given = [Given::at(CARD, 0), Given::at(DISK, 0)];
        let pod = start("near", "2-3", &given, "");
        wait_working(&pod, &given);
        assert_isolated(&pod, 2);

        let pid = qemu_pid(&pod);
        // What VFIO pinned is counted as locked.
        assert!(held(pid, "VmLck") >= MEMORY_MIB << 20);
        let placed = guest_memory(pid);
        assert_eq!(placed.keys().collect::<Vec<_>>(), [&0]);

        let record = device_plugin::record().expect("kubelet's record").entries;
        for one in &given {
            let mut own = record.iter().filter(|entry| entry.pod.to_string() == pod.uid);
            let own = own.find(|entry| entry.resource == one.kind.resource).expect("an entry");
            assert_eq!(own.devices[&Some(0)].first(), Some(&one.address), "{record:?}");
        }
        let locality = settled_locality(&pod, MEMORY_MIB);
        assert_shown_on_node_0(&locality, &given);
        assert_eq!(locality["nodes"], serde_json::json!([0]));
        let (_, remote) = held_and_remote(&locality).expect("memory");
        assert!(remote < 64 << 20, "{remote}");
        run(&["steliactl", "verify", "--now", &pod.uid]);
        assert_eq!(doctor_of_places(), ["1 VM, none with remote memory or devices"]);

        // The kernel moves no page that a device may write to.
        let left = migrate_pages(pid);
        assert!(left > 0);
        assert_eq!(guest_memory(pid), placed);
    });
}

#[test]
fn memory_and_devices_on_another_node_are_told_with_the_share() {
    with_devices(|| {
        let card = Given::at(CARD, 0);
        let far = start("far", "6-7", std::slice::from_ref(&card), ",host-nodes=0,policy=bind");
        let disks = [0, 1].map(|node| Given::at(DISK, node));
        let both = start("both", "2-3", &disks, "");
        wait_working(&far, std::slice::from_ref(&card));
        wait_working(&both, &disks);
        assert_isolated(&far, 2);
        assert_isolated(&both, 2);
        assert_eq!(guest_memory(qemu_pid(&far)).keys().collect::<Vec<_>>(), [&0]);

        let (held, remote) = held_and_remote(&settled_locality(&far, MEMORY_MIB)).expect("memory");
        let share = remote as f64 / held as f64;
        assert!(share > 0.7, "{share}");
        let resource = |kind: Kind, node, own| (kind.resource.to_owned(), node, own);
        let expected = [(card.shown(), 0, false), resource(CARD, 0, false)];
        assert_eq!(shown_devices(&locality(&far)), expected);
        let expected = [
            (disks[0].shown(), 0, true),
            (disks[1].shown(), 1, false),
            resource(DISK, 0, true),
            resource(DISK, 1, false),
        ];
        assert_eq!(shown_devices(&settled_locality(&both, MEMORY_MIB)), expected);

        let (whole, text) = far.verified();
        // QEMU's own memory, on the VM's node, is not always as much.
        let (before, _) = text.split_once(" % (").expect("a share");
        let told: f64 = before.rsplit(' ').next().unwrap_or_default().parse().expect("a share");
        assert!(!whole && (told - share * 100.0).abs() < 10.0, "{share}: {text}");
        wait_until("nothing to say of the other one's memory", || both.verified().0);

        let found = doctor_of_places();
        let of = |pod: &Pod| {
            let beginning = format!("default/{}: ", pod.name);
            let of_pod = found.iter().find(|line| line.starts_with(&beginning));
            of_pod.unwrap_or_else(|| panic!("nothing of {}: {found:#?}", pod.name))
        };
        // A device of a plugin's is named once, by its resource.
        let away = |nodes: &str, resource: &str, node: &str| {
            format!("devices are remote from its CPUs on NUMA {nodes}: {resource} on {node}")
        };
        let devices = away("1", CARD.resource, "0");
        let is_told = of(&far).contains(" of its memory is remote") && of(&far).ends_with(&devices);
        assert!(is_told, "{devices}: {found:#?}");
        let devices = away("0", DISK.resource, "1");
        let is_told = of(&both).ends_with(&devices) && !of(&both).contains("memory");
        assert!(is_told, "{devices}: {found:#?}");
    });
}
