//! The part of a connection that exists as long as its peer is connected.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::calls::{Calls, SignalWrite};
use super::cut_off_log::Cuts;
use super::pod_call_limits::ConnectionPermit;

/// A connection without zbus's part. For zbus it is the socket.
///
/// A runner asks a few things when its VM starts and is silent until that ends, while what zbus keeps for a connection is
/// many times as large as this. So a connection on which nothing is under way rests: zbus is told that it ended, and is given
/// it anew ([`GatedSocket::again`](super::GatedSocket::again)) when the peer sends something or is to be told something. The
/// peer notices nothing.
#[derive(Debug)]
pub struct PeerConnection {
    pub(super) stream: UnixStream,
    pub(super) permit: ConnectionPermit,
    pub(super) cuts: Arc<Cuts>,
    pub(super) calls: Calls,
}

impl PeerConnection {
    pub(super) fn new(stream: UnixStream, permit: ConnectionPermit, cuts: Arc<Cuts>) -> Self {
        Self {
            stream,
            permit,
            cuts,
            calls: Calls::default(),
        }
    }

    /// Whether the connection rests, or is not yet awake again.
    pub fn is_resting(&self) -> bool {
        self.calls.is_resting()
    }

    /// It is awake: what is written goes to the peer, and what the peer sends is read.
    pub fn wake(&self) {
        self.calls.wake();
    }

    /// Begin to write a message that answers no call: until the guard is dropped the connection does not rest. `None` when it
    /// rests already.
    pub fn tell(&self) -> Option<SignalWrite<'_>> {
        self.calls.tell()
    }

    /// While it rests: wait until the peer has sent something and its pod has paid for its calls; false when the peer closed
    /// the connection.
    pub async fn is_called(&self) -> bool {
        let look = || match rustix::net::recv(&self.stream, &mut [0; 1], RecvFlags::PEEK)? {
            (_, 0) => Err(io::Error::from(ErrorKind::UnexpectedEof)),
            _ => Ok(()),
        };
        if self.stream.async_io(Interest::READABLE, look).await.is_err() {
            return false;
        }
        loop {
            let wait = self.permit.wait(Instant::now());
            if wait.is_zero() {
                return true;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.left() => return false,
            }
        }
    }

    /// Wait until the peer has closed its end. What it sent before may still be unread: a peer that left needs no
    /// answer.
    pub(super) async fn left(&self) {
        loop {
            // This interest is woken by a closed stream, as the one in reading is, and not by bytes to read, so it does not
            // end at once. A failure means that the runtime ends.
            match self.stream.ready(Interest::PRIORITY).await {
                Ok(ready) if !ready.is_read_closed() => tokio::time::sleep(Duration::from_millis(100)).await,
                _ => return,
            }
        }
    }
}
