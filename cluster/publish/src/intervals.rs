//! All times of a publisher: between its requests, and how long it waits.

use std::time::Duration;

/// How long a change waits for others that come with it: one write for a burst.
pub const DEBOUNCE: Duration = Duration::from_millis(200);
/// Between two writes of the object, and of the label.
pub const WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// How long a daemon that is away, or a file that cannot be used, changes nothing: a restart or an upgrade takes seconds.
pub const GRACE_PERIOD: Duration = Duration::from_secs(60);
/// After this, a tenth more or less, what was written is applied again: the API server writes nothing where nothing changed, and what
/// somebody deleted stands again.
pub const REAPPLY_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// A request that takes longer has failed.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Over which the first requests of all nodes are spread.
pub const START_SPREAD: Duration = Duration::from_secs(60);
/// An event that was older when the publisher started is not posted: the API server keeps events for an hour, so it was either posted
/// by the publisher before or is of no use.
pub const MAX_EVENT_AGE: Duration = Duration::from_secs(3600);
