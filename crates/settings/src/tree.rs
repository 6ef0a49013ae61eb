//! Where the cgroups of an instance are made.

use stelia_text::named;

/// Where an instance's `float` and `vcpu` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeHome {
    /// In a scope of its own in `stelia.slice`. The container's processes are moved there; an anchor stays behind.
    Slice,
    /// In the container's own cgroup: no process leaves its container, and memory, limits and devices stay the pod's.
    InPlace,
}

named!(TreeHome {
    Slice = "slice",
    InPlace = "in-place"
});
