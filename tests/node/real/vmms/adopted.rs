//! Adopted by the ready-made rules, in `stelia.slice` and with the container's cgroup as the partition.

use rstest::rstest;

use super::{CPUS, Vm, Vmm, Way, command, guest, released};
use crate::real::program;
use crate::support::*;

/// The ready-made rule of this VMM. Where containers become partitions no audit runs but those that are asked for: the ends of VMs are noticed without.
pub fn rule(vmm: Vmm, way: Way) -> String {
    let (before, more) = match way {
        Way::InPlace => ("", "tree = \"in-place\"\n"),
        Way::Container => (NO_AUDIT, "isolation = \"container\"\n"),
        Way::Slice | Way::Runner => ("", ""),
    };
    format!("{before}[[adopt]]\nuse = \"{}\"\n{more}", vmm.name())
}

pub fn test_life_and_restore(vmm: Vmm, way: Way) {
    adopting(&rule(vmm, way), || {
        let vm = Vm::start(vmm, way);
        vm.go_through_its_life();
        vm.assert_not_called_qemu();
        vm.assert_no_timer_on_its_cpus();
        vm.power_off();
        vm.restore();
        vm.assert_as_recorded();
    });
}

#[rstest]
fn whole_life_and_restore(
    #[values(Vmm::CloudHypervisor, Vmm::Firecracker)] vmm: Vmm,
    #[values(Way::Slice, Way::Container)] way: Way,
) {
    test_life_and_restore(vmm, way);
}

impl Vm {
    /// What is said of it does not take it for a QEMU.
    fn assert_not_called_qemu(&self) {
        let text = utf8(&output(&["steliactl", "why", &self.pod.uid]).stdout);
        assert!(!text.is_empty() && !text.contains("QEMU"), "{text}");
        let said = journal(&[&*format!("STELIA_POD_UID={}", self.pod.uid)]);
        assert!(!said.contains("QEMU"), "{said}");
    }

    /// The thread that KVM makes for an emulated timer is the kernel's own, and no thread of the VMM's.
    fn assert_no_timer_on_its_cpus(&self) {
        let own = self.pod.exclusive();
        let timers = processes_named("kvm-pit/");
        let expected = usize::from(self.vmm != Vmm::CloudHypervisor);
        assert_eq!(timers.len(), expected, "{timers:?}");
        for timer in &timers {
            assert!(timer.allowed.is_disjoint(&own), "{timer:?}");
        }
    }
}

/// A VMM that is the container's first process, by the name of its release.
#[test]
fn a_vmm_that_is_the_first_process_is_adopted_where_the_runtime_copes() {
    adopting("", || {
        for vmm in [Vmm::CloudHypervisor, Vmm::Firecracker] {
            guest::make();
            let boot = command(vmm, &format!("exec /tmp/{}", released(vmm)), &guest::words(vmm));
            let file = program(vmm.name()).display().to_string();
            let script = format!("ln -s {file} /tmp/{}; {boot}", released(vmm));
            let options = [Accel::Kvm.device(), &["--cpus", CPUS, "--runtime", "runc"]].concat();
            let pod = Pod::start(&format!("{}-first", vmm.name()), &options, &["sh", "-c", &script]);
            configure(&rule(vmm, Way::Slice));
            let now = pod.clone();
            let end = || {
                unconfigure();
                now.delete(0);
            };
            if is_sid() {
                Vm::of(vmm, Way::InPlace, pod).until_isolated("the first process", 2);
                end();
                continue;
            }
            let is_final = |reason: &(String, String)| reason.0 == "NoAnchor";
            wait_until("it is refused", || refused(&pod).filter(is_final));
            let listed = run(&["steliactl", "list", "--unmanaged"]);
            assert!(listed.contains("NoAnchor"), "{listed}");
            end();
        }
    });
}
