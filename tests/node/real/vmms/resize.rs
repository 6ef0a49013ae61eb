//! A guest of Cloud Hypervisor whose vCPUs follow its container's CPUs: `vm.resize` by the runner (`docs/resize.md`).

use serde_json::json;
use stelia_cpus::CpuSet;

use super::{Vm, Vmm, guest};
use crate::resize::{INITRAMFS, assert_topology, grown, make_linux, said, until_counted};
use crate::support::*;

const ROUNDS: usize = 3;
/// The guest has no driver that hears of plugged and unplugged CPUs, and works on.
const DEAF: &str = "initcall_blacklist=ged_driver_init";

/// `src/journal.rs`
const SHRINKS: &str = "6e0b94d2c7a14f5e83d1b50fa92c7e61";
const DRIFT: &str = "8e5be1c0b4a84b3f9d2a6f0c7d1e4a52";
const DEGRADED: &str = "fd923e76039b4c51ad3036c89ae67172";

impl Vm {
    /// So many vCPUs on as many CPUs, of 4 on 2 cores.
    fn resizable(name: &str, vcpus: usize, kernel_words: &str) -> Self {
        make_linux();
        let vmm = Vmm::CloudHypervisor;
        let boot = format!("--cpus boot={vcpus},max=4,topology=2:2:1:1 --memory size=128M");
        let command = guest::boot(INITRAMFS, kernel_words, &boot);
        let vm = Self::by_runner(vmm, name, &["--cpus", &vcpus.to_string()], &[], &command);
        vm.until_has("boot", vcpus);
        vm.until_ready();
        vm
    }

    /// kubelet gives the container these CPUs.
    fn resize_container(&mut self, set: &CpuSet) {
        self.pod = self.pod.resize("--cpuset", &set.to_string());
    }

    /// Waits until there are so many vCPUs, isolated, and the guest has as many CPUs.
    fn until_has(&self, step: &str, vcpus: usize) -> Threads {
        let threads = self.until_isolated(step, vcpus);
        until_counted(&self.pod, vcpus);
        threads
    }

    fn until_runner_says(&self, from: usize, to: usize, outcome: &str) {
        let expected = json!({"from": from, "to": to, "outcome": outcome});
        let seen = || format!(": {}\n{}", self.runner_says(), self.pod.logs());
        wait_until_or(&format!("the runner says {expected}"), seen, || {
            self.runner_says()["resize"] == expected
        });
    }
}

#[test]
fn a_guest_of_cloud_hypervisor_grows_and_shrinks_with_its_container() {
    // On an emulated node a guest under load takes up to some ten seconds to give up a CPU.
    configured_on_kvm("unplug-timeout-s = 60\n", || {
        let mut vm = Vm::resizable("cloud-hypervisor-grows", 2, KERNEL_WORDS);
        let (small, first) = (vm.pod.exclusive(), vm.threads());
        let large = grown(&small, 4);
        for round in 1..=ROUNDS {
            let entries = Trace::entries("plugged", &cpus("0-7"), "vcpu_id >= 2");
            vm.resize_container(&large);
            let grown = vm.until_has(&format!("round {round}, 4 CPUs"), 4);
            // The new ones did not run guest code anywhere else, not even before they were pinned.
            entries.assert_entered_on_own(&vm.pod);
            assert!(identities(&first.vcpus).is_subset(&identities(&grown.vcpus)));
            assert_topology(&vm.pod, 4);
            vm.until_runner_says(2, 4, "done");
            vm.assert_no_other_task(&grown);

            vm.resize_container(&small);
            let shrunk = vm.until_has(&format!("round {round}, 2 CPUs"), 2);
            assert_eq!(identities(&shrunk.vcpus), identities(&first.vcpus));
            assert_topology(&vm.pod, 2);
            vm.until_runner_says(4, 2, "done");
            vm.assert_no_other_task(&shrunk);
        }
        assert_eq!(told_of(SHRINKS, &vm.pod).len(), ROUNDS, "it waited for its guest");
        for text in told_of(DEGRADED, &vm.pod) {
            assert!(!text.contains("vCPUs share"), "{text}");
        }
        assert!(told_of(DRIFT, &vm.pod).is_empty(), "kubelet is no other program");
    });
}

#[test]
fn a_guest_of_cloud_hypervisor_that_keeps_its_vcpus_shares_the_cpus_that_are_left() {
    on_kvm_node(|| {
        let mut vm = Vm::resizable("cloud-hypervisor-keeps", 4, &format!("{KERNEL_WORDS} {DEAF}"));
        let (all, before) = (vm.pod.exclusive(), vm.threads());
        let few: CpuSet = all.iter().take(2).collect();
        for round in 1..=2 {
            vm.resize_container(&few);
            let shown = || vm.pod.described();
            let seen = || format!(": {}\n{}", shown(), vm.pod.logs());
            wait_until_or("it waits for its guest", seen, || !shown()["pending_resize"].is_null());
            wait_until_or("the runner says that the guest refused", seen, || {
                vm.pod.logs().matches("the guest gave up 0 of the 2 vCPUs").count() == round
            });
            vm.until_runner_says(4, 2, "refused");
            wait_until_or("the CPUs are left", seen, || vm.pod.effective() == few);
            let reason = "the guest did not give up vCPUs in time";
            wait_until_or("it is degraded", seen, || {
                let degraded = shown()["degraded"][0].clone();
                degraded["text"].as_str().is_some_and(|text| text.contains(reason))
            });
            let told = told_of(DEGRADED, &vm.pod);
            let told: Vec<_> = told.iter().filter(|text| text.contains(reason)).collect();
            assert_eq!(told.len(), round, "{told:?}");
            let now = vm.threads();
            assert_eq!(identities(&now.vcpus), identities(&before.vcpus));
            for thread in &now.vcpus {
                assert!(thread.allowed.is_subset(&few), "{thread:?}");
            }
            // It runs on, with all of its CPUs.
            let signs = alive(&vm.pod);
            wait_until_or("the guest lives", seen, || alive(&vm.pod) > signs + 1);
            assert_eq!(said(&vm.pod).map(|(online, _)| online.len()), Some(4));
            vm.assert_no_other_task(&now);
            // Given back, each has its own again.
            vm.resize_container(&all);
            let now = vm.until_has(&format!("round {round}, all CPUs again"), 4);
            assert_eq!(identities(&now.vcpus), identities(&before.vcpus));
        }
    });
}
