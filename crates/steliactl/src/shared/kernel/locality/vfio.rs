//! The VFIO devices that processes have open.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use stelia_kernel::vfio::behind;

use crate::shared::kernel::Roots;

/// The addresses of the devices of these processes, of mediated ones the UUIDs. What may not be read is left out: only root may list the open files of a
/// VM's processes.
pub(crate) fn opened(roots: &Roots, pids: impl Iterator<Item = u32>) -> BTreeSet<String> {
    let numbers: BTreeSet<(u32, u32)> = pids.flat_map(|pid| open_devices(&roots.proc, pid)).collect();
    let found = numbers.into_iter().flat_map(|number| of_number(&roots.sys, number));
    found.collect()
}

/// The numbers of the character devices that a process has open.
fn open_devices(proc: &Path, pid: u32) -> Vec<(u32, u32)> {
    let open = fs::read_dir(proc.join(pid.to_string()).join("fd"));
    let open = open.into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| {
        // A descriptor on a file system of the pod's is not followed: its server may never answer.
        let is_device = fs::read_link(entry.path()).is_ok_and(|path| path.starts_with("/dev"));
        // O_PATH opens what the container is not allowed to use.
        let info = fs::read_to_string(proc.join(format!("{pid}/fdinfo")).join(entry.file_name())).unwrap_or_default();
        if !is_device || is_path_only(&info) {
            return None;
        }
        let file = fs::metadata(entry.path()).ok()?;
        let number = file.rdev();
        let parts = (rustix::fs::major(number), rustix::fs::minor(number));
        file.file_type().is_char_device().then_some(parts)
    });
    numbers.collect()
}

/// Whether a descriptor was opened with O_PATH: `flags` of its fdinfo, in octal (proc_pid_fdinfo(5)).
fn is_path_only(fdinfo: &str) -> bool {
    let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & rustix::fs::OFlags::PATH.bits() != 0)
}

/// The devices behind a character device.
fn of_number(sys: &Path, number: (u32, u32)) -> Vec<String> {
    let found = behind(sys, number).into_iter();
    found
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_group_and_a_device_lead_to_their_addresses() {
        let temp = tempfile::tempdir().unwrap();
        let sys = temp.path();
        let link = |path: &str, target: &str| {
            fs::create_dir_all(sys.join(path).parent().unwrap()).unwrap();
            symlink(target, sys.join(path)).unwrap();
        };
        let pci = |address: &str, driver: &str| {
            let device = format!("devices/pci0000:3a/{address}");
            fs::create_dir_all(sys.join(&device)).unwrap();
            link(
                &format!("{device}/driver"),
                &format!("../../../bus/pci/drivers/{driver}"),
            );
        };
        pci("0000:3b:00.0", "vfio-pci");
        pci("0000:3b:00.1", "mlx5_vfio_pci");
        pci("0000:3a:00.0", "pcieport");
        for address in ["0000:3b:00.0", "0000:3b:00.1", "0000:3a:00.0"] {
            let group = format!("kernel/iommu_groups/12/devices/{address}");
            link(&group, &format!("../../../../devices/pci0000:3a/{address}"));
        }
        link("dev/char/243:0", "../../devices/virtual/vfio/12");
        link("dev/char/10:196", "../../devices/virtual/misc/vfio");
        let one = "devices/pci0000:3a/0000:3b:00.0/vfio-dev/vfio0";
        link(&format!("{one}/device"), "../../../0000:3b:00.0");
        link("dev/char/511:0", &format!("../../{one}"));

        let uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";
        let mediated = format!("devices/pci0000:3a/0000:3b:00.2/{uuid}");
        fs::create_dir_all(sys.join(&mediated).join("mdev_type")).unwrap();
        link(
            &format!("kernel/iommu_groups/13/devices/{uuid}"),
            &format!("../../../../{mediated}"),
        );
        link("dev/char/243:1", "../../devices/virtual/vfio/13");

        let mut group = of_number(sys, (243, 0));
        group.sort();
        assert_eq!(group, ["0000:3b:00.0", "0000:3b:00.1"]);
        assert_eq!(of_number(sys, (243, 1)), [uuid]);
        assert_eq!(of_number(sys, (511, 0)), ["0000:3b:00.0"]);
        // VFIO's own container file, and a device that is not VFIO's.
        assert!(of_number(sys, (10, 196)).is_empty() && of_number(sys, (1, 3)).is_empty());
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
