//! What lies before the ledger's thread. Whoever puts something there never waits, and what is put there while the thread is at work (or
//! waits for a disk) is joined: there is at most one look to take, of what is wanted now.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use stelia_ledger::entry::{Entry, Event};
use stelia_settings::LedgerSettings;
use tokio::sync::oneshot;

use super::wanted::Vms;

/// Events that may lie there; of more it is only known that they are missing.
const NOTES: usize = 256;

/// Why a look is taken; a greater one includes what a lesser one asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Somebody wants the account.
    Query,
    /// The audit's time.
    Audit,
    /// A VM's CPUs, threads or state changed.
    Change,
}

/// What is to be done, everything that lies there at once.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) settings: Option<LedgerSettings>,
    /// What happened, in this order.
    pub(crate) notes: VecDeque<Event>,
    pub(crate) look: Option<(Reason, Vms)>,
    /// Audits that found the former one's look still lying there.
    pub(crate) missed: u64,
    /// Who waits for a look, which is theirs and not the ring's.
    pub(crate) waiting: Vec<oneshot::Sender<Option<Entry>>>,
    pub(crate) stop: bool,
}

impl Work {
    fn is_empty(&self) -> bool {
        self.settings.is_none() && self.notes.is_empty() && self.look.is_none() && !self.stop
    }
}

#[derive(Debug, Default)]
pub(crate) struct Desk {
    work: Mutex<Work>,
    bell: Condvar,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Work> {
        // Each call changes it once, as a whole.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Have a look taken at these VMs.
    pub(crate) fn look(&self, reason: Reason, vms: Vms) {
        let mut work = self.lock();
        let former = work.look.take().map(|(former, _)| former);
        work.missed += u64::from(reason == Reason::Audit && former == Some(Reason::Audit));
        work.look = Some((former.map_or(reason, |former| former.max(reason)), vms));
        self.bell.notify_one();
    }

    /// The same because somebody asks. What is received is what was seen, as an entry; `None`: nothing could be read.
    pub(crate) fn look_for(&self, vms: Vms) -> oneshot::Receiver<Option<Entry>> {
        let (sender, taken) = oneshot::channel();
        self.lock().waiting.push(sender);
        self.look(Reason::Query, vms);
        taken
    }

    /// Have this kept with the next entry.
    pub(crate) fn note(&self, event: Event) {
        let mut work = self.lock();
        if work.notes.len() < NOTES {
            work.notes.push_back(event);
        }
        self.bell.notify_one();
    }

    pub(crate) fn use_settings(&self, settings: LedgerSettings) {
        self.lock().settings = Some(settings);
        self.bell.notify_one();
    }

    /// Have everything kept that lies here, and then the end.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.bell.notify_one();
    }

    /// Wait for work, and take it.
    pub(crate) fn take(&self) -> Work {
        let mut work = self.lock();
        while work.is_empty() {
            work = self.bell.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut *work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_meanwhile_is_one_look_for_the_greatest_reason() {
        let desk = Desk::default();
        desk.look(Reason::Audit, Vms::new());
        desk.look(Reason::Change, Vms::new());
        let mut taken = desk.look_for(Vms::new());
        let work = desk.take();
        assert_eq!(work.look.map(|(reason, _)| reason), Some(Reason::Change));
        assert_eq!((work.missed, work.waiting.len()), (0, 1));
        assert!(taken.try_recv().is_err(), "it was not taken yet");
        for waiting in work.waiting {
            let _ = waiting.send(None);
        }
        assert!(taken.try_recv().is_ok());
    }

    #[test]
    fn an_audit_whose_look_still_lies_there_was_missed() {
        let desk = Desk::default();
        for _ in 0..3 {
            desk.look(Reason::Audit, Vms::new());
        }
        assert_eq!(desk.take().missed, 2);
    }

    #[test]
    fn notes_are_bounded() {
        let desk = Desk::default();
        for by in 0..10_000 {
            desk.note(Event::Clock { by });
        }
        assert_eq!(desk.take().notes.len(), NOTES);
    }
}
