//! The gate in front of zbus on the system bus, which every user of the host can reach.
//!
//! zbus keeps each message until its call is answered: up to 32 MiB and 16 descriptors, by the bus's own limits. The gate looks at a message before
//! zbus has it. A call that [`UserLimits`](super::user_limits::UserLimits) do not let pass is answered here and dropped.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_api::{Error, ErrorKind};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use zbus::address::Address;
use zbus::address::transport::{Transport, UnixSocket};
use zbus::connection::Builder;
use zbus::connection::socket::{ReadHalf, Socket, Split, WriteHalf};
use zbus::export::async_trait::async_trait;
use zbus::fdo::ConnectionCredentials;
use zbus::message::Type;
use zbus::{Connection, DBusError as _, Message};

use super::caller::Users;
use super::runner_gate::stream::lengths;
use super::runner_gate::transport::{credentials, receive, send};
use super::user_limits;

/// The longest message that zbus may have: 1024 requests of EvaluatePlacement with every option are 360 KiB.
const MAX_MESSAGE: usize = 1 << 20;
/// What each message begins with: its kind and the lengths of what follows.
const PRIMARY_HEADER: usize = 16;
/// The longest header that is kept of a message that is too long, to answer it. A call's has a few hundred bytes.
const MAX_HEADER: usize = 4 << 10;
/// As many descriptors as the kernel passes at once (SCM_MAX_FD).
const MAX_FDS: usize = 253;
/// The bus has so long to say who a sender is: nobody else's messages are read meanwhile.
const SENDER_TIMEOUT: Duration = Duration::from_secs(2);
/// Refusals that wait to be sent. A caller whose refusal finds no room gets no answer.
const REFUSALS: usize = 256;

/// Connect to a bus to call others: whatever calls come in are dropped.
///
/// # Errors
/// The bus cannot be reached, or refuses.
pub(super) async fn connect_client(address: &Address) -> zbus::Result<Connection> {
    connect(address, None).await
}

/// Connect to a bus to answer calls of its users.
///
/// # Errors
/// The bus cannot be reached, or refuses.
pub(super) async fn connect_service(address: &Address, users: &Users) -> zbus::Result<Connection> {
    let (refuse, mut refused) = mpsc::channel::<Message>(REFUSALS);
    // The gate asks on a second connection: the first one reads nothing while the gate waits.
    let inquiries = connect_client(address).await?;
    let callers = CallGate {
        users: users.clone(),
        inquiries: inquiries.clone(),
        refuse,
    };
    let connection = connect(address, Some(callers)).await?;
    let answering = connection.clone();
    tokio::spawn(async move {
        let refuse = async {
            // The other end of the channel is in the connection's reader.
            while let Some(refusal) = refused.recv().await {
                let _ = answering.send(&refusal).await;
            }
        };
        tokio::select! {
            () = refuse => {}
            // Without it the gate cannot ask who a sender is.
            () = inquiries.closed() => drop(answering.clone().close().await),
        }
    });
    Ok(connection)
}

async fn connect(address: &Address, callers: Option<CallGate>) -> zbus::Result<Connection> {
    let path = match address.transport() {
        Transport::Unix(unix) => match unix.path() {
            UnixSocket::File(path) => path,
            _ => return Err(zbus::Error::Address(format!("{address}: expected unix:path="))),
        },
        _ => return Err(zbus::Error::Address(format!("{address}: expected unix:path="))),
    };
    let stream = UnixStream::connect(path).await;
    let stream = Arc::new(stream.map_err(|cause| zbus::Error::InputOutput(Arc::new(cause)))?);
    Builder::socket(BusSocket { stream, callers }).build().await
}

/// Who calls, and what is answered to those who may not.
#[derive(Debug)]
struct CallGate {
    users: Users,
    inquiries: Connection,
    refuse: mpsc::Sender<Message>,
}

impl CallGate {
    /// Whether zbus may have this call, which came with so many bytes. If not, it is answered.
    async fn pass(&self, call: &Message, bytes: usize) -> bool {
        let Err(why) = self.check(call, bytes).await else {
            return true;
        };
        // Nothing of the call itself is kept.
        if let Ok(refusal) = why.create_reply(&call.header()) {
            let _ = self.refuse.try_send(refusal);
        }
        false
    }

