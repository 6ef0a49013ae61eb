//! A promise to a pod, until its outcome is reported.

use super::Placer;
use crate::reservations::Ticket;

/// A promise that is open. One that is dropped, because the caller closed the connection or the task was ended, is kept as one whose
/// outcome is not known: the binding may be on its way.
pub(super) struct Promise<'a> {
    placer: &'a Placer,
    ticket: Option<Ticket>,
    /// The binding was sent at least once.
    pub(super) sent: bool,
}

impl<'a> Promise<'a> {
    pub(super) fn new(placer: &'a Placer, ticket: Ticket) -> Self {
        Self {
            placer,
            ticket: Some(ticket),
            sent: false,
        }
    }

    /// `None` once its outcome was reported.
    pub(super) fn ticket(&self) -> Option<&Ticket> {
        self.ticket.as_ref()
    }

    pub(super) fn failed(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.placer.state().reservations.bind_failed(&ticket);
        }
    }

    pub(super) fn bound(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let now = self.placer.now();
            self.placer.state().reservations.bind_succeeded(&ticket, now);
        }
    }

    pub(super) fn lost(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let now = self.placer.now();
            self.placer.state().reservations.bind_undecided(&ticket, now);
        }
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if self.sent { self.lost() } else { self.failed() }
    }
}
