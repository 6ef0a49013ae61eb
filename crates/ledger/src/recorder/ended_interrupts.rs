//! Interrupts of devices that ended: a driver frees them, and requests them again from 0, when a guest with a passed-through device restarts, or the
//! device is unplugged. What they counted is in no later reading.

use super::EntryRecorder;
use crate::replay::{FullReading, OpenSeat};
use crate::sample::{Counters, Fired};

impl EntryRecorder {
    /// The reading to go on with: this one or, if an interrupt has ended since an earlier one that is not written, that earlier one, which has to be
    /// written first. What such an interrupt counted after that is not known.
    pub(super) fn before_ended_interrupts(
        &self,
        number: u64,
        open: &OpenSeat,
        now: FullReading,
    ) -> (FullReading, bool) {
        let latest = self.latest.get(&number);
        let latest = latest.filter(|latest| loses_counts(open.last.as_ref(), latest, &now.counters));
        latest.map_or((now, false), |latest| (latest.clone(), true))
    }
}

/// Whether `latest` has interrupts that rose since `written` and are not in `now`.
fn loses_counts(written: Option<&FullReading>, latest: &FullReading, now: &Counters) -> bool {
    let written = written.map(|written| &written.counters.devices);
    latest.counters.devices.iter().any(|(irq, fired)| {
        let is_written = written.is_some_and(|written| written.get(irq) == Some(fired));
        !is_written && !now.devices.get(irq).is_some_and(|now| continues(fired, now))
    })
}

/// Whether it may be the same interrupt. As in [`stelia_kernel::counters::interrupts::rise`], a counter that wraps continues.
fn continues(before: &Fired, now: &Fired) -> bool {
    before.name == now.name && now.count.wrapping_sub(before.count) <= u32::MAX / 2
}
