//! Which shared CPUs an instance floats on: the names of the policies.

use stelia_text::named;

/// The choice of shared CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FloatPolicy {
    /// The whole shared pool.
    Node,
    /// The shared pool within the NUMA nodes of the instance's own CPUs; the whole pool where too little is left there.
    Numa,
    /// The pod's own shared pool (Kubernetes' pod-level resources); as `numa` where it has none, as most pods.
    #[default]
    Pod,
}

named!(FloatPolicy {
    Node = "node",
    Numa = "numa",
    Pod = "pod"
});
