//! How long a client may send nothing: a short time within a request's headers, a longer one between requests.
//!
//! hyper has one timeout for both. kube-scheduler keeps idle connections for 90 s, and a bind fails if it uses one that is being closed here.

use std::future::pending;
use std::io::Result;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// What a connection waits for.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// A request's headers must be complete at this moment.
    Headers(Instant),
    /// A request is being answered.
    Busy,
    /// The answer must be read and the next request begun at this moment.
    Idle(Instant),
}

/// Shared by a connection and the service behind it.
#[derive(Debug, Clone)]
pub(super) struct IdleTimeout {
    phase: Arc<watch::Sender<Phase>>,
    headers: Duration,
    idle: Duration,
}

impl IdleTimeout {
    /// A new connection, whose first request must begin at once.
    pub(super) fn new(headers: Duration, idle: Duration) -> Self {
        Self {
            phase: Arc::new(watch::Sender::new(Phase::Headers(Instant::now() + headers))),
            headers,
            idle,
        }
    }

    /// A request's headers are there.
    pub(super) fn begins(&self) {
        self.phase.send_replace(Phase::Busy);
    }

    /// It is answered.
    pub(super) fn ends(&self) {
        self.phase.send_replace(Phase::Idle(Instant::now() + self.idle));
    }

    fn reads(&self) {
        let begins = Phase::Headers(Instant::now() + self.headers);
        self.phase.send_if_modified(|phase| {
            let idle = matches!(phase, Phase::Idle(_));
            if idle {
                *phase = begins;
            }
            idle
        });
    }

    /// Returns once the client was silent for too long.
    pub(super) async fn overdue(&self) {
        let mut phases = self.phase.subscribe();
        loop {
            let deadline = match *phases.borrow_and_update() {
                Phase::Headers(deadline) | Phase::Idle(deadline) => Some(deadline),
                Phase::Busy => None,
            };
            let passed = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = phases.changed() => {}
                () = passed => return,
            }
        }
    }
}

/// A connection that reports received bytes to its [`IdleTimeout`].
pub(super) struct TimedStream<S> {
    inner: S,
    timeout: IdleTimeout,
}

impl<S> TimedStream<S> {
    pub(super) fn new(inner: S, timeout: IdleTimeout) -> Self {
        Self { inner, timeout }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.timeout.reads();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
