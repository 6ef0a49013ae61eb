//! Lines of a file that may be written to at the same time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};

use super::line::MAX_LINE_BYTES;

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// In [`Lines::line`].
    Line,
    /// A line that is longer than [`MAX_LINE_BYTES`], and is left out.
    TooLong,
    /// The end: nothing, or this many bytes without a newline. A later read may find more.
    End(u64),
}

/// Holds one line in memory, and none that is longer than [`MAX_LINE_BYTES`].
#[derive(Debug)]
pub struct Lines {
    reader: BufReader<File>,
    /// Where the next line begins.
    at: u64,
    line: Vec<u8>,
}

impl Lines {
    pub fn new(file: File) -> Self {
        Self {
            reader: BufReader::with_capacity(128 << 10, file),
            at: 0,
            line: Vec::new(),
        }
    }

    /// The bytes up to the end of the last line.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The line that was read last, without its newline.
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    /// # Errors
    /// The system's.
    pub fn advance(&mut self) -> io::Result<Next> {
        self.line.clear();
        let mut length: u64 = 0;
        let mut long = false;
        loop {
            let bytes = match self.reader.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if bytes.is_empty() {
                // The writer may take back what it could not complete, and write something else there.
                self.reader.seek(SeekFrom::Start(self.at))?;
                return Ok(Next::End(length));
            }
            let newline = bytes.iter().position(|byte| *byte == b'\n');
            let part = newline.map_or(bytes, |newline| &bytes[..newline]);
            long |= self.line.len() + part.len() >= MAX_LINE_BYTES;
            if long {
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(newline.is_some());
            self.reader.consume(used);
            length += used as u64;
            if newline.is_some() {
                self.at += length;
                return Ok(if long { Next::TooLong } else { Next::Line });
            }
        }
    }
}
