//! Adopted in the container's own cgroup.

/// The module has this name so that `in-place-on-sid` of `tests/node/sections` skips it on trixie, where no runtime starts threaded cgroups.
mod here {
    use rstest::rstest;

    use crate::real::vmms::adopted::test_life_and_restore;
    use crate::real::vmms::{Vmm, Way};

    #[rstest]
    fn whole_life_and_restore(#[values(Vmm::CloudHypervisor, Vmm::Firecracker)] vmm: Vmm) {
        test_life_and_restore(vmm, Way::InPlace);
    }
}
