//! What the node tells the cluster.

use stelia_cpus::text::named;

named! {
    /// As which profile of the node's object (`docs/node-topology.md`) the daemon tells what is written to the API server, if at all.
    pub enum Publish {
        Off = "off",
        Nrt = "nrt",
        Koordinator = "koordinator",
        Stelia = "stelia",
    }
}
