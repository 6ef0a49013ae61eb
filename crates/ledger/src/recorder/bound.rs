//! Tracks bound kernel threads across samples, and whether tasks of a container ended or came. The threads are read only if something ran,
//! and each change is recorded once. A container may have many tasks, so only their sums are recorded.

use std::collections::{BTreeMap, BTreeSet};

use crate::replay::{ENDED_TASKS, FullReading, OpenSeat, UNOBSERVED_THREAD};
use crate::sample::{Bound, CounterSample, Counters, Seat, TaskId};

/// Longest time between two samples, in microseconds, in which no bound thread can start and end unobserved: the kernel lets a worker be
/// idle for 5 minutes before it ends (IDLE_WORKER_TIMEOUT in kernel/workqueue.c). One minute is left for the sample itself.
const MAX_SAMPLE_GAP_US: u64 = 240_000_000;

/// The bound threads of all seats.
#[derive(Debug, Clone, Default)]
pub(super) struct BoundThreads {
    histories: BTreeMap<Seat, BoundHistory>,
    /// `up` of the last sample.
    last_up: Option<u64>,
}

#[derive(Debug, Clone, Default)]
struct BoundHistory {
    /// The threads of the last sample that read them.
    now: BTreeMap<TaskId, Bound>,
    /// All threads of the samples since the seat was written; [`UNOBSERVED_THREAD`] if there may have been others, [`ENDED_TASKS`] if
    /// tasks of the container ended or came.
    since_written: BTreeSet<TaskId>,
}

impl BoundThreads {
    /// Adds a sample, whether or not it is written.
    pub(super) fn add(&mut self, sample: &CounterSample, open: &BTreeMap<u64, OpenSeat>) {
        let is_long_before = |before: u64| sample.up_us.saturating_sub(before) > MAX_SAMPLE_GAP_US;
        let after_long_gap = self.last_up.is_some_and(is_long_before);
        self.last_up = Some(sample.up_us);
        self.histories.retain(|seat, _| sample.seats.contains_key(seat));
        // The threads in the ring were observed by an earlier daemon, whose other samples are lost.
        for open in open.values() {
            if let (Some(last), true) = (&open.last, sample.seats.contains_key(&open.seat)) {
                let history = self.histories.entry(open.seat.clone()).or_insert_with(|| BoundHistory {
                    now: BTreeMap::new(),
                    since_written: is_long_before(last.up)
                        .then_some(UNOBSERVED_THREAD)
                        .into_iter()
                        .collect(),
                });
                history.since_written.extend(last.counters.bound.keys().copied());
            }
        }
        for (seat, counters) in &sample.seats {
            let history = self.histories.entry(seat.clone()).or_default();
            if after_long_gap {
                history.since_written.insert(UNOBSERVED_THREAD);
            }
            if counters.bound_read || history.now.is_empty() {
                history.now.clone_from(&counters.bound);
            }
            history.since_written.extend(history.now.keys().copied());
            history
                .since_written
                .extend(counters.own_incomplete.then_some(ENDED_TASKS));
        }
    }

    /// The seat's reading with the tracked bound threads, and with those that have ended.
    pub(super) fn complete(&self, sample: &CounterSample, seat: &Seat, counters: &Counters) -> FullReading {
        let mut now = FullReading {
            at: sample.at_us,
            up: sample.up_us,
            counters: counters.clone(),
            gone: BTreeSet::new(),
        };
        if let Some(history) = self.histories.get(seat) {
            now.counters.bound.clone_from(&history.now);
            now.gone = history
                .since_written
                .iter()
                .filter(|thread| !history.now.contains_key(thread))
                .copied()
                .collect();
        }
        now.counters.bound_read = true;
        now.counters.own_incomplete = false;
        now
    }

    /// Called when the seat's reading of the last sample is in the ring.
    pub(super) fn written(&mut self, seat: &Seat) {
        if let Some(history) = self.histories.get_mut(seat) {
            history.since_written = history.now.keys().copied().collect();
        }
    }
}
