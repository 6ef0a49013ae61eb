//! The names of the refusals that neither kubelet nor steliad makes: too little is known of the node, or of the pods on their way.

/// kubelet never reports it, because it hangs or crashes; or nobody asked.
pub(crate) const NO_ANSWER: &str = "NoAnswer";
/// The node has no object.
pub const NO_OBJECT: &str = "NoObject";
/// The node's object does not show pods that were bound long ago.
pub const NODE_SILENT: &str = "NodeSilent";
pub(super) const PODS_ON_THEIR_WAY: &str = "PodsOnTheirWay";
