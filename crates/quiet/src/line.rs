//! One line each way on a connection, with a limit of its length and of the time it takes.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Why no line came, or went.
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

/// What is left until `end`; a timeout of zero would be none.
fn left(end: Instant, patience: Duration) -> Result<Duration, LineError> {
    let left = end.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left).ok_or(LineError::TimedOut(patience))
}

fn failed(cause: io::Error, patience: Duration) -> LineError {
    match cause.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => LineError::TimedOut(patience),
        // A peer that closes with something unread resets the connection.
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => LineError::Closed,
        _ => LineError::System(cause),
    }
}

/// A line of at most `longest` bytes without its newline. What follows the newline is not looked at. `patience` is for all of it, so
/// a peer that sends a byte now and then does not lengthen it.
///
/// # Errors
/// [`LineError`].
pub fn read(stream: &mut UnixStream, longest: usize, patience: Duration) -> Result<String, LineError> {
    let end = Instant::now() + patience;
    let mut line = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        stream
            .set_read_timeout(Some(left(end, patience)?))
            .map_err(LineError::System)?;
        let got = match stream.read(&mut part) {
            Ok(0) => return Err(LineError::Closed),
            Ok(got) => got,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            Err(cause) => return Err(failed(cause, patience)),
        };
        let newline = part[..got].iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&part[..newline.unwrap_or(got)]);
        if line.len() > longest {
            return Err(LineError::TooLong(longest));
        }
        if newline.is_some() {
            return String::from_utf8(line).map_err(|_| LineError::NotText);
        }
    }
}

/// `text` and a newline, in at most `patience`.
///
/// # Errors
/// [`LineError`].
pub fn write(stream: &mut UnixStream, text: &str, patience: Duration) -> Result<(), LineError> {
    let end = Instant::now() + patience;
    for mut rest in [text.as_bytes(), b"\n"] {
        while !rest.is_empty() {
            stream
                .set_write_timeout(Some(left(end, patience)?))
                .map_err(LineError::System)?;
            match stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(failed(cause, patience)),
            }
        }
    }
    Ok(())
}
