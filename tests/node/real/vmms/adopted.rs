//! Adopted by the ready-made rules, in `stelia.slice` and with the container's cgroup as the partition.

use rstest::rstest;

use super::{Vm, Vmm, Way};
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
    configured_on_kvm(&rule(vmm, way), || {
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
