//! Reads lines of a file to which the writer may append at the same time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};

use super::line_format::MAX_LINE_BYTES;

/// The result of reading the next line.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A line, which [`Lines::line`] returns.
    Line,
    /// A line that is longer than [`MAX_LINE_BYTES`]; it is skipped.
    TooLong,
    /// The end, after this many bytes without a newline. A later read may find more.
    End(u64),
}

/// Reads line by line. Memory is limited to one line of [`MAX_LINE_BYTES`].
#[derive(Debug)]
pub struct Lines {
    reader: BufReader<File>,
    /// The offset at which the next line begins.
    offset: u64,
    line: Vec<u8>,
}

impl Lines {
    pub fn new(file: File) -> Self {
        Self {
            reader: BufReader::with_capacity(128 << 10, file),
            offset: 0,
            line: Vec::new(),
        }
    }

    /// The offset of the end of the last line.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The line that was read last, without its newline.
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    pub fn advance(&mut self) -> io::Result<Next> {
        self.line.clear();
        let mut length: u64 = 0;
        let mut too_long = false;
        loop {
            let bytes = match self.reader.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if bytes.is_empty() {
                // The writer may remove an incomplete line and write another one there.
                self.reader.seek(SeekFrom::Start(self.offset))?;
                return Ok(Next::End(length));
            }
            let newline = bytes.iter().position(|byte| *byte == b'\n');
            let part = newline.map_or(bytes, |newline| &bytes[..newline]);
            too_long |= self.line.len() + part.len() >= MAX_LINE_BYTES;
            if too_long {
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(newline.is_some());
            self.reader.consume(used);
            length += used as u64;
            if newline.is_some() {
                self.offset += length;
                return Ok(if too_long { Next::TooLong } else { Next::Line });
            }
        }
    }
}
