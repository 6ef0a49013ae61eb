//! The VFIO devices that processes have open, and their NUMA nodes. They are identified by device number, because a
//! container may name its device files as it likes: a group (`/dev/vfio/12`) stands for the devices of its IOMMU group,
//! `/dev/vfio/devices/vfio0` for one device.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use stelia_node::locality::Device;

use crate::shared::kernel::Roots;

/// The devices of these processes. What may not be read is left out: only root may list the open files of a VM's
/// processes.
pub(crate) fn devices(roots: &Roots, pids: impl Iterator<Item = u32>) -> Vec<Device> {
    let numbers: BTreeSet<(u32, u32)> = pids.flat_map(|pid| open_devices(&roots.proc, pid)).collect();
    let found = numbers.into_iter().flat_map(|number| of_number(&roots.sys, number));
    // A set, because a device may be open in both ways.
    let found: BTreeSet<Device> = found.collect();
    found.into_iter().collect()
}

/// The numbers of the character devices that a process has open.
fn open_devices(proc: &Path, pid: u32) -> Vec<(u32, u32)> {
    let open = fs::read_dir(proc.join(pid.to_string()).join("fd"));
    let open = open.into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| {
        let file = fs::metadata(entry.path()).ok()?;
        let number = file.rdev();
        let parts = (rustix::fs::major(number), rustix::fs::minor(number));
        file.file_type().is_char_device().then_some(parts)
    });
    numbers.collect()
}

/// The VFIO devices behind a character device: `/sys/dev/char/<major>:<minor>` links to `…/vfio/<group>`, or to
/// `…/<device>/vfio-dev/vfio<n>`.
fn of_number(sys: &Path, (major, minor): (u32, u32)) -> Vec<Device> {
    let target = fs::read_link(sys.join(format!("dev/char/{major}:{minor}"))).unwrap_or_default();
    let mut parts = target.iter().rev().filter_map(|part| part.to_str());
    match (parts.next(), parts.next(), parts.next()) {
        (Some(group), Some("vfio"), _) => of_group(&sys.join("kernel/iommu_groups").join(group).join("devices")),
        (Some(_), Some("vfio-dev"), Some(name)) => {
            let node = node(&sys.join(format!("dev/char/{major}:{minor}/device")));
            vec![device(name, node)]
        }
        _ => Vec::new(),
    }
}

/// The devices of an IOMMU group that have a VFIO driver; others in it, such as bridges, belong to the host.
fn of_group(devices: &Path) -> Vec<Device> {
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let driver = fs::read_link(entry.path().join("driver")).ok()?;
        let is_vfio = driver.file_name()?.to_str()?.contains("vfio");
        is_vfio.then(|| device(&entry.file_name().to_string_lossy(), node(&entry.path())))
    });
    found.collect()
}

/// `numa_node`: -1 where the firmware does not report it.
fn node(device: &Path) -> Option<u32> {
    fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()
}

fn device(name: &str, node: Option<u32>) -> Device {
    Device {
        name: format!("VFIO {name}"),
        node,
        count: 1,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_group_and_a_device_lead_to_their_numa_nodes() {
        let temp = tempfile::tempdir().unwrap();
        let sys = temp.path();
        let link = |path: &str, target: &str| {
            fs::create_dir_all(sys.join(path).parent().unwrap()).unwrap();
            symlink(target, sys.join(path)).unwrap();
        };
        let pci = |address: &str, driver: &str, node: &str| {
            let device = format!("devices/pci0000:3a/{address}");
            fs::create_dir_all(sys.join(&device)).unwrap();
            fs::write(sys.join(&device).join("numa_node"), node).unwrap();
            link(
                &format!("{device}/driver"),
                &format!("../../../bus/pci/drivers/{driver}"),
            );
        };
        pci("0000:3b:00.0", "vfio-pci", "1\n");
        pci("0000:3b:00.1", "mlx5_vfio_pci", "-1\n");
        pci("0000:3a:00.0", "pcieport", "0\n");
        for address in ["0000:3b:00.0", "0000:3b:00.1", "0000:3a:00.0"] {
            let group = format!("kernel/iommu_groups/12/devices/{address}");
            link(&group, &format!("../../../../devices/pci0000:3a/{address}"));
        }
        link("dev/char/243:0", "../../devices/virtual/vfio/12");
        link("dev/char/10:196", "../../devices/virtual/misc/vfio");
        let one = "devices/pci0000:3a/0000:3b:00.0/vfio-dev/vfio0";
        link(&format!("{one}/device"), "../../../0000:3b:00.0");
        link("dev/char/511:0", &format!("../../{one}"));

        let mut group = of_number(sys, (243, 0));
        group.sort();
        assert_eq!(group, [device("0000:3b:00.0", Some(1)), device("0000:3b:00.1", None)]);
        assert_eq!(of_number(sys, (511, 0)), [device("0000:3b:00.0", Some(1))]);
        // VFIO's own container file, and a device that is not VFIO's.
        assert_eq!([of_number(sys, (10, 196)), of_number(sys, (1, 3))], [vec![], vec![]]);
    }

    #[test]
    fn the_devices_of_a_process_are_those_it_has_open() {
        let null = fs::File::open("/dev/null").unwrap();
        let number = null.metadata().unwrap().rdev();
        let open = open_devices(Path::new("/proc"), std::process::id());
        assert!(
            open.contains(&(rustix::fs::major(number), rustix::fs::minor(number))),
            "{open:?}"
        );
        assert!(open_devices(Path::new("/nowhere"), 1).is_empty());
    }
}
