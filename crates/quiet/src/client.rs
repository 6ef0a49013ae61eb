//! The daemon's side of the connection to `steliad-quiet`. Every call blocks for at most twice its timeout ([`begin`]: four
//! times).

use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use stelia_api::attribution::Attribution;
use stelia_api::quiet::Report;
use stelia_cpus::text::excerpt::excerpt;

use crate::order::{MAX_LINE, Order, OrderAnswer, Target};
use crate::request::Request;
use crate::socket_line::{self, LineError};

/// Timeout of an answer: an order on a large node takes milliseconds, plus a second or two to wait for irqbalance.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an order was not carried out, or why that is not known.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The socket unit does not run.
    #[error("nothing listens on {}: {cause}", path.display())]
    NothingListens { path: PathBuf, cause: io::Error },
    #[error("connect to {}: {cause}", path.display())]
    Connect { path: PathBuf, cause: io::Error },
    #[error("the order has {0} bytes, more than {MAX_LINE}")]
    TooLong(usize),
    #[error("write the order: {0}")]
    Write(LineError),
    /// A caller other than the daemon's unit gets no answer either.
    #[error("it was not answered: {0}")]
    NoAnswer(LineError),
    #[error("the answer {answer:?} is not JSON that is understood: {cause}")]
    NotJson { answer: String, cause: serde_json::Error },
    #[error("the answer {0} does not answer what was asked")]
    Unexpected(String),
    /// Nothing was changed.
    #[error("the order was refused: {0}")]
    Refused(String),
}

/// Send the order and wait for the answer.
pub fn order(socket: &Path, order: &Order, timeout: Duration) -> Result<Report, OrderError> {
    match ask(socket, &Request::Order(order.clone()), timeout)? {
        OrderAnswer::Done(report) => Ok(report),
        other => Err(unexpected(&other)),
    }
}

/// Let the kernel count who else runs on these CPUs, until the caller calls [`finish`]. A count that was begun before is
/// dropped.
///
/// # Errors
/// [`OrderError`]; then nothing is counted. If no answer came, a count may have begun: it is ended, which may take as long
/// again.
pub fn begin(socket: &Path, target: &Target, timeout: Duration) -> Result<(), OrderError> {
    match ask(socket, &Request::Begin(target.clone()), timeout) {
        Ok(OrderAnswer::Begun) => Ok(()),
        Ok(other) => Err(unexpected(&other)),
        Err(error @ OrderError::NoAnswer(_)) => {
            let _ = finish(socket, &BTreeSet::new(), timeout);
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// End the count and return what was counted since [`begin`], without the threads `own`, if each was counted for itself. The count has also
/// ended after [`OrderError::Refused`].
///
/// # Errors
/// [`OrderError`]; refused if no count was begun, or if that was too long ago.
pub fn finish(socket: &Path, own: &BTreeSet<i32>, timeout: Duration) -> Result<Attribution, OrderError> {
    match ask(socket, &Request::Finish { own: own.clone() }, timeout)? {
        OrderAnswer::Attributed(attribution) => Ok(attribution),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &OrderAnswer) -> OrderError {
    match answer {
        OrderAnswer::Refused(reason) => OrderError::Refused(reason.clone()),
        other => OrderError::Unexpected(excerpt(&serde_json::to_string(other).unwrap_or_default())),
    }
}

/// Send one line and read one.
fn ask(socket: &Path, request: &Request, timeout: Duration) -> Result<OrderAnswer, OrderError> {
    // It consists of sets and texts, which can always be written as JSON.
    let text = serde_json::to_string(request).unwrap_or_default();
    if text.len() > MAX_LINE {
        return Err(OrderError::TooLong(text.len()));
    }
    let mut stream = connect_to(socket, timeout).map_err(|cause| {
        let path = socket.to_owned();
        match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => OrderError::NothingListens { path, cause },
            _ => OrderError::Connect { path, cause },
        }
    })?;
    // A refusal may arrive before the whole order was written; it says more than the failed write.
    let written = socket_line::write(&mut stream, &text, timeout);
    let answer = match (socket_line::read(&mut stream, MAX_LINE, timeout), written) {
        (Ok(answer), _) => answer,
        (Err(_), Err(error)) => return Err(OrderError::Write(error)),
        (Err(error), Ok(())) => return Err(OrderError::NoAnswer(error)),
    };
    serde_json::from_str(&answer).map_err(|cause| OrderError::NotJson {
        answer: excerpt(&answer),
        cause,
    })
}

/// Not `UnixStream::connect`, which waits for ever where more connections wait than the listener's queue holds.
pub(crate) fn connect_to(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(rustix::io::Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        result => Ok(result.map(|()| UnixStream::from(socket))?),
    }
}

#[cfg(test)]
mod tests;
