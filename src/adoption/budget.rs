//! How much time looks at the containers of one pod may take. A look reads every process and thread of a container, and the pod
//! decides how many there are and how often a VM is made there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;

/// After a look, the next one at the same pod waits this many times as long as the look took: one pod's looks take a tenth of a thread at
/// most.
const REST_FACTOR: u32 = 9;
/// Looks at a time for all pods, so that threads are left for other work that blocks.
const MAX_CONCURRENT_SCANS: usize = 2;

/// The looks of each pod.
#[derive(Debug, Default)]
pub(super) struct Budgets(BTreeMap<PodUid, Budget>);

#[derive(Debug)]
enum Budget {
    Looking { since: Instant },
    Rests { until: Instant },
}

impl Budgets {
    /// When the next look at a container of this pod may begin; `None` as long as other looks have to end first.
    pub(super) fn opens(&self, pod: &PodUid, due: Instant) -> Option<Instant> {
        let looking = self.0.values().filter(|one| matches!(one, Budget::Looking { .. }));
        if looking.count() >= MAX_CONCURRENT_SCANS {
            return None;
        }
        match self.0.get(pod) {
            Some(Budget::Looking { .. }) => None,
            Some(Budget::Rests { until }) => Some(due.max(*until)),
            None => Some(due),
        }
    }

    /// A look at a container of this pod begins.
    pub(super) fn begin(&mut self, pod: &PodUid, now: Instant) {
        // A pod that has rested needs no entry.
        self.0
            .retain(|_, one| !matches!(one, Budget::Rests { until } if *until <= now));
        self.0.insert(pod.clone(), Budget::Looking { since: now });
    }

    /// It ended.
    pub(super) fn end(&mut self, pod: &PodUid, now: Instant) {
        if let Some(Budget::Looking { since }) = self.0.get(pod) {
            let took: Duration = now.saturating_duration_since(*since);
            let until = now + took.saturating_mul(REST_FACTOR);
            self.0.insert(pod.clone(), Budget::Rests { until });
        }
    }

    /// A look ended, and it is not known whose.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("b9e4f71c-64a5-4f8d-8574-{number:012x}")).unwrap()
    }

    #[test]
    fn a_pods_looks_take_a_tenth_of_the_time_however_often_one_is_due() {
        let (mut budgets, began) = (Budgets::default(), Instant::now());
        let (mut now, mut spent) = (began, Duration::ZERO);
        let look = Duration::from_millis(70);
        while now < began + Duration::from_secs(10) {
            now = budgets.opens(&pod(1), now).unwrap();
            budgets.begin(&pod(1), now);
            assert_eq!(budgets.opens(&pod(1), now), None, "one at a time");
            now += look;
            spent += look;
            budgets.end(&pod(1), now);
            // Another pod does not wait for it.
            assert_eq!(budgets.opens(&pod(2), now), Some(now));
        }
        assert!(spent <= Duration::from_secs(1) + 2 * look, "{spent:?} in 10 s");
    }

    #[test]
    fn looks_at_many_pods_leave_threads_for_other_work() {
        let (mut budgets, now) = (Budgets::default(), Instant::now());
        for number in 1..=2 {
            assert_eq!(budgets.opens(&pod(number), now), Some(now));
            budgets.begin(&pod(number), now);
        }
        assert_eq!(budgets.opens(&pod(3), now), None);
        budgets.end(&pod(1), now);
        assert_eq!(budgets.opens(&pod(3), now), Some(now));
    }
}
