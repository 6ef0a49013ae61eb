//! How many connections and calls a pod may have.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::rate::{Bucket, Rate};
use super::GateError;
use super::calls::MAX_UNANSWERED_CALLS;
use super::stream::MAX_FDS;

/// Connections of one pod.
const CONNECTIONS_A_POD: usize = 4;
/// Calls a second and pod, in the long run. Large messages count as several, and so does anything else that is sent.
const CALLS_A_SECOND: f64 = 20.0;
/// Calls a pod may make at once. The largest message counts as 32.
const BURST: f64 = 40.0;

/// Calls a second of all pods together, in the long run.
const ALL_CALLS_A_SECOND: f64 = 400.0;
/// Calls of all pods together at once.
const ALL_BURST: f64 = 800.0;
/// A pod that sent nothing for so long takes no share of the calls of all pods.
const LATELY: Duration = Duration::from_secs(10);

/// Descriptors that the daemon needs itself: the bus, epoll, inotify, files being read, children's pipes.
const RESERVE: usize = 256;
/// Descriptors of a connection: the socket, the peer's pidfd, and those of the calls under way and of the one being read.
const DESCRIPTORS_A_CONNECTION: usize = 2 + (MAX_UNANSWERED_CALLS + 1) * MAX_FDS;

/// How many connections fit into this many descriptors: at least enough for two pods, however few descriptors there are.
pub(super) fn connections(descriptors: u64) -> usize {
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    (descriptors.saturating_sub(RESERVE) / DESCRIPTORS_A_CONNECTION).max(2 * CONNECTIONS_A_POD)
}

const OF_A_POD: Rate = Rate {
    a_second: CALLS_A_SECOND,
    burst: BURST,
};
const OF_ALL: Rate = Rate {
    a_second: ALL_CALLS_A_SECOND,
    burst: ALL_BURST,
};

impl Rate {
    /// One of `pods` equal parts of what all pods have together.
    #[allow(clippy::cast_precision_loss)]
    fn share(pods: usize) -> Self {
        let pods = pods.max(1) as f64;
        Self {
            a_second: OF_ALL.a_second / pods,
            // A share of less than one call would never be whole.
            burst: (OF_ALL.burst / pods).max(1.0),
        }
    }
}

#[derive(Debug)]
struct Pod {
    connections: usize,
    /// What it may send, whatever others do.
    own: Bucket,
    /// Its fair part of what all pods may send: within it, it does not wait for other pods.
    share: Bucket,
    /// When it last sent something.
    sent: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct PodCallLimits {
    most: usize,
    shared: Mutex<Shared>,
}

#[derive(Debug)]
struct Shared {
    pods: HashMap<String, Pod>,
    all: Bucket,
}

/// A connection's place; free again when dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limits: Arc<PodCallLimits>,
    pod: String,
}

impl PodCallLimits {
    /// `most`: connections of all pods together.
    pub(super) fn new(most: usize) -> Self {
        let shared = Shared {
            pods: HashMap::new(),
            all: Bucket::full(OF_ALL, Instant::now()),
        };
        Self {
            most,
            shared: Mutex::new(shared),
        }
    }

    /// Take a place for a connection of `pod`.
    ///
    /// One place is kept for each pod in `known`, which has a VM or may get one: connections of others can be idle for ever,
    /// and a runner needs one.
    ///
    /// # Errors
    /// No place is free.
    pub(super) fn connect(
        limits: &Arc<Self>,
        pod: &str,
        known: &BTreeSet<&str>,
        now: Instant,
    ) -> Result<ConnectionPermit, GateError> {
        let mut shared = limits.lock();
        shared.forget(now);
        let connected = |pod: &str| shared.pods.get(pod).map_or(0, |pod| pod.connections);
        let (own, all) = (
            connected(pod),
            shared.pods.values().map(|pod| pod.connections).sum::<usize>(),
        );
        let kept = if own == 0 && known.contains(pod) {
            0
        } else {
            known.iter().filter(|known| connected(known) == 0).count()
        };
        if own >= CONNECTIONS_A_POD || all + kept >= limits.most {
            return Err(GateError::TooManyConnections);
        }
        let share = Rate::share(shared.active(now) + 1);
        let entry = shared.pods.entry(pod.to_owned()).or_insert_with(|| Pod {
            connections: 0,
            own: Bucket::full(OF_A_POD, now),
            share: Bucket::full(share, now),
            sent: None,
        });
        entry.connections += 1;
        // A connection is work too, for which its pod alone pays; not in advance, or a loop of them would lock the pod out
        // for long.
        if entry.own.has_tokens() {
            entry.own.spend(1, OF_A_POD, now);
        }
        Ok(ConnectionPermit {
            limits: limits.clone(),
            pod: pod.to_owned(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Counters only: they are consistent even after a panic.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// How many pods sent something lately.
    fn active(&self, now: Instant) -> usize {
        let lately = |pod: &&Pod| {
            pod.sent
                .is_some_and(|sent| now.saturating_duration_since(sent) < LATELY)
        };
        self.pods.values().filter(lately).count()
    }

    /// A pod without connections keeps its buckets only while calls are owed: reconnecting must not buy new ones.
    fn forget(&mut self, now: Instant) {
        let share = Rate::share(self.active(now));
        self.pods.retain(|_, pod| {
            let (own, shared) = (pod.own.is_full(OF_A_POD, now), pod.share.is_full(share, now));
            pod.connections > 0 || !own || !shared
        });
    }
}

impl ConnectionPermit {
    pub(super) fn pod(&self) -> &str {
        &self.pod
    }

    /// Count what messages that began cost.
    pub(super) fn spend(&self, cost: u32, now: Instant) {
        if cost == 0 {
            return;
        }
        let mut shared = self.limits.lock();
        let Shared { pods, all } = &mut *shared;
        if let Some(pod) = pods.get_mut(&self.pod) {
            pod.sent = Some(now);
            pod.own.spend(cost, OF_A_POD, now);
        }
        all.spend(cost, OF_ALL, now);
        let share = Rate::share(shared.active(now));
        if let Some(pod) = shared.pods.get_mut(&self.pod) {
            pod.share.spend(cost, share, now);
        }
    }

    /// How long to leave the socket unread: until the pod's calls are paid for. Only a pod that is above its fair share
    /// waits for what all pods have together; the peer's own buffer fills meanwhile. To be asked again after the wait, since
    /// others may have been faster.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let mut shared = self.limits.lock();
        let rate = Rate::share(shared.active(now));
        let Shared { pods, all } = &mut *shared;
        let Some(pod) = pods.get_mut(&self.pod) else {
            return Duration::ZERO;
        };
        let fair = pod.share.wait(rate, now).min(all.wait(OF_ALL, now));
        pod.own.wait(OF_A_POD, now).max(fair)
    }

    /// The same for what this pod owes itself: before a peer has authenticated it does not wait for other pods.
    pub(super) fn own_wait(&self, now: Instant) -> Duration {
        let mut shared = self.limits.lock();
        let own = shared.pods.get_mut(&self.pod);
        own.map(|pod| pod.own.wait(OF_A_POD, now)).unwrap_or_default()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut shared = self.limits.lock();
        if let Some(pod) = shared.pods.get_mut(&self.pod) {
            pod.connections -= 1;
        }
        shared.forget(Instant::now());
    }
}

#[cfg(test)]
mod tests;
