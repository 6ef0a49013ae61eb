//! What another program prints, line by line into the runner's log.

use std::io::PipeReader;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A longer line is told in pieces.
const MAX_LINE: usize = 8 << 10;
/// What it started may hold the pipe open after its own end; that is not waited for.
const REST_TIME: Duration = Duration::from_millis(200);

/// The task that follows one program's output.
#[derive(Debug)]
pub struct Output(JoinHandle<()>);

impl Output {
    /// Follow a pipe to its end.
    pub fn follow(name: &str, reader: PipeReader) -> std::io::Result<Output> {
        let pipe = Receiver::from_owned_fd(OwnedFd::from(reader))?;
        let name = name.to_owned();
        Ok(Output(tokio::spawn(read(pipe, move |line| {
            tracing::info!(helper = name, "{}", String::from_utf8_lossy(line));
        }))))
    }

    /// Take the last lines.
    pub async fn finish(&mut self) {
        if timeout(REST_TIME, &mut self.0).await.is_err() {
            self.0.abort();
        }
    }
}

async fn read(mut pipe: Receiver, mut tell: impl FnMut(&[u8])) {
    let mut buffer = Vec::new();
    // An error is an end too.
    while pipe.read_buf(&mut buffer).await.is_ok_and(|read| read > 0) {
        take_lines(&mut buffer, &mut tell);
    }
    if !buffer.is_empty() {
        tell(&buffer);
    }
}

/// Take every whole line, and what is too long to wait for its end.
fn take_lines(buffer: &mut Vec<u8>, tell: &mut impl FnMut(&[u8])) {
    loop {
        let window = buffer.get(..MAX_LINE).unwrap_or(buffer);
        match window.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                tell(line.trim_ascii_end());
            }
            None if buffer.len() >= MAX_LINE => {
                let line: Vec<u8> = buffer.drain(..MAX_LINE).collect();
                tell(&line);
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_whole_and_too_long_ones_in_pieces() {
        let mut buffer = b"one\r\n\ntwo\nrest".to_vec();
        let mut told = Vec::new();
        take_lines(&mut buffer, &mut |line| told.push(line.to_vec()));
        assert_eq!(told, [&b"one"[..], b"", b"two"]);
        assert_eq!(buffer, b"rest");
        buffer = vec![b'x'; 2 * MAX_LINE + 1];
        let mut lengths = Vec::new();
        take_lines(&mut buffer, &mut |line| lengths.push(line.len()));
        assert_eq!((lengths, buffer.len()), (vec![MAX_LINE, MAX_LINE], 1));
    }
}
