//! How long a bind, a pod that is gone and a node that shows nothing are waited for.

use std::time::Duration;

/// A node is silent if its object does not show a bound pod for this long: nothing more is placed there
/// until the object changes. The publisher writes at most every 2 s, and retries.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a pod that ended before the object showed it is still counted: twice the delays of daemon and publisher together.
pub const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the UID of a removed pod is remembered, so that a late answer does not bring it back.
pub(super) const UID_RETENTION: Duration = Duration::from_secs(600);
/// A bind whose outcome is unknown for this long is decided by changing the pod's version: see [`Reservations::to_fence`](super::Reservations::to_fence).
pub const FENCE_TIMEOUT: Duration = Duration::from_secs(10);
