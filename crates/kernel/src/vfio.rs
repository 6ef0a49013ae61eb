//! The PCI and mediated devices that a container has by VFIO.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use stelia_kubelet::ContainerCgroup;

use crate::cgroup::CgroupPath;
use crate::runtime_config;

/// The PCI addresses of the VFIO devices of the container with this cgroup, and the UUIDs of its mediated ones, by the device nodes that the
/// runtime gave it. Empty where the runtime's configuration is not found, and if it is not a container's cgroup.
pub fn devices(run: &Path, sys: &Path, origin: &CgroupPath) -> BTreeSet<String> {
    let container = ContainerCgroup::parse(origin.as_str());
    let numbers = container.map(|container| runtime_config::character_devices(run, &container.container_id));
    let numbers = numbers.into_iter().flatten();
    numbers.flat_map(|number| behind(sys, number)).collect()
}

/// Whether VFIO has a device on this host, in a group or for iommufd.
pub fn has_devices(sys: &Path) -> bool {
    let has = |class: &str| fs::read_dir(sys.join("class").join(class)).is_ok_and(|mut all| all.next().is_some());
    has("vfio") || has("vfio-dev")
}

/// The addresses of the devices behind a device file of the host, `/dev/vfio/GROUP` or `/dev/vfio/devices/vfioN`.
pub fn of_file(sys: &Path, path: &str) -> Vec<String> {
    let name = path.strip_prefix("/dev/vfio/");
    name.map(|name| addresses(sys, name)).unwrap_or_default()
}

/// The devices that only one of the owners has. Owners without any are left out.
pub fn without_shared<K: Ord>(devices: BTreeMap<K, BTreeSet<String>>) -> BTreeMap<K, BTreeSet<String>> {
    let mut owners: BTreeMap<&str, u32> = BTreeMap::new();
    for device in devices.values().flatten() {
        *owners.entry(device).or_default() += 1;
    }
    let own = owners.iter().filter(|(_, owners)| **owners == 1);
    let own: BTreeSet<String> = own.map(|(device, _)| (*device).to_owned()).collect();
    let all = devices.into_iter().map(|(owner, devices)| (owner, &devices & &own));
    all.filter(|(_, devices)| !devices.is_empty()).collect()
}

/// The addresses of the devices behind a character device, of mediated ones the UUIDs: those of a group (`/dev/vfio/GROUP`) that VFIO has, or
/// that of the device of `/dev/vfio/devices/vfioN` (Documentation/driver-api/vfio.rst).
/// By number, because a container may name its device nodes as it likes: `/sys/dev/char/MAJOR:MINOR` links to `…/vfio/GROUP`, or to
/// `…/ADDRESS/vfio-dev/vfioN`.
pub fn behind(sys: &Path, (major, minor): (u32, u32)) -> Vec<String> {
    let target = fs::read_link(sys.join(format!("dev/char/{major}:{minor}"))).unwrap_or_default();
    let mut parts = target.iter().rev().filter_map(|part| part.to_str());
    match (parts.next(), parts.next(), parts.next()) {
        (Some(group), Some("vfio"), _) => {
            let devices = of_group(sys, group).filter(|path| is_given_away(path));
            devices.filter_map(|path| name(&path)).collect()
        }
        (Some(_), Some("vfio-dev"), Some(address)) => vec![address.to_owned()],
        _ => Vec::new(),
    }
}

/// The devices of the group of a file in `/dev/vfio`: `GROUP`, or `noiommu-GROUP` where the host has no IOMMU and VFIO made the group
/// (`vfio_group_alloc` in the kernel's drivers/vfio/group.c). Others are none, such as `vfio`, the container of groups.
fn of_group(sys: &Path, name: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let group = name.strip_prefix("noiommu-").unwrap_or(name);
    let is_number = !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit());
    let group = is_number.then(|| sys.join("kernel/iommu_groups").join(group).join("devices"));
    let found = group.and_then(|group| fs::read_dir(group).ok());
    found.into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The last part of a path.
fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// Whether VFIO has the device: others in its group, such as bridges, belong to the host. A driver of any name may hand its device to VFIO, which then
/// makes `vfio-dev` in its folder (since Linux 6.1). A mediated device is alone in its group.
fn is_given_away(device: &Path) -> bool {
    if device.join("vfio-dev").exists() || device.join("mdev_type").exists() {
        return true;
    }
    let driver = fs::read_link(device.join("driver")).ok();
    let driver = driver.and_then(|driver| name(&driver));
    driver.is_some_and(|driver| driver.contains("vfio"))
}

