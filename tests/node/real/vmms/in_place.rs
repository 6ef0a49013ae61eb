//! Adopted in the container's own cgroup.

/// The module has this name so that `in-place-on-sid` of `tests/node/sections` skips it on trixie, where no runtime starts threaded cgroups.
mod here {
    use crate::real::vmms::adopted::{rule, test_life_and_restore};
    use crate::real::vmms::{Vmm, Way};

    #[test]
    fn cloud_hypervisor_in_its_container() {
        let vmm = Vmm::CloudHypervisor;
        test_life_and_restore(vmm, Way::InPlace, &rule(vmm, "tree = \"in-place\"\n"));
    }

    #[test]
    fn firecracker_in_its_container() {
        let vmm = Vmm::Firecracker;
        test_life_and_restore(vmm, Way::InPlace, &rule(vmm, "tree = \"in-place\"\n"));
    }
}
