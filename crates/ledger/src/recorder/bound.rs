//! Bound kernel threads across samples: each change is recorded once, because they are read only where something ran.

use std::collections::{BTreeMap, BTreeSet};

use crate::replay::{FullReading, OpenSeat, UNOBSERVED_THREAD};
use crate::sample::{Bound, CounterSample, Seat, Thread};

/// Between two samples closer than this, in microseconds, no bound thread can start and end unobserved: the kernel lets a worker be idle
/// for 5 minutes before it ends (IDLE_WORKER_TIMEOUT in kernel/workqueue.c). One minute is left for the sample itself.
const MAX_WATCH_GAP_US: u64 = 240_000_000;

/// By seat.
#[derive(Debug, Clone, Default)]
pub(super) struct BoundThreads {
    of: BTreeMap<Seat, BoundHistory>,
    /// `up` of the last sample.
    last_up: Option<u64>,
}

#[derive(Debug, Clone, Default)]
struct BoundHistory {
    /// The last readings.
    now: BTreeMap<Thread, Bound>,
    /// Each thread that a sample had since the seat was written; [`UNOBSERVED_THREAD`] if there may have been others.
    since_written: BTreeSet<Thread>,
}

impl BoundThreads {
    /// Each sample counts, whether it is written or not.
    pub(super) fn take_in(&mut self, sample: &CounterSample, open: &BTreeMap<u64, OpenSeat>) {
        let is_long = |before: u64| sample.up_us.saturating_sub(before) > MAX_WATCH_GAP_US;
        let unwatched = self.last_up.is_some_and(is_long);
        self.last_up = Some(sample.up_us);
        self.of.retain(|seat, _| sample.seats.contains_key(seat));
        // Threads in the ring were observed too, by an earlier daemon whose samples are not known otherwise.
        for open in open.values() {
            if let (Some(last), true) = (&open.last, sample.seats.contains_key(&open.seat)) {
                let of = self.of.entry(open.seat.clone()).or_insert_with(|| BoundHistory {
                    now: BTreeMap::new(),
                    since_written: is_long(last.up).then_some(UNOBSERVED_THREAD).into_iter().collect(),
                });
                of.since_written.extend(last.counters.bound.keys().copied());
            }
        }
        for (seat, counters) in &sample.seats {
            let of = self.of.entry(seat.clone()).or_default();
            if unwatched {
                of.since_written.insert(UNOBSERVED_THREAD);
            }
            if counters.bound_read || of.now.is_empty() {
                of.now.clone_from(&counters.bound);
            }
            of.since_written.extend(of.now.keys().copied());
        }
    }

    /// A reading with the bound threads as they are known, and those that are gone.
    pub(super) fn completed(&self, seat: &Seat, mut now: FullReading) -> FullReading {
        if let Some(of) = self.of.get(seat) {
            now.counters.bound.clone_from(&of.now);
            now.gone = of
                .since_written
                .iter()
                .filter(|thread| !of.now.contains_key(thread))
                .copied()
                .collect();
        }
        now.counters.bound_read = true;
        now
    }

    /// The seat's reading of the last sample is in the ring.
    pub(super) fn written(&mut self, seat: &Seat) {
        if let Some(of) = self.of.get_mut(seat) {
            of.since_written = of.now.keys().copied().collect();
        }
    }
}
