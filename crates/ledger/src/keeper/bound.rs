//! Bound kernel threads from look to look: what a look says of them it says once, because they are read only where something ran.

use std::collections::{BTreeMap, BTreeSet};

use crate::look::{Bound, Look, Seat, Thread};
use crate::standing::{Known, Open, UNSEEN};

/// Nobody can have begun and ended unseen between two looks that are so near to each other, microseconds: the kernel lets a worker be idle
/// for 5 minutes before it ends (IDLE_WORKER_TIMEOUT in kernel/workqueue.c). A look has a minute of that.
const WATCHED: u64 = 240_000_000;

/// By seat.
#[derive(Debug, Clone, Default)]
pub(super) struct BoundThreads {
    of: BTreeMap<Seat, Seen>,
    /// `up` of the last look.
    looked: Option<u64>,
}

#[derive(Debug, Clone, Default)]
struct Seen {
    /// As they were read last.
    now: BTreeMap<Thread, Bound>,
    /// Each that was there at a look since the seat was written; [`UNSEEN`] where there may have been others.
    seen: BTreeSet<Thread>,
}

impl BoundThreads {
    /// Each look counts, whether it is written or not.
    pub(super) fn take_in(&mut self, look: &Look, open: &BTreeMap<u64, Open>) {
        let is_long = |before: u64| look.up_us.saturating_sub(before) > WATCHED;
        let unwatched = self.looked.is_some_and(is_long);
        self.looked = Some(look.up_us);
        self.of.retain(|seat, _| look.seats.contains_key(seat));
        // What the ring has of them was seen as well: by the daemon before this one, of whose looks no more is known.
        for open in open.values() {
            if let (Some(last), true) = (&open.last, look.seats.contains_key(&open.seat)) {
                let of = self.of.entry(open.seat.clone()).or_insert_with(|| Seen {
                    now: BTreeMap::new(),
                    seen: is_long(last.up).then_some(UNSEEN).into_iter().collect(),
                });
                of.seen.extend(last.counters.bound.keys().copied());
            }
        }
        for (seat, counters) in &look.seats {
            let of = self.of.entry(seat.clone()).or_default();
            if unwatched {
                of.seen.insert(UNSEEN);
            }
            if counters.bound_read || of.now.is_empty() {
                of.now.clone_from(&counters.bound);
            }
            of.seen.extend(of.now.keys().copied());
        }
    }

    /// A reading with the bound threads as they are known, and those that are gone.
    pub(super) fn completed(&self, seat: &Seat, mut now: Known) -> Known {
        if let Some(of) = self.of.get(seat) {
            now.counters.bound.clone_from(&of.now);
            now.gone = of
                .seen
                .iter()
                .filter(|thread| !of.now.contains_key(thread))
                .copied()
                .collect();
        }
        now.counters.bound_read = true;
        now
    }

    /// The seat's reading of the last look is in the ring.
    pub(super) fn written(&mut self, seat: &Seat) {
        if let Some(of) = self.of.get_mut(seat) {
            of.seen = of.now.keys().copied().collect();
        }
    }
}
