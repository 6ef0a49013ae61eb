//! By iommufd and the devices' own files, `/dev/vfio/devices/vfioN`, with modules that the job brings: Debian's kernels have none (docs/real.md).

use std::path::Path;

use super::{CPUS, assert_only_open_in, assert_works_and_is_told, card_and_disk, test_cloud_hypervisor};
use crate::real::program;
use crate::support::*;
use crate::vfio::devices::{Given, IOMMUFD, Plugins};
use crate::vfio::guest::{device_words, qemu_pid, start_qemu};
use crate::vfio::with_plugins;

/// In the order in which they need each other.
const MODULES: &str = "iova_bitmap iommufd vfio vfio_iommu_type1 vfio-pci-core vfio-pci";
/// What counts the memory that iommufd pinned; `VmLck` does not.
const PINNED: &str = "VmPin";

/// The job's modules instead of the kernel's own.
fn load() {
    if Path::new(IOMMUFD).exists() {
        return;
    }
    if read("/proc/modules").contains("vfio") {
        run("modprobe --remove vfio-pci vfio_iommu_type1");
    }
    run("modprobe irqbypass");
    for name in words(MODULES) {
        let file = program("vfio-modules").join(format!("{name}.ko")).display().to_string();
        // See `Plugins`.
        let more = if name == "vfio-pci" { "disable_idle_d3=1" } else { "" };
        run(&format!("insmod {file} {more}"));
    }
}

fn with_iommufd(body: impl FnOnce()) {
    let start = || {
        load();
        Plugins::start(Given::files_of_iommufd)
    };
    with_plugins(start, body);
}

fn files(given: &[Given]) -> Vec<String> {
    let files = given.iter().map(Given::file);
    [IOMMUFD.to_owned()].into_iter().chain(files).collect()
}

/// The runner's options for them: `iommu`, and each device by its kind.
fn descriptors(given: &[Given]) -> Vec<String> {
    let of_devices = given.iter().map(|one| format!("{}={}", one.kind.id, one.file()));
    let all = [format!("iommu={IOMMUFD}")].into_iter().chain(of_devices);
    all.flat_map(|one| ["--fd".to_owned(), one]).collect()
}

/// QEMU's words for devices of this iommufd, each named by `what`.
fn qemu_words(iommufd: &str, given: &[Given], what: impl Fn(&Given) -> String) -> Vec<String> {
    let words = |one: &Given| device_words(one, &format!("{},iommufd=iommu", what(one)));
    let object = ["-object".to_owned(), format!("iommufd,id=iommu{iommufd}")];
    let devices = given.iter().flat_map(|one| ["-device".to_owned(), words(one)]);
    object.into_iter().chain(devices).collect()
}

fn assert_qemu(pod: &Pod, given: &[Given]) {
    assert_isolated(pod, 2);
    assert_works_and_is_told(pod, qemu_pid(pod), given, PINNED);
    assert_only_open_in(pod, "qemu", &files(given));
}

#[test]
fn qemu_has_a_card_and_a_disk_by_descriptors_of_the_runner() {
    with_iommufd(|| {
        let given = card_and_disk();
        let helper = ["--helper", "name=other,command=sleep 100000"].map(str::to_owned);
        let runner = [descriptors(&given), helper.to_vec()].concat();
        let words = qemu_words(",fd={fd:iommu}", &given, |one| format!("fd={{fd:{}}}", one.kind.id));
        let pod = start_qemu("by-descriptor", CPUS, &given, "", &runner, &words);
        assert_qemu(&pod, &given);
    });
}

#[test]
fn qemu_has_a_card_and_a_disk_by_path() {
    with_iommufd(|| {
        let given = card_and_disk();
        let words = qemu_words("", &given, |one| format!("host={}", one.address));
        let pod = start_qemu("by-path", CPUS, &given, "", &[], &words);
        assert_qemu(&pod, &given);
    });
}

#[test]
fn cloud_hypervisor_has_a_card_and_a_disk_by_descriptors_of_the_runner() {
    with_iommufd(|| {
        let given = card_and_disk();
        let devices = given.iter().map(|one| format!("fd={{fd:{}}}", one.kind.id));
        let words = ["--platform", "iommufd_fd={fd:iommu},vfio_p2p_dma=off", "--device"].map(str::to_owned);
        let words: Vec<String> = words.into_iter().chain(devices).collect();
        let runner = descriptors(&given);
        test_cloud_hypervisor("by-descriptor", &given, &runner, &words, PINNED, &files(&given));
    });
}
