//! Lines of bounded length from a socket: QMP's messages, and those of the guest agent.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

#[derive(Debug)]
pub(super) struct Lines {
    stream: UnixStream,
    /// Received bytes.
    buffer: Vec<u8>,
    /// How many bytes of `buffer` were returned, and how many of the others are known to have no line feed.
    returned: usize,
    searched: usize,
    /// The longest line, in bytes.
    limit: usize,
    /// Whether a write was cancelled midway: the peer would read the next message as the rest of that one.
    has_partial_write: bool,
}

impl Lines {
    pub(super) fn new(stream: UnixStream, limit: usize) -> Lines {
        Lines {
            stream,
            buffer: Vec::new(),
            returned: 0,
            searched: 0,
            limit,
            has_partial_write: false,
        }
    }

    /// Writes a whole message, or fails.
    pub(super) async fn write(&mut self, message: &[u8]) -> io::Result<()> {
        if self.has_partial_write {
            return Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "an earlier command was written only in part",
            ));
        }
        self.has_partial_write = true;
        self.stream.write_all(message).await?;
        self.has_partial_write = false;
        Ok(())
    }

    /// The next line, with its line feed. Cancel-safe: what was read stays in the buffer.
    pub(super) async fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let rest = self.buffer.get(self.returned..).unwrap_or_default();
            let found = rest.iter().skip(self.searched).position(|byte| *byte == b'\n');
            if let Some(offset) = found {
                let (line, _) = rest.split_at(self.searched + offset + 1);
                let line = line.to_vec();
                self.returned += line.len();
                self.searched = 0;
                return Ok(line);
            }
            self.searched = rest.len();
            // Only now: a peer that sends many short lines would have them all moved once for each.
            self.buffer.drain(..self.returned);
            self.returned = 0;
            if self.searched > self.limit {
                let text = format!("a message of more than {} bytes", self.limit);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "QEMU closed the connection",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_in_any_pieces_and_a_cancelled_reader_loses_none() {
        let (mut peer, stream) = UnixStream::pair().unwrap();
        let mut lines = Lines::new(stream, 100);
        peer.write_all(b"one\ntw").await.unwrap();
        assert_eq!(lines.next().await.unwrap(), b"one\n");
        let short = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(short, lines.next()).await.is_err());
        peer.write_all(b"o\n\nthree\n").await.unwrap();
        assert_eq!(lines.next().await.unwrap(), b"two\n");
        assert_eq!(lines.next().await.unwrap(), b"\n");
        assert_eq!(lines.next().await.unwrap(), b"three\n");
        drop(peer);
        let error = lines.next().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn a_line_beyond_the_limit_is_an_error() {
        let (mut peer, stream) = UnixStream::pair().unwrap();
        peer.write_all(&[b'x'; 101]).await.unwrap();
        let error = Lines::new(stream, 100).next().await.unwrap_err();
        assert_eq!(error.to_string(), "a message of more than 100 bytes");
    }

    /// A peer that sends a line for every byte must not keep the runner busy.
    #[tokio::test]
    async fn many_short_lines_take_time_by_their_number_alone() {
        let (mut peer, stream) = UnixStream::pair().unwrap();
        let count = 400_000;
        let sender = tokio::spawn(async move {
            peer.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
            peer.write_all(&vec![b'\n'; count]).await.unwrap();
        });
        let mut lines = Lines::new(stream, 4 << 20);
        let started = std::time::Instant::now();
        for _ in 0..count {
            lines.next().await.unwrap();
        }
        // Some 30 ms; all bytes moved for each line, it would be most of a minute.
        assert!(
            started.elapsed() < std::time::Duration::from_secs(10),
            "{:?}",
            started.elapsed()
        );
        sender.await.unwrap();
    }
}
