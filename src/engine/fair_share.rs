//! How often the engine looked at each pod's instance recently. A pod with many looks waits a few turns for pods with few.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stelia_kubelet::PodUid;

/// The time in which a look loses half of its weight.
const HALF_LIFE: Duration = Duration::from_secs(4);
/// Weights below this are forgotten.
const MIN_WEIGHT: f64 = 0.5;
/// Looks that never make a pod wait: a VM's start takes about a dozen.
const FREE_LOOKS: f64 = 40.0;
/// Steps that weigh as much as one look.
const STEPS_PER_UNIT: f64 = 64.0;
/// Tasks listed by a look that weigh as much as another look: a look at 512 threads weighs as much as 3 at none.
const TASKS_PER_UNIT: f64 = 256.0;
/// A pod waits for others where the weight of its looks is more than this many times theirs.
const MAX_RATIO: f64 = 2.0;

#[derive(Debug, Clone, Copy)]
struct Weight {
    looks: f64,
    at: Instant,
}

impl Weight {
    fn at(self, now: Instant) -> f64 {
        let half_lives = now.saturating_duration_since(self.at).div_duration_f64(HALF_LIFE);
        self.looks * (-half_lives).exp2()
    }
}

/// The looks at each pod's instance; the older a look is, the less it weighs. Looks at an instance that ended are kept, because
/// otherwise a pod could clear its count by leaving.
#[derive(Debug, Default)]
pub(super) struct RecentLooks(BTreeMap<PodUid, Weight>);

impl RecentLooks {
    /// Count a look at the pod's instance that listed so many tasks.
    pub(super) fn add(&mut self, pod: &PodUid, tasks: usize, now: Instant) {
        self.add_weight(pod, 1.0 + tasks as f64 / TASKS_PER_UNIT, now);
    }

    /// Count steps that were applied for the pod's instance.
    pub(super) fn add_steps(&mut self, pod: &PodUid, steps: u32, now: Instant) {
        self.add_weight(pod, f64::from(steps) / STEPS_PER_UNIT, now);
    }

    fn add_weight(&mut self, pod: &PodUid, looks: f64, now: Instant) {
        let weight = Weight {
            looks: self.of(pod, now) + looks,
            at: now,
        };
        self.0.insert(pod.clone(), weight);
    }

    /// Forget pods whose looks have lost their weight.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, weight| weight.at(now) >= MIN_WEIGHT);
    }

    fn of(&self, pod: &PodUid, now: Instant) -> f64 {
        self.0.get(pod).map_or(0.0, |weight| weight.at(now))
    }

    /// The weight of looks up to which a pod does not wait for these pods.
    pub(super) fn allowed<'a>(&self, pods: impl Iterator<Item = &'a PodUid>, now: Instant) -> f64 {
        let least = pods.map(|pod| self.of(pod, now)).min_by(f64::total_cmp);
        FREE_LOOKS.max(least.unwrap_or_default() * MAX_RATIO)
    }

    /// Whether the looks at a pod's instance weigh more than `allowed`.
    pub(super) fn exceeds(&self, allowed: f64, pod: &PodUid, now: Instant) -> bool {
        self.of(pod, now) > allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    #[test]
    fn a_pod_with_many_looks_waits_until_it_has_been_quiet() {
        let (mut recent, now) = (RecentLooks::default(), Instant::now());
        let both = [pod(1), pod(2)];
        (0..200).for_each(|_| recent.add(&pod(1), 0, now));
        (0..12).for_each(|_| recent.add(&pod(2), 0, now));
        let behind = |pods: &[PodUid], one: &PodUid, now| recent.exceeds(recent.allowed(pods.iter(), now), one, now);
        assert!(behind(&both, &pod(1), now) && !behind(&both, &pod(2), now));
        // Without other pods it does not wait.
        assert!(!behind(&both[..1], &pod(1), now));
        let later = now + HALF_LIFE * 3;
        assert!(!behind(&both, &pod(1), later));
        recent.forget_old(now + HALF_LIFE * 20);
        assert!(recent.0.is_empty());
    }

    #[test]
    fn a_look_weighs_more_the_more_tasks_it_lists() {
        let (mut recent, now) = (RecentLooks::default(), Instant::now());
        (0..10).for_each(|_| recent.add(&pod(1), 1024, now));
        (0..10).for_each(|_| recent.add(&pod(2), 8, now));
        let allowed = recent.allowed([pod(1), pod(2)].iter(), now);
        assert!(recent.exceeds(allowed, &pod(1), now) && !recent.exceeds(allowed, &pod(2), now));
    }

    #[test]
    fn pods_with_equally_many_looks_do_not_wait_for_each_other() {
        let (mut recent, now) = (RecentLooks::default(), Instant::now());
        let pods: Vec<PodUid> = (0..5).map(pod).collect();
        for one in &pods {
            (0..300).for_each(|_| recent.add(one, 0, now));
        }
        let allowed = recent.allowed(pods.iter(), now);
        assert!(!pods.iter().any(|pod| recent.exceeds(allowed, pod, now)));
    }
}
