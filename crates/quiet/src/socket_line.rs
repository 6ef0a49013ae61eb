//! Reads and writes one line of a connection, with a limit of its length and of the time it takes.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Why a line could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("the line is longer than {0} bytes")]
    TooLong(usize),
    #[error("it took longer than {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the connection ended before the line did")]
    Closed,
    #[error("the line is not UTF-8")]
    NotText,
    #[error(transparent)]
    System(io::Error),
}

/// The time until `end`. Zero is an error, because a socket takes it as no timeout.
fn remaining(end: Instant, timeout: Duration) -> Result<Duration, LineError> {
    let remaining = end.saturating_duration_since(Instant::now());
    (!remaining.is_zero())
        .then_some(remaining)
        .ok_or(LineError::TimedOut(timeout))
}

fn failed(cause: io::Error, timeout: Duration) -> LineError {
    match cause.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => LineError::TimedOut(timeout),
        // A peer that closes with something unread resets the connection.
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => LineError::Closed,
        _ => LineError::System(cause),
    }
}

/// A line of at most `max_bytes` without its newline. Bytes after the newline are dropped. `timeout` is that of the whole line,
/// so a peer that sends a byte now and then does not lengthen it.
pub fn read(stream: &mut UnixStream, max_bytes: usize, timeout: Duration) -> Result<String, LineError> {
    let end = Instant::now() + timeout;
    let mut line = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        stream
            .set_read_timeout(Some(remaining(end, timeout)?))
            .map_err(LineError::System)?;
        let got = match stream.read(&mut part) {
            Ok(0) => return Err(LineError::Closed),
            Ok(got) => got,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            Err(cause) => return Err(failed(cause, timeout)),
        };
        let newline = part[..got].iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&part[..newline.unwrap_or(got)]);
        if line.len() > max_bytes {
            return Err(LineError::TooLong(max_bytes));
        }
        if newline.is_some() {
            return String::from_utf8(line).map_err(|_| LineError::NotText);
        }
    }
}

/// `text` and a newline, in at most `timeout`.
pub fn write(stream: &mut UnixStream, text: &str, timeout: Duration) -> Result<(), LineError> {
    let end = Instant::now() + timeout;
    for mut rest in [text.as_bytes(), b"\n"] {
        while !rest.is_empty() {
            stream
                .set_write_timeout(Some(remaining(end, timeout)?))
                .map_err(LineError::System)?;
            match stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(failed(cause, timeout)),
            }
        }
    }
    Ok(())
}
