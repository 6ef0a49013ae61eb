//! Where the cgroups of an instance are made.

use stelia_text::named;

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
