//! The kernel's bound threads from look to look. A look has them only where something ran since the look before, and not each look is
//! written.

use std::collections::{BTreeMap, BTreeSet};

use crate::look::{Bound, Look, Seat, Thread};
use crate::standing::{Known, Standing};

/// By seat.
#[derive(Debug, Clone, Default)]
pub(super) struct BoundThreads(BTreeMap<Seat, OfSeat>);

#[derive(Debug, Clone, Default)]
struct OfSeat {
    /// As they were read last.
    now: BTreeMap<Thread, Bound>,
    /// Each that was there at a look since the seat was written.
    seen: BTreeSet<Thread>,
}

impl BoundThreads {
    /// Each look counts, whether it is written or not.
    pub(super) fn take_in(&mut self, look: &Look, standing: &Standing) {
        self.0.retain(|seat, _| look.seats.contains_key(seat));
        for (seat, counters) in &look.seats {
            let known = self.0.entry(seat.clone()).or_default();
            if counters.bound_read {
                known.now.clone_from(&counters.bound);
            }
            known.seen.extend(known.now.keys().copied());
        }
        // What the ring has of them was seen as well.
        for open in standing.seats.values() {
            if let (Some(known), Some(last)) = (self.0.get_mut(&open.seat), &open.last) {
                known.seen.extend(last.counters.bound.keys().copied());
            }
        }
    }

    /// With the bound threads as they are known, and those that are gone.
    pub(super) fn completed(&self, seat: &Seat, mut now: Known) -> Known {
        if let Some(known) = self.0.get(seat) {
            now.counters.bound.clone_from(&known.now);
            let gone = known.seen.iter().filter(|thread| !known.now.contains_key(thread));
            now.gone = gone.copied().collect();
        }
        now.counters.bound_read = true;
        now
    }

    /// The ring has them as they are now.
    pub(super) fn written(&mut self, seat: &Seat) {
        if let Some(known) = self.0.get_mut(seat) {
            known.seen = known.now.keys().copied().collect();
        }
    }
}