    async fn check(&self, call: &Message, bytes: usize) -> Result<(), Error> {
        if bytes > MAX_MESSAGE {
            let text = format!("a message of {bytes} bytes, more than {MAX_MESSAGE}");
            return Err(ErrorKind::InvalidArgument.because(text));
        }
        let header = call.header();
        let sender = header.sender();
        let sender = sender.ok_or_else(|| ErrorKind::NotPermitted.because("the message has no sender"))?;
        let user = tokio::time::timeout(SENDER_TIMEOUT, self.users.of(&self.inquiries, sender)).await;
        let user = user.map_err(|_| ErrorKind::Busy.because("the bus does not say who the sender is"))??;
        let message = user_limits::Message {
            member: header.member().map_or("", |member| member.as_str()),
            bytes,
            descriptors: header.unix_fds().unwrap_or(0) as usize,
        };
        self.users.limits.pass(user, message, Instant::now())
    }
}

struct BusSocket {
    stream: Arc<UnixStream>,
    callers: Option<CallGate>,
}

impl Socket for BusSocket {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let reader = Reader {
            bytes: Bytes(self.stream.clone()),
            callers: self.callers,
        };
        Split::new(reader, Writer(self.stream))
    }
}

/// The bytes as they come.
#[derive(Debug)]
struct Bytes(Arc<UnixStream>);

#[async_trait]
impl ReadHalf for Bytes {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let read = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            receive(&self.0, buffer, &mut space)
        };
        self.0.async_io(Interest::READABLE, read).await
    }
}

impl Bytes {
    /// Read until there are this many bytes.
    async fn fill(&mut self, length: usize, bytes: &mut Vec<u8>, fds: &mut Vec<OwnedFd>) -> io::Result<()> {
        while bytes.len() < length {
            let mut buffer = [0; MAX_HEADER];
            let most = buffer.len().min(length - bytes.len());
            let (read, more) = self.recvmsg(&mut buffer[..most]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes.extend(&buffer[..read]);
            fds.extend(more);
        }
        Ok(())
    }

    /// Read a message of `length` bytes that is too long. Its header, which ends at `header`, is kept without the body; false if it is too
    /// long itself, and nothing is kept.
    async fn cut(
        &mut self,
        header: usize,
        length: usize,
        bytes: &mut Vec<u8>,
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<bool> {
        let kept = if header <= MAX_HEADER { header } else { 0 };
        self.fill(kept, bytes, fds).await?;
        let mut read = bytes.len().min(length);
        bytes.drain(kept..read);
        while read < length {
            let part = (length - read).min(MAX_HEADER);
            self.fill(part, &mut Vec::new(), fds).await?;
            read += part;
        }
        if kept == 0 {
            fds.clear();
            return Ok(false);
        }
        // The length of the body (D-Bus specification, "Message Format").
        bytes[4..8].fill(0);
        Ok(true)
    }
}

/// The messages that zbus may have.
#[derive(Debug)]
struct Reader {
    bytes: Bytes,
    callers: Option<CallGate>,
}

#[async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        self.bytes.recvmsg(buffer).await
    }

    async fn receive_message(
        &mut self,
        number: u64,
        bytes: &mut Vec<u8>,
        fds: &mut Vec<OwnedFd>,
    ) -> zbus::Result<Message> {
        loop {
            self.bytes.fill(PRIMARY_HEADER, bytes, fds).await?;
            let mut primary = [0; PRIMARY_HEADER];
            primary.copy_from_slice(&bytes[..PRIMARY_HEADER]);
            let (fields, body) = lengths(&primary);
            let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
            let header = size(fields).saturating_add(PRIMARY_HEADER);
            let length = size(body).saturating_add(header);
            let is_too_long = length > MAX_MESSAGE;
            if is_too_long && !self.bytes.cut(header, length, bytes, fds).await? {
                continue;
            }
            let message = self.bytes.receive_message(number, bytes, fds).await?;
            let may_pass = match (message.message_type(), &self.callers) {
                (Type::MethodCall, Some(callers)) => callers.pass(&message, length).await,
                (Type::MethodCall, None) => false,
                // Any user may send a signal to one connection. Those that are listened to are the bus's own, and systemd's, which are for all.
                (Type::Signal, _) => !is_too_long && is_from_bus_or_for_all(&message),
                _ => !is_too_long,
            };
            if may_pass {
                return Ok(message);
            }
        }
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }

    async fn peer_credentials(&mut self) -> io::Result<ConnectionCredentials> {
        credentials(&self.bytes.0)
    }
}

fn is_from_bus_or_for_all(signal: &Message) -> bool {
    let header = signal.header();
    header.destination().is_none()
        || header
            .sender()
            .is_some_and(|sender| sender.as_str() == "org.freedesktop.DBus")
}

#[derive(Debug)]
struct Writer(Arc<UnixStream>);

#[async_trait]
impl WriteHalf for Writer {
    async fn sendmsg(&mut self, buffer: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        send(&self.0, buffer, fds).await
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both)?)
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }

    async fn peer_credentials(&mut self) -> io::Result<ConnectionCredentials> {
        credentials(&self.0)
    }
}
