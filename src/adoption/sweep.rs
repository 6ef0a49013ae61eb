//! Lists all containers that match a rule, one listing at a time: a pod can overrun the queue of KVM's events as often as it likes.

use std::time::{Duration, Instant};

use super::budget::PAUSE_FACTOR;
use super::scan;
use super::task::{Adoption, TaskResult};

/// Which containers a listing is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listing {
    /// Those that a rule matches.
    All,
    /// Those that a rule adopts whole.
    WholeContainers,
}

/// Whether the containers are being listed, and which listing follows.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// When the listing began that is under way.
    began: Option<Instant>,
    /// When the next listing may begin: after a pause [`PAUSE_FACTOR`] times as long as the last one and the scans of what it found took, so
    /// that listings take at most a tenth of a thread's time however often events are lost.
    earliest: Option<Instant>,
    /// The listing that follows.
    following: Option<Listing>,
}

impl Sweeps {
    /// Request a listing, which begins when it is due.
    fn request(&mut self, listing: Listing) {
        if self.following != Some(Listing::All) {
            self.following = Some(listing);
        }
    }

    /// When the next listing is due; `None` if there is none to begin, or one is under way.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let follows = self.following.is_some() && self.began.is_none();
        follows.then(|| self.earliest.unwrap_or(now))
    }

    /// The listing to begin now, if one is due.
    fn begin(&mut self, now: Instant) -> Option<Listing> {
        self.due(now).filter(|due| *due <= now)?;
        self.began = Some(now);
        self.following.take()
    }

    /// The listing ended.
    fn finish(&mut self, now: Instant) {
        if let Some(began) = self.began.take() {
            self.spent(now.saturating_duration_since(began), now);
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
    /// Makes a listing soon.
    pub(super) fn sweep(&mut self, listing: Listing) {
        self.sweeps.request(listing);
    }

    /// Begin the listing that is due.
    pub(super) fn begin_sweep(&mut self, now: Instant) {
        let Some(listing) = self.sweeps.begin(now) else {
            return;
        };
        let (system, settings) = (self.engine.system().clone(), self.settings.borrow().clone());
        self.tasks.spawn_blocking(move || {
            let found = scan::containers_with_rule(&system, &settings.policies.adopt, listing);
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
        sweeps.request(Listing::WholeContainers);
        assert_eq!(sweeps.begin(now), Some(Listing::WholeContainers));
        for listing in [Listing::WholeContainers, Listing::All, Listing::WholeContainers] {
            sweeps.request(listing);
            assert_eq!((sweeps.due(now), sweeps.begin(now)), (None, None));
        }
        sweeps.finish(now);
        assert_eq!(sweeps.begin(now), Some(Listing::All));
        sweeps.finish(now);
        assert_eq!(sweeps.begin(now), None);
    }

    #[test]
    fn listings_take_a_tenth_of_the_time_however_often_events_are_lost() {
        let (mut sweeps, began) = (Sweeps::default(), Instant::now());
        let (mut now, mut spent) = (began, Duration::ZERO);
        let (listing, scan) = (Duration::from_millis(30), Duration::from_millis(5));
        while now < began + Duration::from_secs(10) {
            sweeps.request(Listing::All);
            now = sweeps.due(now).unwrap();
            assert_eq!(sweeps.begin(now), Some(Listing::All));
            now += listing;
            sweeps.finish(now);
            // What the listing found is scanned.
            for _ in 0..20 {
                now += scan;
                sweeps.spent(scan, now);
            }
            spent += listing + 20 * scan;
        }
        sweeps.request(Listing::All);
        let all = sweeps.due(now).unwrap() - began;
        assert!(spent * 10 <= all, "{spent:?} in {all:?}");
    }
}
