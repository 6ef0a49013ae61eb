//! Copies the output of helpers to the runner's log, line by line.

use std::io::PipeReader;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Limit of a logged line, in bytes. A longer line is logged in pieces.
const MAX_LINE_BYTES: usize = 8 << 10;
/// How long the output is read after the helper's end, because its children may keep the pipe open.
const OUTPUT_DRAIN_TIME: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Output(JoinHandle<()>);

impl Output {
    pub(crate) fn follow(name: &str, reader: PipeReader) -> std::io::Result<Output> {
        let pipe = Receiver::from_owned_fd(OwnedFd::from(reader))?;
        let name = name.to_owned();
        Ok(Output(tokio::spawn(read(pipe, move |line| {
            tracing::info!(helper = name, "{}", String::from_utf8_lossy(line));
        }))))
    }

    /// Reads the last lines.
    pub(crate) async fn finish(&mut self) {
        if timeout(OUTPUT_DRAIN_TIME, &mut self.0).await.is_err() {
            self.0.abort();
        }
    }
}

async fn read(mut pipe: Receiver, mut log: impl FnMut(&[u8])) {
    let mut buffer = Vec::new();
    // An error ends the output too.
    while pipe.read_buf(&mut buffer).await.is_ok_and(|read| read > 0) {
        take_lines(&mut buffer, &mut log);
    }
    if !buffer.is_empty() {
        log(&buffer);
    }
}

/// Takes every whole line, and pieces of `MAX_LINE_BYTES` where a line is longer.
fn take_lines(buffer: &mut Vec<u8>, log: &mut impl FnMut(&[u8])) {
    loop {
        let window = buffer.get(..MAX_LINE_BYTES).unwrap_or(buffer);
        match window.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                log(line.trim_ascii_end());
            }
            None if buffer.len() >= MAX_LINE_BYTES => {
                let line: Vec<u8> = buffer.drain(..MAX_LINE_BYTES).collect();
                log(&line);
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_logged_whole_and_too_long_ones_in_pieces() {
        let mut buffer = b"one\r\n\ntwo\nrest".to_vec();
        let mut logged = Vec::new();
        take_lines(&mut buffer, &mut |line| logged.push(line.to_vec()));
        assert_eq!(logged, [&b"one"[..], b"", b"two"]);
        assert_eq!(buffer, b"rest");
        buffer = vec![b'x'; 2 * MAX_LINE_BYTES + 1];
        let mut lengths = Vec::new();
        take_lines(&mut buffer, &mut |line| lengths.push(line.len()));
        assert_eq!((lengths, buffer.len()), (vec![MAX_LINE_BYTES, MAX_LINE_BYTES], 1));
    }
}
