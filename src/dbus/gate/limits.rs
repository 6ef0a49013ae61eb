//! How many connections and calls a pod may have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::GateError;

/// Connections of one pod.
const CONNECTIONS_A_POD: usize = 4;
/// Connections in all.
const CONNECTIONS: usize = 256;
/// Calls a second and pod, in the long run. Large messages count as several, and so does anything else that is sent.
const CALLS_A_SECOND: f64 = 20.0;
/// Calls a pod may make at once. The largest message counts as 32.
const BURST: f64 = 40.0;

/// Calls a second of all pods together, in the long run.
const ALL_CALLS_A_SECOND: f64 = 400.0;
/// Calls of all pods together at once.
const ALL_BURST: f64 = 800.0;

/// A token bucket. Time is passed in.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
    a_second: f64,
    burst: f64,
}

impl Bucket {
    fn new(a_second: f64, burst: f64) -> Self {
        Self {
            tokens: burst,
            filled: Instant::now(),
            a_second,
            burst,
        }
    }

    fn refill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + since * self.a_second).min(self.burst);
        self.filled = now;
    }

    /// How long until nothing is owed.
    fn wait(&mut self, now: Instant) -> Duration {
        self.refill(now);
        Duration::from_secs_f64((-self.tokens / self.a_second).max(0.0))
    }
}

#[derive(Debug)]
struct Pod {
    connections: usize,
    bucket: Bucket,
}

/// The limits of all pods.
#[derive(Debug)]
pub struct Limits {
    shared: Mutex<Shared>,
}

#[derive(Debug)]
struct Shared {
    pods: HashMap<String, Pod>,
    all: Bucket,
}

impl Default for Limits {
    fn default() -> Self {
        let shared = Shared {
            pods: HashMap::new(),
            all: Bucket::new(ALL_CALLS_A_SECOND, ALL_BURST),
        };
        Self {
            shared: Mutex::new(shared),
        }
    }
}

/// A connection's place; free again when dropped.
#[derive(Debug)]
pub struct Slot {
    limits: Arc<Limits>,
    pod: String,
}

impl Limits {
    /// Take a place.
    ///
    /// # Errors
    /// None is free.
    pub fn connect(limits: &Arc<Self>, pod: &str) -> Result<Slot, GateError> {
        let pods = &mut limits.lock().pods;
        let all: usize = pods.values().map(|pod| pod.connections).sum();
        let entry = pods.entry(pod.to_owned()).or_insert_with(|| Pod {
            connections: 0,
            bucket: Bucket::new(CALLS_A_SECOND, BURST),
        });
        if all >= CONNECTIONS || entry.connections >= CONNECTIONS_A_POD {
            return Err(GateError::TooManyConnections);
        }
        entry.connections += 1;
        Ok(Slot {
            limits: limits.clone(),
            pod: pod.to_owned(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Counters only: what a panicking holder left is still whole.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Count what messages that began cost.
    pub fn spend(&self, cost: u32, now: Instant) {
        let mut shared = self.limits.lock();
        let Shared { pods, all } = &mut *shared;
        let own = pods.get_mut(&self.pod).map(|pod| &mut pod.bucket);
        for bucket in own.into_iter().chain([all]) {
            bucket.refill(now);
            bucket.tokens -= f64::from(cost);
        }
    }

    /// How long to leave the socket unread: until the calls of the pod, and of all pods, are paid for. The peer's own buffer
    /// fills meanwhile.
    pub fn wait(&self, now: Instant) -> Duration {
        let mut shared = self.limits.lock();
        let all = shared.all.wait(now);
        let own = shared.pods.get_mut(&self.pod).map(|pod| pod.bucket.wait(now));
        all.max(own.unwrap_or_default())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let pods = &mut self.limits.lock().pods;
        if let Some(pod) = pods.get_mut(&self.pod) {
            pod.connections -= 1;
        }
        // A pod that left keeps its bucket only while calls are owed: reconnecting must not buy new ones.
        let now = Instant::now();
        pods.retain(|_, pod| {
            pod.bucket.refill(now);
            pod.connections > 0 || pod.bucket.tokens < BURST
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_connection_of_a_pod_waits_for_one_to_end_and_another_pod_does_not() {
        let limits = Arc::new(Limits::default());
        let mut slots: Vec<Slot> = (0..4).map(|_| Limits::connect(&limits, "a").unwrap()).collect();
        assert_eq!(
            Limits::connect(&limits, "a").unwrap_err(),
            GateError::TooManyConnections
        );
        assert!(Limits::connect(&limits, "b").is_ok());
        slots.pop();
        assert!(Limits::connect(&limits, "a").is_ok());
    }

    #[test]
    fn calls_beyond_the_burst_are_paid_for_with_time_by_all_connections_of_the_pod() {
        let limits = Arc::new(Limits::default());
        let (one, two) = (
            Limits::connect(&limits, "a").unwrap(),
            Limits::connect(&limits, "a").unwrap(),
        );
        let now = Instant::now();
        one.spend(60, now);
        assert!(two.wait(now) > Duration::from_millis(900), "{:?}", two.wait(now));
        assert_eq!(two.wait(now + Duration::from_secs(2)), Duration::ZERO);
    }

    #[test]
    fn many_pods_that_each_keep_to_their_limit_wait_for_each_other() {
        let limits = Arc::new(Limits::default());
        let now = Instant::now();
        let slots: Vec<Slot> = (0..40)
            .map(|n| Limits::connect(&limits, &format!("{n}")).unwrap())
            .collect();
        slots.iter().for_each(|slot| slot.spend(40, now));
        // 1600 calls: 800 at once and 2 s for the rest. None owes anything of its own.
        let wait = slots[0].wait(now);
        assert!(
            wait > Duration::from_millis(1900) && wait <= Duration::from_secs(2),
            "{wait:?}"
        );
        assert_eq!(slots[0].wait(now + Duration::from_secs(3)), Duration::ZERO);
    }

    #[test]
    fn all_pods_together_have_a_bound() {
        let limits = Arc::new(Limits::default());
        let slots: Vec<Slot> = (0..CONNECTIONS)
            .map(|n| Limits::connect(&limits, &format!("{n}")).unwrap())
            .collect();
        assert!(Limits::connect(&limits, "one more").is_err());
        drop(slots);
        assert!(Limits::connect(&limits, "one more").is_ok());
    }
}
