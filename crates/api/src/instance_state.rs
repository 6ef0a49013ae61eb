//! Where an instance is in its life, as the property `State` has it.

use stelia_cpus::text::named;

named! {
    /// A value of the property `State`.
    #[derive(Default, PartialOrd, Ord)]
    pub enum State {
        /// The scope exists; the container's processes are being moved to float.
        #[default]
        Registered = "registered",
        /// Everything but the anchor runs on shared CPUs.
        Floating = "floating",
        /// The vCPU threads are in a partition of their own, as read back from the kernel.
        Isolated = "isolated",
        /// The vCPU threads are pinned, without a partition: other tasks are kept off by `AllowedCPUs=` of other units only.
        Contained = "contained",
        /// Being deregistered: processes return to the origin, CPUs are released.
        Leaving = "leaving",
    }
}
