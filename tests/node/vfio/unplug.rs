//! Passed-through devices that leave their guest and come to it while it runs, and a container that starts anew.

use super::devices::{DISK, Given};
use super::guest::{MEMORY_MIB, held, plug, qemu_pid, start_with, told, unplug, wait_working};
use super::interrupts::{places, until_on_own_cpus};
use super::with_devices;
use crate::descriptors::open_devices;
use crate::ledger::{account, wait_booked};
use crate::quiet::round;
use crate::support::*;

/// The IOMMU groups that QEMU has open: `show` also names devices of the container that the guest does not have.
fn open(pod: &Pod) -> Vec<String> {
    let mut of_qemu = open_devices(pod);
    of_qemu.retain(|process, _| process.starts_with("qemu"));
    let groups = of_qemu.into_values().flatten();
    let groups = groups.filter_map(|path| path.strip_prefix("/dev/vfio/").map(str::to_owned));
    groups.filter(|group| group != "vfio").collect()
}

/// The groups of these devices, in the order of [`open`].
fn groups(devices: &[Given]) -> Vec<String> {
    let mut groups: Vec<String> = devices.iter().map(|device| device.group.clone()).collect();
    groups.sort();
    groups
}

/// Whether the ledger has interrupts of this device as the VM's own.
fn booked(pod: &Pod, device: &Given) -> bool {
    let own = account(pod).totals.own_interrupts;
    own.keys().any(|name| device.is_vector(name))
}

fn on_its_own_cpus(pod: &Pod, devices: &[Given]) {
    wait_until("every device has its vectors", || {
        places(devices).len() == devices.len() * 3
    });
    until_on_own_cpus(pod, devices);
}

#[test]
fn a_device_leaves_its_guest_and_comes_back_and_another_comes_from_the_other_node() {
    with_devices(|| {
        configure("vfio-irqs = \"own\"\n");
        let disks = [0, 1].map(|node| Given::at(DISK, node));
        let [near, far] = &disks;
        let pod = start_with("plugged", "2-3", &disks, &disks[..1], "");
        wait_working(&pod, &disks[..1]);
        assert_isolated(&pod, 2);
        on_its_own_cpus(&pod, &disks[..1]);
        assert_eq!(open(&pod), groups(&disks[..1]));
        wait_booked(&pod);
        // What fired since the last entry of the ledger ends with the device's interrupts: have one written.
        wait_until("its device's interrupts are booked", || {
            reconcile();
            booked(&pod, near)
        });
        reconcile();

        unplug(&pod, near);
        assert_eq!(near.vectors(), Vec::new());
        // QEMU frees the device some time after it says that the device is deleted.
        let held_still = || format!(": {:?}, {} bytes locked", open(&pod), held(qemu_pid(&pod), "VmLck"));
        wait_until_or("no group is open, and nothing is pinned", held_still, || {
            open(&pod).is_empty() && held(qemu_pid(&pod), "VmLck") < MEMORY_MIB << 20
        });
        wait_until("the guest has no disk", || told(&pod).1.is_empty());
        let report = round().report;
        let is_gone = report.remaining.iter().all(|one| !near.is_vector(&one.name));
        assert!(is_gone, "{report:#?}");
        // What the device did stays booked.
        assert!(booked(&pod, near), "{:?}", account(&pod).totals.own_interrupts);

        plug(&pod, near);
        wait_working(&pod, &disks[..1]);
        on_its_own_cpus(&pod, &disks[..1]);
        plug(&pod, far);
        wait_working(&pod, &disks);
        on_its_own_cpus(&pod, &disks);
        assert_eq!(open(&pod), groups(&disks));
        assert_isolated(&pod, 2);
        assert!(held(qemu_pid(&pod), "VmLck") >= MEMORY_MIB << 20);

        // A container that starts anew has its devices, and their interrupts have other numbers.
        let again = pod.restart().running();
        wait_until("isolated again", || is_isolated(&again, 2));
        wait_working(&again, &disks[..1]);
        on_its_own_cpus(&again, &disks[..1]);
        pod.delete(0);
        wait_until("no vector is left", || {
            disks.iter().all(|disk| disk.vectors().is_empty())
        });
    });
}
