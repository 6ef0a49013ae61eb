//! Which shared CPUs an instance floats on: the names of the policies.

use stelia_cpus::text::named;

named! {
    #[derive(Default)]
    pub enum FloatPolicy {
        /// The whole shared pool.
        Node = "node",
        /// The shared pool within the NUMA nodes of the instance's own CPUs; the whole pool where that has fewer than
        /// `float-min-cpus`.
        Numa = "numa",
        /// The pod's own shared pool (Kubernetes' pod-level resources); as `numa` where it has none, as most pods.
        #[default]
        Pod = "pod",
    }
}