/// `file` is relative to `/dev/vfio`.
fn addresses(sys: &Path, file: &str) -> Vec<String> {
    if let Some(device) = file.strip_prefix("devices/") {
        let is_name = device.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let link = is_name.then(|| fs::read_link(sys.join("class/vfio-dev").join(device).join("device")).ok());
        return link.flatten().and_then(|link| name(&link)).into_iter().collect();
    }
    of_group(sys, file).filter_map(|path| name(&path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_root::Root;

    #[test]
    fn a_group_without_an_iommu_has_a_name_of_its_own_and_the_same_devices() {
        let sys = Root::new();
        fs::create_dir_all(sys.join("kernel/iommu_groups/7/devices/0001:00:02.0/vfio-dev")).unwrap();
        let names = [
            ("7", true),
            ("noiommu-7", true),
            ("noiommu-8", false),
            ("noiommu-", false),
            ("vfio", false),
        ];
        for (minor, (name, is_group)) in (0..).zip(names) {
            sys.link(
                format!("../../devices/virtual/vfio/{name}"),
                &format!("dev/char/243:{minor}"),
            );
            let expected: Vec<String> = is_group.then(|| "0001:00:02.0".to_owned()).into_iter().collect();
            assert_eq!(of_file(&sys, &format!("/dev/vfio/{name}")), expected, "{name}");
            assert_eq!(behind(&sys, (243, minor)), expected, "{name}");
        }
    }

    #[test]
    fn a_group_is_all_of_its_devices_and_a_device_itself_whatever_their_nodes_are_named() {
        let root = Root::new();
        let (run, sys) = (root.join("run"), root.join("sys"));
        let config = r#"{"linux": {"devices": [
            {"path": "/dev/vfio/vfio", "type": "c", "major": 10, "minor": 196},
            {"path": "/dev/gpu", "type": "c", "major": 243, "minor": 0},
            {"path": "/dev/mediated", "type": "c", "major": 243, "minor": 2},
            {"path": "/dev/vfio/devices/vfio3", "type": "c", "major": 511, "minor": 3},
            {"path": "/dev/vfio/14", "type": "b", "major": 243, "minor": 1},
            {"path": "/dev/kvm", "type": "c", "major": 10, "minor": 232},
            {"path": "/run/pipe", "type": "p"}]}}"#;
        let bundle = "run/containerd/io.containerd.runtime.v2.task/k8s.io/c1";
        root.file(&format!("{bundle}/config.json"), config);
        let groups = [
            ("12", "0000:3b:00.0", "vfio-pci"),
            ("12", "0000:3b:00.1", "mlx5_vfio_pci"),
            ("14", "0000:40:00.0", "vfio-pci"),
            // A bridge, and a device that the host has back.
            ("12", "0000:3a:00.0", "pcieport"),
            ("12", "0000:3b:00.2", "mlx5_core"),
        ];
        for (group, address, driver) in groups {
            let device = format!("sys/kernel/iommu_groups/{group}/devices/{address}");
            root.link(
                format!("../../../bus/pci/drivers/{driver}"),
                &format!("{device}/driver"),
            );
        }
        let uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";
        fs::create_dir_all(sys.join(format!("kernel/iommu_groups/13/devices/{uuid}/mdev_type"))).unwrap();
        let links = [
            ("10:196", "../../devices/virtual/misc/vfio"),
            ("10:232", "../../devices/virtual/misc/kvm"),
            ("243:0", "../../devices/virtual/vfio/12"),
            ("243:1", "../../devices/virtual/vfio/14"),
            ("243:2", "../../devices/virtual/vfio/13"),
            ("511:3", "../../devices/pci0000:5d/0000:5e:00.0/vfio-dev/vfio3"),
        ];
        for (number, target) in links {
            root.link(target, &format!("sys/dev/char/{number}"));
        }
        let pod = "b9e4f71c_64a5_4f8d_8574_41363cbaf8e5";
        let cgroup = format!("/kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-c1.scope");
        let origin = |cgroup: &str| CgroupPath::parse(cgroup).unwrap();
        let found = devices(&run, &sys, &origin(&cgroup));
        let expected = ["0000:3b:00.0", "0000:3b:00.1", "0000:5e:00.0", uuid];
        assert_eq!(found, expected.map(str::to_owned).into());
        assert!(devices(&run, &sys, &origin(&cgroup.replace("c1.scope", "c2.scope"))).is_empty());
    }
}
