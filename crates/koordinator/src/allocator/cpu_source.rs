//! What chooses the exclusive CPUs of a node, and what follows from it.

use stelia_cpus::text::named;

named! {
    /// What chooses exclusive CPUs on this node.
    #[derive(Default)]
    pub enum CpuSource {
        /// kubelet's static CPU manager.
        #[default]
        Kubelet = "kubelet",
        /// steliad's own allocator. What kubelet still holds stays kubelet's.
        Steliad = "steliad",
    }
}

impl CpuSource {
    /// Whether a container that kubelet gave no CPUs gets them from steliad's allocator, out of its pools.
    pub fn allocates(self) -> bool {
        self == Self::Steliad
    }

    /// Whether kubelet's file must be there and be of the static policy, and kubelet's configuration must be readable. Else kubelet may
    /// have any policy or be missing; but a file that exists must be understood.
    pub fn needs_static_policy(self) -> bool {
        self == Self::Kubelet
    }

    /// Whether a VM keeps CPUs that kubelet gave it while kubelet has no entry for it: it gave them before its policy became `none`.
    pub fn keeps_cpus_without_entry(self) -> bool {
        self == Self::Steliad
    }

    /// Whether containers may still have CPUs that the static policy gave them before it was switched off.
    pub fn may_have_leftovers(self) -> bool {
        self == Self::Steliad
    }

    /// Whether pods' slices are kept off the CPUs of pinned VMs: kubelet does not do it.
    pub fn restricts_pods(self) -> bool {
        self == Self::Steliad
    }

    /// Whether there must be no DRA driver that gives CPUs to containers: neither would know what the other gave.
    pub fn excludes_dra_drivers(self) -> bool {
        self == Self::Steliad
    }

    /// Whether a shared CPU is always left. kubelet may assign every one.
    pub fn leaves_a_shared_cpu(self) -> bool {
        self == Self::Steliad
    }
}
