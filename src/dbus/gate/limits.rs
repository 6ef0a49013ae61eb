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

/// A token bucket. Time is passed in.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn refill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + since * CALLS_A_SECOND).min(BURST);
        self.filled = now;
    }
}

#[derive(Debug)]
struct Pod {
    connections: usize,
    bucket: Bucket,
}

/// The limits of all pods.
#[derive(Debug, Default)]
pub struct Limits {
    pods: Mutex<HashMap<String, Pod>>,
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
        let mut pods = limits.lock();
        let all: usize = pods.values().map(|pod| pod.connections).sum();
        let entry = pods.entry(pod.to_owned()).or_insert_with(|| Pod {
            connections: 0,
            bucket: Bucket {
                tokens: BURST,
                filled: Instant::now(),
            },
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

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Pod>> {
        // Counters only: what a panicking holder left is still whole.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Count what messages that began cost.
    pub fn spend(&self, cost: u32, now: Instant) {
        if let Some(pod) = self.limits.lock().get_mut(&self.pod) {
            pod.bucket.refill(now);
            pod.bucket.tokens -= f64::from(cost);
        }
    }

    /// How long to leave the socket unread: until the pod's calls are paid for. The peer's own buffer fills meanwhile.
    pub fn wait(&self, now: Instant) -> Duration {
        let mut pods = self.limits.lock();
        let Some(pod) = pods.get_mut(&self.pod) else {
            return Duration::ZERO;
        };
        pod.bucket.refill(now);
        if pod.bucket.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(-pod.bucket.tokens / CALLS_A_SECOND)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut pods = self.limits.lock();
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
