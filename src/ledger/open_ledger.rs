//! The open ring with the state of its thread.

use stelia_ledger::day;
use stelia_ledger::entry::Event;
use stelia_ledger::recorder::EntryRecorder;

use super::open_ring::RingWriter;

/// The open ring, with the recorder and its other state.
pub(super) struct OpenLedger {
    pub recorder: EntryRecorder,
    pub writer: Box<dyn RingWriter>,
    /// Time, number and hash of the last entry.
    pub last: Option<(u64, u64, String)>,
    /// The number of the last entry for which this daemon signed a head.
    pub signed: u64,
    /// A signed head that is published once it is written with the next entry.
    pub head: Option<Event>,
    /// Where all VMs are was not written yet in this segment.
    pub located_due: bool,
    /// The last first entry of a segment filled it, so that nothing could follow.
    pub first_fills: bool,
}

impl OpenLedger {
    /// If a day has ended, sign its head, which is written with the next entry.
    pub fn sign(&mut self, now_us: u64) {
        // Each entry is signed once: a head that could not be written stays among the recorder's pending events.
        let Some((last_us, seq, hash)) = self.last.as_ref().filter(|(_, seq, _)| *seq > self.signed) else {
            return;
        };
        let Some(day) = day::day_to_sign(*last_us, now_us) else {
            return;
        };
        let head = self.writer.sign(&day, *seq, hash);
        self.recorder.add_event(head.clone());
        self.signed = *seq;
        self.head = Some(head);
    }
}
