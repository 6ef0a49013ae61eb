//! The socket zbus reads and writes through.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use zbus::connection::socket::{ReadHalf, Socket, Split, WriteHalf};
use zbus::export::async_trait::async_trait;
use zbus::fdo::ConnectionCredentials;

use super::GateError;
use super::calls::{Answers, Calls};
use super::cuts::Cuts;
use super::greeting::{Greeting, Outgoing};
use super::limits::Slot;
use super::stream::{MAX_FDS, Stream};

/// A peer that takes nothing for this long is cut off: what it does not read must not pile up here.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
/// A message that is not whole after this long ends its connection: memory is held for it.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(5);

/// A connection that went through the gate.
#[derive(Debug)]
pub struct GatedSocket {
    stream: Arc<UnixStream>,
    slot: Slot,
    cuts: Arc<Cuts>,
}

/// The reading half; it owns the connection's place.
#[derive(Debug)]
pub struct Reader {
    stream: Arc<UnixStream>,
    gate: Stream,
    slot: Slot,
    cuts: Arc<Cuts>,
    calls: Arc<Calls>,
    /// When the message that is being read began.
    began: Option<Instant>,
}

/// The writing half.
#[derive(Debug)]
pub struct Writer {
    stream: Arc<UnixStream>,
    greeting: Greeting,
    calls: Arc<Calls>,
    answers: Answers,
}

impl GatedSocket {
    pub(super) fn new(stream: UnixStream, slot: Slot, cuts: Arc<Cuts>) -> Self {
        Self {
            stream: Arc::new(stream),
            slot,
            cuts,
        }
    }
}

impl Socket for GatedSocket {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let calls = Arc::<Calls>::default();
        let reader = Reader {
            stream: self.stream.clone(),
            gate: Stream::default(),
            slot: self.slot,
            cuts: self.cuts,
            calls: calls.clone(),
            began: None,
        };
        let writer = Writer {
            stream: self.stream,
            greeting: Greeting::default(),
            calls,
            answers: Answers::default(),
        };
        Split::new(reader, writer)
    }
}

/// zbus asks the half it happens to hold, so both must answer.
fn credentials(stream: &UnixStream) -> io::Result<ConnectionCredentials> {
    let peer = stream.peer_cred()?;
    let mut credentials = ConnectionCredentials::default().set_unix_user_id(peer.uid());
    if let Some(pid) = peer.pid().and_then(|pid| u32::try_from(pid).ok()) {
        credentials = credentials.set_process_id(pid);
    }
    Ok(credentials)
}

fn receive(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        stream,
        &mut [IoSliceMut::new(buffer)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(cut(GateError::TooManyFds));
    }
    Ok((received.bytes, fds))
}

fn cut(error: GateError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Wait until the peer has closed its end. What it sent before may be unread still: whoever is gone needs no answer.
async fn left(stream: &UnixStream) {
    loop {
        // This interest is told of a closed stream, as the one in reading is, and not of bytes to read, so it does not end at
        // once. A failure is the runtime's end.
        match stream.ready(Interest::PRIORITY).await {
            Ok(ready) if !ready.is_read_closed() => tokio::time::sleep(Duration::from_millis(100)).await,
            _ => return,
        }
    }
}

#[async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let read = self.read(buffer).await;
        if let Err(error) = &read {
            let gate = error.get_ref().and_then(|cause| cause.downcast_ref::<GateError>());
            if let Some(error) = gate {
                self.cuts.cut(self.slot.pod(), error);
            }
            // The peer learns of it now, not when the last holder of the connection lets go.
            let _ = rustix::net::shutdown(self.stream.as_fd(), rustix::net::Shutdown::Both);
        }
        read
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }

    async fn peer_credentials(&mut self) -> io::Result<ConnectionCredentials> {
        credentials(&self.stream)
    }
}

impl Reader {
    /// Wait until this connection, its pod and all pods together have room for one message more: before a message and not
    /// within one, so that nothing is in hand meanwhile. The bytes before BEGIN are few and have little time (`MAX_HANDSHAKE`,
    /// `HANDSHAKE_TIMEOUT`): they wait for no other pod's calls.
    async fn turn(&self) {
        let is_handshake = self.gate.is_handshake();
        if self.gate.is_within_message() && !is_handshake {
            return;
        }
        loop {
            self.calls.room().await;
            let now = Instant::now();
            let wait = if is_handshake {
                self.slot.own_wait(now)
            } else {
                self.slot.wait(now)
            };
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        tokio::select! {
            biased;
            () = self.turn() => {}
            // Its end would be read only after what it left unread, and until then its calls would go on.
            () = left(&self.stream) => return Ok((0, Vec::new())),
        }
        let stream = &*self.stream;
        let read = stream.async_io(Interest::READABLE, || receive(stream, buffer));
        let (length, fds) = match self.began {
            None => read.await?,
            Some(began) => tokio::time::timeout_at((began + MESSAGE_PATIENCE).into(), read)
                .await
                .map_err(|_| cut(GateError::MessageTooSlow))??,
        };
        let passed = self.gate.follow(&mut buffer[..length], fds.len()).map_err(cut)?;
        let now = Instant::now();
        self.slot.spend(passed.cost, now);
        self.calls.began(passed.calls);
        // What began in this chunk began now; what goes on began when it did.
        let continues = self.began.filter(|_| passed.cost == 0);
        self.began = self.gate.is_within_message().then(|| continues.unwrap_or(now));
        Ok((length, fds))
    }
}

impl Writer {
    async fn send_all(&mut self, mut buffer: &[u8], mut fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        while !buffer.is_empty() {
            let sent = self.send(buffer, fds).await?;
            (buffer, fds) = (&buffer[sent..], &[]);
        }
        Ok(())
    }

    async fn send(&mut self, buffer: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let stream = &*self.stream;
        let write = stream.async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "too many descriptors to send",
                ));
            }
            Ok(rustix::net::sendmsg(
                stream,
                &[IoSlice::new(buffer)],
                &mut ancillary,
                SendFlags::NOSIGNAL,
            )?)
        });
        let sent = match tokio::time::timeout(WRITE_PATIENCE, write).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")),
        };
        match &sent {
            Ok(length) => self.calls.ended(self.answers.follow(&buffer[..*length])),
            // A message may be half written, and its call stays unanswered: the connection is of no use any more. zbus would
            // only drop this one message.
            Err(_) => drop(rustix::net::shutdown(stream.as_fd(), rustix::net::Shutdown::Both)),
        }
        sent
    }
}

#[async_trait]
impl WriteHalf for Writer {
    async fn sendmsg(&mut self, buffer: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        match self.greeting.offer(buffer) {
            Outgoing::Now => return self.send(buffer, fds).await,
            Outgoing::Later => {}
            Outgoing::Before(held) => {
                self.send_all(buffer, fds).await?;
                self.send_all(&held, &[]).await?;
            }
            Outgoing::After(held) => {
                self.send_all(&held, &[]).await?;
                self.send_all(buffer, fds).await?;
            }
        }
        Ok(buffer.len())
    }

    async fn close(&mut self) -> io::Result<()> {
        match rustix::net::shutdown(self.stream.as_fd(), rustix::net::Shutdown::Both) {
            // The peer was faster.
            Err(rustix::io::Errno::NOTCONN) => Ok(()),
            result => Ok(result?),
        }
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }

    async fn peer_credentials(&mut self) -> io::Result<ConnectionCredentials> {
        credentials(&self.stream)
    }
}
