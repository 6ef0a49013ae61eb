//! What is counted and timed since the daemon started: atomic numbers, written where things happen and read by
//! Describe. Counting allocates nothing and wakes no task.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use stelia_api::ErrorKind;
use stelia_api::metrics::{BOUNDS_US, Counted, DurationHistogram};
use stelia_model::Trigger;

use super::pass::Numbers;
use crate::caller_rights::Operation;
use stelia_kernel::clock::now_us;

/// The counters; one for the engine and all entry points.
#[derive(Debug)]
pub struct Metrics {
    started_us: u64,
    steps: AtomicU64,
    writes: AtomicU64,
    moves: AtomicU64,
    failed: AtomicU64,
    passes: [Histogram; Trigger::ALL.len()],
    calls: [Histogram; Operation::ALL.len()],
    refusals: [AtomicU64; ErrorKind::ALL.len()],
    follow: Histogram,
    kubelet_usable: AtomicBool,
    kubelet_since_us: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self {
            started_us: now_us(),
            steps: zero(),
            writes: zero(),
            moves: zero(),
            failed: zero(),
            passes: Default::default(),
            calls: Default::default(),
            refusals: Default::default(),
            follow: Histogram::default(),
            kubelet_usable: AtomicBool::default(),
            kubelet_since_us: zero(),
        }
    }
}

impl Metrics {
    pub(super) fn passed(&self, trigger: Trigger, did: Numbers, took: Duration) {
        for (counter, number) in [
            (&self.steps, did.steps),
            (&self.writes, did.writes),
            (&self.moves, did.moves),
            (&self.failed, did.failed),
        ] {
            counter.fetch_add(number.into(), Relaxed);
        }
        self.passes[trigger as usize].observe(took);
    }

    /// Note whether kubelet's file could be used, and since when.
    pub(super) fn saw_kubelet(&self, usable: bool) {
        let was = self.kubelet_usable.swap(usable, Relaxed);
        if was != usable || self.kubelet_since_us.load(Relaxed) == 0 {
            self.kubelet_since_us.store(now_us(), Relaxed);
        }
    }

    /// A pass brought the floats to what kubelet wrote at that time, in microseconds since the epoch.
    pub(super) fn followed_kubelet(&self, written_us: u64) {
        self.follow
            .observe(Duration::from_micros(now_us().saturating_sub(written_us)));
    }

    pub(crate) fn answered(&self, call: Operation, refused: Option<ErrorKind>, took: Duration) {
        self.calls[call as usize].observe(took);
        if let Some(kind) = refused {
            self.refusals[kind as usize].fetch_add(1, Relaxed);
        }
    }

    /// The numbers now. They are read one after the other: a sum may lack what was counted meanwhile.
    pub fn read(&self) -> Counted {
        let named = |names: &[&'static str], histograms: &[Histogram]| {
            let all = names.iter().zip(histograms);
            all.map(|(name, histogram)| ((*name).to_owned(), histogram.read()))
                .collect()
        };
        let refusals = ErrorKind::ALL.iter().zip(&self.refusals);
        Counted {
            started_us: self.started_us,
            steps: self.steps.load(Relaxed),
            writes: self.writes.load(Relaxed),
            moves: self.moves.load(Relaxed),
            failed: self.failed.load(Relaxed),
            passes: named(&Trigger::ALL.map(Trigger::name), &self.passes),
            calls: named(&Operation::ALL.map(Operation::name), &self.calls),
            refusals: refusals
                .map(|(kind, count)| (kind.name().to_owned(), count.load(Relaxed)))
                .collect(),
            follow: self.follow.read(),
            kubelet_since_us: self.kubelet_since_us.load(Relaxed),
        }
    }
}

#[derive(Debug, Default)]
struct Histogram {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn observe(&self, took: Duration) {
        let took = micros(took);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < took);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(took, Relaxed);
    }

    fn read(&self) -> DurationHistogram {
        DurationHistogram {
            counts: self.counts.iter().map(|count| count.load(Relaxed)).collect(),
            sum_us: self.sum_us.load(Relaxed),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket_and_what_is_above_all_to_the_last() {
        let histogram = Histogram::default();
        for us in [0, 1_000, 1_001, 10_000_000, 10_000_001] {
            histogram.observe(Duration::from_micros(us));
        }
        let read = histogram.read();
        assert_eq!((read.counts[0], read.counts[1]), (2, 1));
        assert_eq!((read.counts[BOUNDS_US.len() - 1], read.counts[BOUNDS_US.len()]), (1, 1));
        assert_eq!(read.sum_us, 20_002_002);
    }

    #[test]
    fn every_name_has_its_own_place() {
        for (place, trigger) in Trigger::ALL.iter().enumerate() {
            assert_eq!(*trigger as usize, place);
        }
        for (place, call) in Operation::ALL.iter().enumerate() {
            assert_eq!(*call as usize, place);
        }
        for (place, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, place);
        }
        let read = Metrics::default().read();
        assert_eq!((read.passes.len(), read.calls.len(), read.refusals.len()), (4, 14, 16));
    }

    #[test]
    fn calls_and_refusals_are_counted_by_their_names() {
        let metrics = Metrics::default();
        let took = Duration::from_millis(3);
        metrics.answered(Operation::Register, Some(ErrorKind::NoAnchor), took);
        metrics.answered(Operation::Register, None, took);
        let read = metrics.read();
        assert_eq!(read.calls["register"].counts.iter().sum::<u64>(), 2);
        assert_eq!((read.refusals["NoAnchor"], read.refusals["Busy"]), (1, 0));
    }

    #[test]
    fn kubelets_state_is_so_since_it_changed() {
        let metrics = Metrics::default();
        metrics.saw_kubelet(false);
        let first = metrics.read();
        assert!(first.kubelet_since_us > 0);
        std::thread::sleep(Duration::from_millis(2));
        metrics.saw_kubelet(false);
        assert_eq!(metrics.read().kubelet_since_us, first.kubelet_since_us);
        metrics.saw_kubelet(true);
        assert!(metrics.read().kubelet_since_us > first.kubelet_since_us);
    }
}
