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
use super::calls::Answers;
use super::cut_off_log::Cuts;
use super::greeting::{Greeting, Outgoing};
use super::peer_connection::PeerConnection;
use super::pod_call_limits::ConnectionPermit;
use super::stream::{MAX_FDS, Stream};

/// A peer that takes nothing for this long is cut off: what it does not read must not pile up here.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// A message that is not whole after this long ends its connection: memory is held for it.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that went through the gate. zbus is told that it has ended when nothing was under way for a while: see
/// [`PeerConnection`].
#[derive(Debug)]
pub struct GatedSocket {
    connection: Arc<PeerConnection>,
    /// Whether the peer's handshake is to come.
    is_new: bool,
}

#[derive(Debug)]
pub struct Reader {
    connection: Arc<PeerConnection>,
    gate: Stream,
    /// When the message that is being read began.
    began: Option<Instant>,
}

#[derive(Debug)]
pub struct Writer {
    connection: Arc<PeerConnection>,
    greeting: Greeting,
    answers: Answers,
}

impl GatedSocket {
    pub(super) fn new(stream: UnixStream, permit: ConnectionPermit, cuts: Arc<Cuts>) -> Self {
        Self {
            connection: Arc::new(PeerConnection::new(stream, permit, cuts)),
            is_new: true,
        }
    }

    /// The same connection after a rest, for `Builder::authenticated_socket`.
    pub fn again(connection: &Arc<PeerConnection>) -> Self {
        Self {
            connection: connection.clone(),
            is_new: false,
        }
    }

    /// The part of the connection that remains when it rests.
    pub fn connection(&self) -> &Arc<PeerConnection> {
        &self.connection
    }
}

/// Write whole messages that answer no call to a connection that rests.
///
/// # Errors
/// The peer has left, or reads nothing: the connection is of no use any more.
pub async fn write(connection: &Arc<PeerConnection>, messages: &[u8]) -> io::Result<()> {
    let mut writer = Writer {
        connection: connection.clone(),
        greeting: Greeting::over(),
        answers: Answers::default(),
    };
    writer.send_all(messages, &[]).await
}

impl Socket for GatedSocket {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let (gate, greeting) = if self.is_new {
            (Stream::default(), Greeting::default())
        } else {
            (Stream::between_messages(), Greeting::over())
        };
        let reader = Reader {
            connection: self.connection.clone(),
            gate,
            began: None,
        };
        let writer = Writer {
            connection: self.connection,
            greeting,
            answers: Answers::default(),
        };
        Split::new(reader, writer)
    }
}

/// zbus asks the half it happens to hold, so both must answer.
pub(in crate::dbus) fn credentials(stream: &UnixStream) -> io::Result<ConnectionCredentials> {
    let peer = stream.peer_cred()?;
    let mut credentials = ConnectionCredentials::default().set_unix_user_id(peer.uid());
    if let Some(pid) = peer.pid().and_then(|pid| u32::try_from(pid).ok()) {
        credentials = credentials.set_process_id(pid);
    }
    Ok(credentials)
}

/// Receive bytes, and as many descriptors as there is space for.
pub(in crate::dbus) fn receive(
    stream: &UnixStream,
    buffer: &mut [u8],
    space: &mut [MaybeUninit<u8>],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut ancillary = RecvAncillaryBuffer::new(space);
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

/// Send bytes when the stream takes some, with at most [`MAX_FDS`] descriptors.
pub(in crate::dbus) async fn send(stream: &UnixStream, buffer: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let write = || {
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
    };
    stream.async_io(Interest::WRITABLE, write).await
}

fn cut(error: GateError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let read = self.read(buffer).await;
        if let Err(error) = &read {
            let gate = error.get_ref().and_then(|cause| cause.downcast_ref::<GateError>());
            if let Some(error) = gate {
                self.connection.cuts.cut(self.connection.permit.pod(), error);
            }
            // The peer learns of it now, not when the last holder of the connection lets go.
            let _ = rustix::net::shutdown(self.connection.stream.as_fd(), rustix::net::Shutdown::Both);
        }
        read
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }

    async fn peer_credentials(&mut self) -> io::Result<ConnectionCredentials> {
        credentials(&self.connection.stream)
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
            self.connection.calls.room().await;
            let now = Instant::now();
            let wait = if is_handshake {
                self.connection.permit.own_wait(now)
            } else {
                self.connection.permit.wait(now)
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
            () = self.connection.left() => return Ok((0, Vec::new())),
        }
        let stream = &self.connection.stream;
        let read = stream.async_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            receive(stream, buffer, &mut space)
        });
        let (length, fds) = match self.began {
            None => tokio::select! {
                biased;
                read = read => read?,
                // Nothing was read: what the peer sends from now on is read when the connection is awake again.
                () = self.connection.calls.rest() => return Ok((0, Vec::new())),
            },
            Some(began) => tokio::time::timeout_at((began + MESSAGE_TIMEOUT).into(), read)
                .await
                .map_err(|_| cut(GateError::MessageTooSlow))??,
        };
        let passed = self.gate.follow(&mut buffer[..length], fds.len()).map_err(cut)?;
        let now = Instant::now();
        self.connection.permit.spend(passed.cost, now);
        self.connection.calls.began(passed.calls);
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
        let stream = &self.connection.stream;
        let sent = match tokio::time::timeout(WRITE_TIMEOUT, send(stream, buffer, fds)).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")),
        };
        match &sent {
            Ok(length) => self.connection.calls.ended(self.answers.follow(&buffer[..*length])),
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
        let connection = self.connection.clone();
        let Some(_telling) = connection.tell() else {
            // The objects that a peer knows are made anew before its connection is awake again, and zbus announces them. It
            // has no call to answer then.
            return Ok(buffer.len());
        };
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
        match rustix::net::shutdown(self.connection.stream.as_fd(), rustix::net::Shutdown::Both) {
            // The peer was faster.
            Err(rustix::io::Errno::NOTCONN) => Ok(()),
            result => Ok(result?),
        }
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }

    async fn peer_credentials(&mut self) -> io::Result<ConnectionCredentials> {
        credentials(&self.connection.stream)
    }
}
