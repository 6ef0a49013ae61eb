//! How long a connection may be silent: not for long in the midst of a request's headers, longer between requests.
//!
//! hyper's own timeout counts both as one, and kube-scheduler keeps an idle connection for 90 s: one that was closed here meanwhile, and is
//! used there at that moment, fails a bind.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Where a connection stands.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// A request's headers are to be there by then.
    Headers(Instant),
    /// It is being answered.
    Busy,
    /// The next one is to begin by then.
    Idle(Instant),
}

/// Shared by a connection and the service behind it.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    phase: Arc<Mutex<Phase>>,
    headers: Duration,
    idle: Duration,
}

impl Pace {
    /// A new connection, whose first request must begin at once.
    pub(super) fn new(headers: Duration, idle: Duration) -> Self {
        Self {
            phase: Arc::new(Mutex::new(Phase::Headers(Instant::now() + headers))),
            headers,
            idle,
        }
    }

    fn phase(&self) -> Phase {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    /// A request's headers are there.
    pub(super) fn begins(&self) {
        self.set(Phase::Busy);
    }

    /// It is answered.
    pub(super) fn ends(&self) {
        self.set(Phase::Idle(Instant::now() + self.idle));
    }

    fn reads(&self) {
        if let Phase::Idle(_) = self.phase() {
            self.set(Phase::Headers(Instant::now() + self.headers));
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.phase() {
            Phase::Headers(deadline) | Phase::Idle(deadline) => Some(deadline),
            Phase::Busy => None,
        }
    }
}

/// A connection that keeps to it.
pub(super) struct Paced<S> {
    inner: S,
    pace: Pace,
    timer: Pin<Box<Sleep>>,
}

impl<S> Paced<S> {
    pub(super) fn new(inner: S, pace: Pace) -> Self {
        let timer = Box::pin(tokio::time::sleep(pace.headers));
        Self { inner, pace, timer }
    }

    /// Where nothing moves: an error once it has been so for too long.
    fn waits<T>(&mut self, cx: &mut Context<'_>) -> Poll<Result<T>> {
        if let Some(deadline) = self.pace.deadline() {
            if self.timer.deadline() != deadline {
                self.timer.as_mut().reset(deadline);
            }
            if self.timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Error::new(
                    ErrorKind::TimedOut,
                    "the client was silent for too long",
                )));
            }
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.pace.reads();
        }
        match read {
            Poll::Pending => self.waits(cx),
            ready => ready,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        match Pin::new(&mut self.inner).poll_write(cx, bytes) {
            // It does not take the answer.
            Poll::Pending => self.waits(cx),
            ready => ready,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match Pin::new(&mut self.inner).poll_flush(cx) {
            Poll::Pending => self.waits(cx),
            ready => ready,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
