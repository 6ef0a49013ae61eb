//! The work for the ledger's thread. Adding work never blocks. What is added while the thread is busy, or waits for a disk, is merged:
//! there is at most one reading to make, of the newest targets.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use stelia_ledger::entry::{Entry, Event};
use stelia_settings::LedgerSettings;
use tokio::sync::oneshot;

use super::target::Targets;

/// Events that the queue holds at most; later ones are dropped until the thread takes its work.
const MAX_QUEUED_EVENTS: usize = 256;

/// Why counters are read. The order matters: a greater reason includes what a lesser one asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReadReason {
    /// A caller asks for an account.
    Query,
    /// An audit of the engine's.
    Audit,
    /// A VM's CPUs, threads or state changed.
    Change,
}

/// Everything that was queued since the thread last took its work.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) settings: Option<LedgerSettings>,
    /// Events for the next entry, oldest first.
    pub(crate) events: VecDeque<Event>,
    pub(crate) reading: Option<(ReadReason, Targets)>,
    /// Audits that were queued while the reading of the audit before was still queued.
    pub(crate) missed_audits: u64,
    /// Callers that wait for a reading: they get it as an entry that is not written to the ring.
    pub(crate) waiting: Vec<oneshot::Sender<Option<Entry>>>,
    pub(crate) stop: bool,
}

impl Work {
    fn is_empty(&self) -> bool {
        self.settings.is_none() && self.events.is_empty() && self.reading.is_none() && !self.stop
    }
}

/// The queue between the ledger's task and its thread.
#[derive(Debug, Default)]
pub(crate) struct WorkQueue {
    work: Mutex<Work>,
    added: Condvar,
}

impl WorkQueue {
    fn lock(&self) -> MutexGuard<'_, Work> {
        // A panic leaves no half-made change: each call changes the work once, as a whole.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Have the counters of these targets read.
    pub(crate) fn read(&self, reason: ReadReason, targets: Targets) {
        let mut work = self.lock();
        let former = work.reading.take().map(|(former, _)| former);
        work.missed_audits += u64::from(reason == ReadReason::Audit && former == Some(ReadReason::Audit));
        work.reading = Some((former.map_or(reason, |former| former.max(reason)), targets));
        self.added.notify_one();
    }

    /// Have the counters read for a caller, who receives the reading as an entry; `None` where the counters cannot be read.
    pub(crate) fn read_for_caller(&self, targets: Targets) -> oneshot::Receiver<Option<Entry>> {
        let (sender, reading) = oneshot::channel();
        self.lock().waiting.push(sender);
        self.read(ReadReason::Query, targets);
        reading
    }

    /// Have this event written with the next entry.
    pub(crate) fn add_event(&self, event: Event) {
        let mut work = self.lock();
        if work.events.len() < MAX_QUEUED_EVENTS {
            work.events.push_back(event);
        }
        self.added.notify_one();
    }

    pub(crate) fn use_settings(&self, settings: LedgerSettings) {
        self.lock().settings = Some(settings);
        self.added.notify_one();
    }

    /// Have the queued work done, and the thread ended after it.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.added.notify_one();
    }

    /// Wait for work, and take all of it.
    pub(crate) fn take(&self) -> Work {
        let mut work = self.lock();
        while work.is_empty() {
            work = self.added.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut *work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_that_are_queued_together_become_one_with_the_greatest_reason() {
        let queue = WorkQueue::default();
        queue.read(ReadReason::Audit, Targets::new());
        queue.read(ReadReason::Change, Targets::new());
        let mut reading = queue.read_for_caller(Targets::new());
        let work = queue.take();
        assert_eq!(work.reading.map(|(reason, _)| reason), Some(ReadReason::Change));
        assert_eq!((work.missed_audits, work.waiting.len()), (0, 1));
        assert!(reading.try_recv().is_err(), "nothing was read yet");
        for waiting in work.waiting {
            let _ = waiting.send(None);
        }
        assert!(reading.try_recv().is_ok());
    }

    #[test]
    fn an_audit_is_missed_while_the_reading_of_the_one_before_is_queued() {
        let queue = WorkQueue::default();
        for _ in 0..3 {
            queue.read(ReadReason::Audit, Targets::new());
        }
        assert_eq!(queue.take().missed_audits, 2);
    }

    #[test]
    fn queued_events_are_bounded() {
        let queue = WorkQueue::default();
        for by in 0..10_000 {
            queue.add_event(Event::Clock { by });
        }
        assert_eq!(queue.take().events.len(), MAX_QUEUED_EVENTS);
    }
}
