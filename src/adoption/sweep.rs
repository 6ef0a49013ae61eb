//! Lists all containers that match a rule, one listing at a time: a pod can overrun the queue of KVM's events as often as it likes.

use std::time::{Duration, Instant};

use super::budget::PAUSE_FACTOR;
use super::scan;
use super::task::{Adoption, TaskResult};

/// Whether the containers are being listed, and which listing follows.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// When the listing began that is under way.
    since: Option<Instant>,
    /// When the next listing may begin: after a pause [`PAUSE_FACTOR`] times as long as the last one and the scans of what it found took, so
    /// that listings take at most a tenth of a thread's time however often events are lost.
    earliest: Option<Instant>,
    /// Whether it lists only the containers that a rule adopts whole; `None`: no listing follows.
    following: Option<bool>,
}

impl Sweeps {
    /// Request a listing, which begins when it is due.
    fn request(&mut self, only_whole: bool) {
        self.following = Some(only_whole && self.following.unwrap_or(true));
    }

    /// When the next listing is due; `None` if there is none to begin, or one is under way.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let follows = self.following.is_some() && self.since.is_none();
        follows.then(|| self.earliest.unwrap_or(now))
    }

    /// The listing to begin now, if one is due.
    fn begin(&mut self, now: Instant) -> Option<bool> {
        self.due(now).filter(|due| *due <= now)?;
        self.since = Some(now);
        self.following.take()
    }

    /// The listing ended.
    fn finish(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.spent(now.saturating_duration_since(since), now);
        }
    }

    /// A listing, or a scan of a container that it found, took so long.
    pub(super) fn spent(&mut self, took: Duration, now: Instant) {
        let began = now.checked_sub(took).unwrap_or(now);
        let from = self.earliest.map_or(began, |earliest| earliest.max(began));
        self.earliest = Some(from + took + took.saturating_mul(PAUSE_FACTOR));
    }
}

impl Adoption {
    /// List all containers that match a rule, soon; `only_whole`: those that a rule adopts whole.
    pub(super) fn sweep(&mut self, only_whole: bool) {
        self.sweeps.request(only_whole);
    }

    /// Begin the listing that is due.
    pub(super) fn begin_sweep(&mut self, now: Instant) {
        let Some(only_whole) = self.sweeps.begin(now) else {
            return;
        };
        let (system, settings) = (self.engine.system().clone(), self.settings.borrow().clone());
        self.tasks.spawn_blocking(move || {
            let found = scan::containers_with_rule(&system, &settings.policies.adopt, only_whole);
            TaskResult::Swept(found)
        });
    }

    /// A listing ended, or it is not known whether it did.
    pub(super) fn sweep_ended(&mut self, now: Instant) {
        self.sweeps.finish(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_during_a_listing_are_one_more_listing_of_all_that_they_name() {
        let (mut sweeps, now) = (Sweeps::default(), Instant::now());
        assert_eq!(sweeps.begin(now), None);
        sweeps.request(true);
        assert_eq!(sweeps.begin(now), Some(true));
        for only_whole in [true, false, true] {
            sweeps.request(only_whole);
            assert_eq!((sweeps.due(now), sweeps.begin(now)), (None, None));
        }
        sweeps.finish(now);
        assert_eq!(sweeps.begin(now), Some(false));
        sweeps.finish(now);
        assert_eq!(sweeps.begin(now), None);
    }

    #[test]
    fn listings_take_a_tenth_of_the_time_however_often_events_are_lost() {
        let (mut sweeps, began) = (Sweeps::default(), Instant::now());
        let (mut now, mut spent) = (began, Duration::ZERO);
        let (listing, scan) = (Duration::from_millis(30), Duration::from_millis(5));
        while now < began + Duration::from_secs(10) {
            sweeps.request(false);
            now = sweeps.due(now).unwrap();
            assert_eq!(sweeps.begin(now), Some(false));
            now += listing;
            sweeps.finish(now);
            // What the listing found is scanned.
            for _ in 0..20 {
                now += scan;
                sweeps.spent(scan, now);
            }
            spent += listing + 20 * scan;
        }
        sweeps.request(false);
        let all = sweeps.due(now).unwrap() - began;
        assert!(spent * 10 <= all, "{spent:?} in {all:?}");
    }
}
