//! Where the cgroups of an instance are made.

use stelia_cpus::text::named;

named! {
    /// Where an instance's `float` and `vcpu` are.
    pub enum TreeHome {
        /// In a scope of its own in `stelia.slice`. The container's processes are moved there; an anchor stays behind.
        Slice = "slice",
        /// In the container's own cgroup: no process leaves its container, and memory, limits and devices stay the pod's.
        InPlace = "in-place",
    }
}

named! {
    /// Where the cgroups of new instances are to be made: of VMs that register, or of those that a rule adopts.
    #[derive(Default)]
    pub enum TreeChoice {
        /// In the container's own cgroup where its runtime copes with that, else in `stelia.slice`.
        #[default]
        Auto = "auto",
        /// In the container's own cgroup. Elsewhere a rule adopts no VM; one that registers gets a scope all the same.
        InPlace = "in-place",
        /// In `stelia.slice`.
        Slice = "slice",
    }
}

impl TreeChoice {
    /// Where an instance is made if its container and runtime permit that.
    pub fn preferred(self) -> TreeHome {
        match self {
            Self::Auto | Self::InPlace => TreeHome::InPlace,
            Self::Slice => TreeHome::Slice,
        }
    }
}

named! {
    /// Who uses a container's exclusive CPUs.
    #[derive(Default)]
    pub enum Isolation {
        /// The vCPU threads alone have the container's exclusive CPUs; everything else of the container runs on shared CPUs.
        #[default]
        Vcpus = "vcpus",
        /// The container's own cgroup is the partition: all of its tasks share its exclusive CPUs, and no other task of the host runs there.
        Container = "container",
    }
}
