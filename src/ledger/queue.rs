//! Queues work for the ledger's thread. Adding work never blocks. Work that is added while the thread is busy, or waits for a disk, is
//! merged: there is at most one reading to make, of the newest targets.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use stelia_ledger::entry::{Entry, Event};
use stelia_settings::LedgerSettings;
use tokio::sync::oneshot;

use super::target::Targets;

/// Limit of the events in the queue. Later ones are dropped until the thread takes its work.
const MAX_QUEUED_EVENTS: usize = 256;

/// Why counters are read, in ascending order: a reading for a greater reason also serves the lesser ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReadReason {
    /// A caller requests an account.
    Query,
    /// The engine audits.
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
    /// The number of audits that were queued while the reading of an earlier one was still queued.
    pub(crate) missed_audits: u64,
    /// Callers that wait for a reading. They get it as an entry that is not written to the ring.
    pub(crate) callers: Vec<oneshot::Sender<Option<Entry>>>,
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
        // A panic does not leave the work half changed: each call changes it once.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Request a reading of these targets.
    pub(crate) fn read(&self, reason: ReadReason, targets: Targets) {
        let mut work = self.lock();
        let former = work.reading.take().map(|(former, _)| former);
        work.missed_audits += u64::from(reason == ReadReason::Audit && former == Some(ReadReason::Audit));
        work.reading = Some((former.map_or(reason, |former| former.max(reason)), targets));
        self.added.notify_one();
    }

    /// Request a reading for a caller, who receives it as an entry; `None` if the counters cannot be read.
    pub(crate) fn read_for_caller(&self, targets: Targets) -> oneshot::Receiver<Option<Entry>> {
        let (sender, reading) = oneshot::channel();
        self.lock().callers.push(sender);
        self.read(ReadReason::Query, targets);
        reading
    }

    /// Request that this event be written with the next entry.
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

    /// Request that the thread end after the queued work.
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
        assert_eq!((work.missed_audits, work.callers.len()), (0, 1));
        assert!(reading.try_recv().is_err(), "nothing was read yet");
        for caller in work.callers {
            let _ = caller.send(None);
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
