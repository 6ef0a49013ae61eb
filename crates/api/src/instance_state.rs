//! Where an instance is in its life, as the property `State` has it.

use stelia_cpus::text::named;

named! {
    /// A value of the property `State`.
    #[derive(Default, PartialOrd, Ord)]
    pub enum State {
        /// Registered, and not isolated yet: all threads run on shared CPUs.
        #[default]
        Waiting = "waiting",
        /// The vCPU threads are in a partition of their own, as read back from the kernel.
        Isolated = "isolated",
        /// The vCPU threads are pinned, without a partition: other tasks are kept off by `AllowedCPUs=` of other units only.
        Pinned = "pinned",
        /// Its class, LS or BE, has no CPUs of its own: all threads run on shared CPUs.
        Shared = "shared",
        /// kubelet gave its CPUs to another pod: all threads run on shared CPUs.
        Evicted = "evicted",
        /// Being deregistered: processes return to the container's own cgroup, CPUs are released.
        Releasing = "releasing",
    }
}
