//! Where an instance is in its life, as the property `State` has it.

use stelia_text::named;

/// A value of the property `State`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The scope exists; the container's processes are being moved to float.
    Registered,
    /// Everything but the anchor runs on shared CPUs.
    Floating,
    /// The vCPU threads are in a partition of their own, as read back from the kernel.
    Isolated,
    /// The vCPU threads are pinned, without a partition: other tasks are kept off by `AllowedCPUs=` of other units only.
    Contained,
    /// Being deregistered: processes return to the origin, CPUs are released.
    Leaving,
}

named!(State {
    Registered = "registered",
    Floating = "floating",
    Isolated = "isolated",
    Contained = "contained",
    Leaving = "leaving"
});
