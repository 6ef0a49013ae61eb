//! Adopted in the container's own cgroup.

/// Where the runtime copes with threaded cgroups: on Debian unstable.
mod here {
    use crate::real::vmms::adopted::{lives_and_is_restored, rule};
    use crate::real::vmms::{Vmm, Way};

    #[test]
    fn cloud_hypervisor_in_its_container() {
        let vmm = Vmm::CloudHypervisor;
        lives_and_is_restored(vmm, Way::InPlace, &rule(vmm, "tree = \"in-place\"\n"));
    }

    #[test]
    fn firecracker_in_its_container() {
        let vmm = Vmm::Firecracker;
        lives_and_is_restored(vmm, Way::InPlace, &rule(vmm, "tree = \"in-place\"\n"));
    }
}
