//! Nodes on which no pod is placed: without a usable object, or silent.

use super::records::NodeRecord;
use super::{Moment, Reservations, Rules, SILENCE_TIMEOUT};

/// Why no pod at all is placed on a node now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("the node has no NodeResourceTopology object that can be used")]
    NoObject,
    #[error("the node is silent: its object does not show pods that were bound more than {} s ago", SILENCE_TIMEOUT.as_secs())]
    Silent,
}

impl<R: Rules> Reservations<R> {
    /// Whether pods may be placed on the node now.
    ///
    /// # Errors
    /// Why not.
    pub fn available(&self, node: &str, now: Moment) -> Result<(), Unavailable> {
        let known = self.nodes.get(node).filter(|known| known.usable);
        let known = known.ok_or(Unavailable::NoObject)?;
        if known.is_silent(now) {
            Err(Unavailable::Silent)
        } else {
            Ok(())
        }
    }
}

impl NodeRecord {
    /// Whether the node's object has not shown a bound pod for [`SILENCE_TIMEOUT`].
    pub(super) fn is_silent(&self, now: Moment) -> bool {
        self.silent_after.is_some_and(|at| now > at)
    }
}
