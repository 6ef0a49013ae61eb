//! How often a pod may make the engine read its container, or move its processes. An earlier call waits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stelia_cpus::rate::RateLimit;
use stelia_kubelet::PodUid;

/// The limits of each pod.
#[derive(Debug)]
pub(super) struct PodWorkLimits {
    /// Audits. Each reads everything of an instance.
    pub(super) audits: PodLimit,
    /// Registrations, refused ones too. Each reads up to 4096 processes.
    pub(super) registrations: PodLimit,
    /// New instances. Each moves every process of a container. kubelet's default back-off before the second restart of a container is
    /// as long as the interval, so a container that ends again and again is not delayed further.
    pub(super) instances: PodLimit,
}

impl Default for PodWorkLimits {
    fn default() -> Self {
        Self {
            audits: PodLimit::new(1, Duration::from_secs(1)),
            registrations: PodLimit::new(10, Duration::from_secs(1)),
            instances: PodLimit::new(2, Duration::from_secs(10)),
        }
    }
}

impl PodWorkLimits {
    /// Forget the pods of which no call has to wait.
    pub(super) fn forget_old(&mut self, now: Instant) {
        for limit in [&mut self.audits, &mut self.registrations, &mut self.instances] {
            let now = now.saturating_duration_since(limit.began);
            limit.pods.retain(|_, pod| !pod.is_full(now));
        }
    }
}

/// So many calls of a pod in a row, then one in each interval.
#[derive(Debug)]
pub(super) struct PodLimit {
    /// Of a pod without calls.
    fresh: RateLimit,
    /// What the times in `pods` are counted from.
    began: Instant,
    pods: BTreeMap<PodUid, RateLimit>,
}

impl PodLimit {
    fn new(burst: u32, interval: Duration) -> Self {
        Self {
            fresh: RateLimit::new(burst, interval),
            began: Instant::now(),
            pods: BTreeMap::new(),
        }
    }

    /// Count a call of the pod.
    ///
    /// # Errors
    /// The pod has made too many calls: the time from which it may make the next one. This one is not counted.
    pub(super) fn count(&mut self, pod: &PodUid, now: Instant) -> Result<(), Instant> {
        let now = now.saturating_duration_since(self.began);
        let known = self.pods.entry(pod.clone());
        let limit = known.or_insert_with(|| self.fresh.clone());
        let ready_at = limit.ready_at();
        if ready_at > now {
            return Err(self.began + ready_at);
        }
        limit.take(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    #[test]
    fn a_pod_that_calls_often_waits_and_others_do_not() {
        let (mut rate, now) = (PodLimit::new(2, INTERVAL), Instant::now());
        for _ in 0..2 {
            assert_eq!(rate.count(&pod(1), now), Ok(()));
        }
        assert_eq!(rate.count(&pod(1), now), Err(now + INTERVAL));
        assert_eq!(rate.count(&pod(2), now), Ok(()));
        // A call that is not counted does not make the next one wait for longer.
        let soon = now + INTERVAL / 2;
        assert_eq!(rate.count(&pod(1), soon), Err(now + INTERVAL));
        assert_eq!(rate.count(&pod(1), now + INTERVAL), Ok(()));
        assert_eq!(rate.count(&pod(1), now + INTERVAL), Err(now + INTERVAL * 2));
        // After a pause it may make as many in a row as at first, and no more.
        let later = now + INTERVAL * 100;
        assert_eq!(
            [later; 3].map(|at| rate.count(&pod(1), at).is_ok()),
            [true, true, false]
        );
    }

    #[test]
    fn a_pod_that_need_not_wait_is_forgotten() {
        let (mut rates, now) = (PodWorkLimits::default(), Instant::now());
        rates.audits.count(&pod(1), now).unwrap();
        rates.instances.count(&pod(1), now).unwrap();
        rates.forget_old(now + Duration::from_secs(5));
        assert_eq!((rates.audits.pods.len(), rates.instances.pods.len()), (0, 1));
        rates.forget_old(now + INTERVAL);
        assert!(rates.instances.pods.is_empty());
    }
}
