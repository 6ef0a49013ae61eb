//! By the devices' IOMMU groups, with the kernel's own modules.

use super::{assert_only_open_in, assert_works_and_is_told, card_and_disk, start_cloud_hypervisor};
use crate::vfio::with_devices;

#[test]
fn cloud_hypervisor_has_a_card_and_a_disk_by_path() {
    with_devices(|| {
        let given = card_and_disk();
        let paths = given.iter().map(|one| format!("path={}", one.path().display()));
        let words: Vec<String> = ["--device".to_owned()].into_iter().chain(paths).collect();
        let vm = start_cloud_hypervisor("by-group", &given, &[], &words);
        assert_works_and_is_told(&vm.pod, vm.pid(), &given, "VmLck");
        let groups = given.iter().map(|one| format!("/dev/vfio/{}", one.group));
        let files: Vec<String> = ["/dev/vfio/vfio".to_owned()].into_iter().chain(groups).collect();
        assert_only_open_in(&vm.pod, "cloud-hyper", &files);
        vm.reboot_with(&given);
        assert_only_open_in(&vm.pod, "cloud-hyper", &files);
    });
}
