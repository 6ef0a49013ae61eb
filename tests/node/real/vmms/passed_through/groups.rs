//! By the devices' IOMMU groups, with the kernel's own modules.

use super::{card_and_disk, test_cloud_hypervisor};
use crate::vfio::with_devices;

#[test]
fn cloud_hypervisor_has_a_card_and_a_disk_by_path() {
    with_devices(|| {
        let given = card_and_disk();
        let paths = given.iter().map(|one| format!("path={}", one.path().display()));
        let words: Vec<String> = ["--device".to_owned()].into_iter().chain(paths).collect();
        let groups = given.iter().map(|one| format!("/dev/vfio/{}", one.group));
        let files: Vec<String> = ["/dev/vfio/vfio".to_owned()].into_iter().chain(groups).collect();
        test_cloud_hypervisor("by-group", &given, &[], &words, "VmLck", &files);
    });
}
