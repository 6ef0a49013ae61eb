//! Guests that have a card and a disk of the node by VFIO, started by the runner on a node with an IOMMU: by their groups, and by iommufd with kernel
//! modules that the job brings.

mod groups;
mod iommufd;

use serde_json::{Value, json};

use super::{Vm, Vmm, guest};
use crate::descriptors::open_devices;
use crate::support::*;
use crate::vfio::devices::{CARD, DISK, Given};
use crate::vfio::guest::{INITRAMFS, MEMORY_MIB, held, make, options, texts, told, wait_working};
use crate::vfio::interrupts::{until_off_own_cpus, until_on_own_cpus};
use crate::vfio::{assert_shown_on_node_0, settled_locality};

/// Those of NUMA node 0, as the VM's CPUs are.
const CPUS: &str = "2-3";

fn card_and_disk() -> [Given; 2] {
    [Given::at(CARD, 0), Given::at(DISK, 0)]
}

/// Cloud Hypervisor by the runner with these options, in a pod that asks its plugins for the devices. `more` gives the guest its devices, for
/// which Cloud Hypervisor has these files open, after a reboot of the guest too.
fn test_cloud_hypervisor(
    name: &str,
    given: &[Given],
    runner: &[String],
    more: &[String],
    pinned: &str,
    files: &[String],
) {
    needs_kvm();
    make();
    let vmm = Vmm::CloudHypervisor;
    let boot = format!("--cpus boot=2 --memory size={MEMORY_MIB}M");
    let words = [&guest::boot(INITRAMFS, KERNEL_WORDS, &boot)[..], &texts(more)].concat();
    let vm = Vm::by_runner(vmm, name, &texts(&options(CPUS, given)), &texts(runner), &words);
    vm.until_isolated("boot", 2);
    vm.until_ready();
    assert_works_and_is_told(&vm.pod, vm.process().expect("the VMM"), given, pinned);
    assert_only_open_in(&vm.pod, "cloud-hyper", files);
    vm.reboot_with(given);
    assert_only_open_in(&vm.pod, "cloud-hyper", files);
}

impl Vm {
    /// The guest resets its devices, and asks for their interrupts anew. Call it with `vfio-irqs = "own"`.
    fn reboot_with(&self, given: &[Given]) {
        let (threads, number) = (self.threads(), told(&self.pod).0);
        self.api().must("PUT", "/api/v1/vm.reboot", "");
        self.until_new("reboot", &threads);
        let last = || format!(": {}, then {}", number, told(&self.pod).0);
        wait_until_or("the guest lives anew", last, || told(&self.pod).0 < number);
        wait_working(&self.pod, given);
        until_on_own_cpus(&self.pod, given);
    }
}

/// The guest works its devices, and what is said of them is true. `pinned` is the field of the VMM's status that counts what VFIO pinned.
fn assert_works_and_is_told(pod: &Pod, vmm: u32, given: &[Given], pinned: &str) {
    wait_working(pod, given);
    let status = status(vmm);
    let memory: Vec<_> = status.lines().filter(|line| line.starts_with("Vm")).collect();
    assert!(held(vmm, pinned) >= MEMORY_MIB << 20, "{pinned}: {memory:?}");
    assert_certified(pod, given);
    // By default no vector of the devices reaches the VM's CPUs, and with "own" each reaches only those.
    until_off_own_cpus(pod, given);
    configure("vfio-irqs = \"own\"\n");
    until_on_own_cpus(pod, given);
    run(&["steliactl", "verify", "--now", &pod.uid]);
}

/// The certificate names each device with its node and the resource by which kubelet gave it, and the interrupts of all.
fn assert_certified(pod: &Pod, given: &[Given]) {
    let locality = settled_locality(pod, MEMORY_MIB);
    assert_shown_on_node_0(&locality, given);
    let rows = locality["certificate"].as_array().expect("rows");
    for one in given {
        let mut of_device = rows.iter().filter(|row| row["device"]["address"] == *one.address);
        let row = of_device.next().unwrap_or_else(|| panic!("{one:?}: {locality:#}"));
        let named = json!([row["part"], row["nodes"], row["near_ratio"], row["device"]["resource"]]);
        let expected = json!(["device", {"0": 1}, 1.0, one.kind.resource]);
        assert_eq!(named, expected, "{row:#}");
    }
    let fired = |row: &Value| row["part"] == "interrupts" && row["amount"].as_u64() > Some(0);
    assert!(rows.iter().any(fired), "{locality:#}");
}

/// Of the container's processes only the VMM, whose name begins so, has these files open.
fn assert_only_open_in(pod: &Pod, vmm: &str, files: &[String]) {
    let open = open_devices(pod);
    let mut expected = files.to_vec();
    expected.sort();
    for (process, mut files) in open.clone() {
        files.dedup();
        let expected: &[String] = if process.starts_with(vmm) { &expected } else { &[] };
        assert_eq!(files, expected, "{process}: {open:?}");
    }
}
