//! Ordering of `steliad-quiet`: the daemon's side of the connection. It blocks, for at most twice the patience that is given
//! ([`begin`]: four times).

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::Serialize;
use stelia_api::attribution::Attribution;
use stelia_api::quiet::Report;
use stelia_text::excerpt::excerpt;

use crate::line::{self, LineError};
use crate::order::{Answer, MAX_LINE, Order, Target};
use crate::request::{Attribute, Request};

/// Timeout of an answer: an order on a large node takes milliseconds, and irqbalance is waited for a second or two.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an order was not carried out, or is not known to have been.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// Its socket unit does not run, or the package is older.
    #[error("nothing listens on {}: {cause}", path.display())]
    NothingListens { path: PathBuf, cause: io::Error },
    #[error("connect to {}: {cause}", path.display())]
    Connect { path: PathBuf, cause: io::Error },
    #[error("the order has {0} bytes, more than {MAX_LINE}")]
    TooLong(usize),
    #[error("write the order: {0}")]
    Write(LineError),
    /// Also what a program that is not the daemon's unit gets.
    #[error("it was not answered: {0}")]
    NoAnswer(LineError),
    #[error("the answer {answer:?} is not JSON that is understood: {cause}")]
    NotJson { answer: String, cause: serde_json::Error },
    /// It is the answer to something else.
    #[error("the answer {0} does not answer what was asked")]
    Unexpected(String),
    /// Nothing was changed.
    #[error("the order was refused: {0}")]
    Refused(String),
}

/// Send the order and wait for the answer.
///
/// # Errors
/// [`OrderError`].
pub fn order(socket: &Path, order: &Order, patience: Duration) -> Result<Report, OrderError> {
    match ask(socket, order, patience)? {
        Answer::Done(report) => Ok(report),
        other => Err(unexpected(&other)),
    }
}

/// Let the kernel count who else runs on these CPUs, from now until [`finish`]. One that was begun before is forgotten.
/// It does not wait: how long the count takes is for the caller to say, by when it calls [`finish`].
///
/// # Errors
/// [`OrderError`]; then nothing is counted. What was not answered may have begun, so it is ended, for which there is as much time again.
pub fn begin(socket: &Path, target: &Target, patience: Duration) -> Result<(), OrderError> {
    let attribute = Attribute::Begin(target.clone());
    match ask(socket, &Request::Attribute { attribute }, patience) {
        Ok(Answer::Begun) => Ok(()),
        Ok(other) => Err(unexpected(&other)),
        Err(error @ OrderError::NoAnswer(_)) => {
            let _ = finish(socket, patience);
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// What was counted since [`begin`]. Nothing is counted any more afterwards, also after an error that is
/// [`OrderError::Refused`].
///
/// # Errors
/// [`OrderError`]; refused where nothing was begun, or it is too long ago.
pub fn finish(socket: &Path, patience: Duration) -> Result<Attribution, OrderError> {
    let attribute = Attribute::Finish {};
    match ask(socket, &Request::Attribute { attribute }, patience)? {
        Answer::Attributed(attribution) => Ok(attribution),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &Answer) -> OrderError {
    match answer {
        Answer::Refused(reason) => OrderError::Refused(reason.clone()),
        other => OrderError::Unexpected(excerpt(&serde_json::to_string(other).unwrap_or_default())),
    }
}

/// One line each way.
fn ask(socket: &Path, request: &impl Serialize, patience: Duration) -> Result<Answer, OrderError> {
    // Sets and texts: they cannot fail to be JSON.
    let text = serde_json::to_string(request).unwrap_or_default();
    if text.len() > MAX_LINE {
        return Err(OrderError::TooLong(text.len()));
    }
    let mut stream = connected(socket, patience).map_err(|cause| {
        let path = socket.to_owned();
        match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => OrderError::NothingListens { path, cause },
            _ => OrderError::Connect { path, cause },
        }
    })?;
    // A refusal may come before the whole order was taken: then it says why.
    let written = line::write(&mut stream, &text, patience);
    let answer = match (line::read(&mut stream, MAX_LINE, patience), written) {
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
fn connected(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(rustix::io::Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        result => Ok(result.map(|()| UnixStream::from(socket))?),
    }
}

#[cfg(test)]
mod tests;
