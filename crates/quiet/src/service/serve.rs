//! Serves one connection after the other: it reads a line with a request, and writes a line with the answer.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::failure::problem;
use crate::files::System;
use crate::order::{MAX_LINE, Order, OrderAnswer, Target};
use crate::request::Request;
use crate::socket_line::{self, LineError};
use crate::trace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stelia_api::attribution::Attribution;
use stelia_api::quiet::Report;
use stelia_cpus::text::excerpt;
use stelia_kernel::cgroup::Cgroups;

use crate::service::carry_out::{Memories, carry_out};
use crate::service::check_order::{Checked, OrderFacts, check, check_target, exclusive};
use crate::service::in_force::InForce;
use crate::service::journal::{Priority, log};
pub use crate::service::peer::ForeignPeer;

/// Timeout of a peer for sending its line, and for reading the answer.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of the foreign peers that are remembered as logged. The list is cleared when it is full.
const MAX_REMEMBERED_PEERS: usize = 64;

/// Why serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// No client connected within the idle timeout.
    Idle,
    /// It was stopped by a signal.
    Stopped,
}

/// Answers requests.
pub struct Server<'a> {
    pub system: System<'a>,
    pub cgroups: &'a dyn Cgroups,
    /// [`crate::irqbalance::SOCKETS`].
    pub sockets: &'a Path,
    /// Decides whether a peer is answered.
    pub admit: &'a dyn Fn(&UnixStream) -> Result<(), ForeignPeer>,
    /// [`PEER_TIMEOUT`].
    pub peer_timeout: Duration,
    /// [`stelia_kernel::clock::now_us`].
    pub clock: &'a dyn Fn() -> u64,
    pub state: ConnectionState,
}

/// State from one connection to the next.
#[derive(Debug, Default)]
pub struct ConnectionState {
    memories: Memories,
    /// Foreign peers that were logged already.
    foreign_peers: BTreeSet<ForeignPeer>,
    /// Why the last request was refused.
    refusal: Option<String>,
}

impl Server<'_> {
    /// Serve until no peer has connected for `idle`, or `stop` can be read. Requests are completed first; a connection that was not
    /// accepted waits for the next start.
    pub fn serve(&mut self, listener: &UnixListener, stop: BorrowedFd<'_>, idle: Duration) -> io::Result<End> {
        let timeout = Timespec {
            tv_sec: i64::try_from(idle.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: idle.subsec_nanos().into(),
        };
        loop {
            let mut sources = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
            ];
            match poll(&mut sources, Some(&timeout)) {
                Ok(0) => return Ok(End::Idle),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(cause) => return Err(cause.into()),
            }
            if !sources[0].revents().is_empty() {
                return Ok(End::Stopped);
            }
            match listener.accept() {
                Ok((stream, _)) => self.serve_connection(stream),
                // The peer has closed the connection.
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                Err(cause) if cause.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(cause) => return Err(cause),
            }
        }
    }

    /// Serve one connection.
    pub fn serve_connection(&mut self, mut stream: UnixStream) {
        if let Err(peer) = (self.admit)(&stream) {
            if self.state.foreign_peers.len() >= MAX_REMEMBERED_PEERS {
                self.state.foreign_peers.clear();
            }
            if self.state.foreign_peers.insert(peer.clone()) {
                let ForeignPeer(text) = peer;
                log(
                    Priority::Warning,
                    &format!("{text} connected, which is not steliad: not answered"),
                );
            }
            return;
        }
        let answer = match socket_line::read(&mut stream, MAX_LINE, self.peer_timeout) {
            Ok(text) => self.answer(&text),
            // The daemon timed out, or ended.
            Err(LineError::Closed) => return,
            Err(error) => OrderAnswer::Refused(format!("no order was received: {error}")),
        };
        self.log_refusal(&answer);
        // It consists of texts and numbers, which can always be written as JSON.
        let text = serde_json::to_string(&answer).unwrap_or_default();
        if let Err(error) = socket_line::write(&mut stream, &text, self.peer_timeout) {
            log(Priority::Warning, &format!("an answer was not taken: {error}"));
            if answer == OrderAnswer::Begun {
                self.remove_count();
            }
        }
    }

    fn answer(&mut self, text: &str) -> OrderAnswer {
        let request: Result<Request, String> = serde_json::from_str(text)
            .map_err(|cause| format!("it is not JSON that is understood: {}", excerpt::cause(&cause)));
        let answer = request.and_then(|request| match request {
            Request::Order(order) => self.carry_out(order).map(OrderAnswer::Done),
            Request::Begin(target) => self.begin(&target).map(|()| OrderAnswer::Begun),
            Request::Finish { own } => self.finish(&own).map(OrderAnswer::Attributed),
        });
        answer.unwrap_or_else(OrderAnswer::Refused)
    }

    fn carry_out(&mut self, order: Order) -> Result<Report, String> {
        let facts = OrderFacts::read(&order, self.cgroups, self.system.files)?;
        let mut checked = check(order, &facts).map_err(|refusal| refusal.to_string())?;
        let before = InForce::load(self.system.store);
        before.retain(&mut checked, &facts);
        let Checked { order, left_out } = checked;
        let mut report = carry_out(self.system, self.sockets, &order, &mut self.state.memories);
        let now = InForce::of(&order);
        if now != before
            && let Err(failure) = now.save(self.system.store)
        {
            problem(&mut report, "", failure);
        }
        Ok(Report { left_out, ..report })
    }

    fn begin(&self, target: &Target) -> Result<(), String> {
        check_target(target, &exclusive(self.cgroups)?).map_err(|refusal| refusal.to_string())?;
        trace::begin(self.system, target, self.clock).map_err(|error| error.to_string())
    }

    fn finish(&self, own: &BTreeSet<i32>) -> Result<Attribution, String> {
        trace::finish(self.system, own, self.clock).map_err(|error| error.to_string())
    }

    /// Remove a count whose caller did not learn that it began.
    fn remove_count(&self) {
        if let Err(error) = trace::remove(self.system) {
            log(Priority::Warning, &error.to_string());
        }
    }

    /// Log a refusal once, because the daemon repeats its order.
    fn log_refusal(&mut self, answer: &OrderAnswer) {
        let reason = match answer {
            OrderAnswer::Refused(reason) => Some(reason.clone()),
            _ => None,
        };
        if let Some(reason) = reason.as_ref().filter(|_| reason != self.state.refusal) {
            log(
                Priority::Warning,
                &format!("an order was refused, and nothing changed: {reason}"),
            );
        }
        self.state.refusal = reason;
    }
}
