//! Finds the bytes that a crash left at the end of the last segment.
//!
//! Each entry is one write, and the next begins after `fdatasync` has returned. So a crash damages at most the last line. It may be
//! incomplete, or be followed or replaced by zeros or by other blocks of the disk. None of these is a *complete* line: a hash with an
//! entry. The bytes after the last complete line are therefore removed, unless they are more than one line may have.
//!
//! A complete line is never removed, even if its hash is wrong: a crash does not leave a valid entry that differs from what was written, so
//! somebody changed it. Bytes before a complete line are not removed either. Such lines stay for [`verify`](super::verify) to report, and the
//! next entry begins a new segment, which can be read without them.

use std::fs::File;
use std::io;

use super::chain::Chain;
use super::line::MAX_LINE_BYTES;
use super::lines::{Lines, Next};
use crate::verdict::Fault;

/// Limit of the bytes that a crash leaves: a line, and the rest of a file system's block.
const MAX_TAIL_BYTES: u64 = (MAX_LINE_BYTES + (64 << 10)) as u64;

/// A segment, read to its end.
#[derive(Debug)]
pub struct Tail {
    /// The offset of the end of the last complete line.
    pub complete_bytes: u64,
    /// The number of bytes after it.
    pub rest_bytes: u64,
    /// The chain after the last complete line.
    pub chain: Chain,
    /// The first fault that is not removed.
    pub fault: Option<Fault>,
}

impl Tail {
    /// # Errors
    /// The system's.
    pub fn read(file: File, name: &str, first: u64) -> io::Result<Self> {
        let mut tail = Self {
            complete_bytes: 0,
            rest_bytes: 0,
            chain: Chain::new(),
            fault: None,
        };
        let mut lines = Lines::new(file);
        let mut chain = Chain::new();
        chain.begin_segment(first, None);
        let mut pending = None;
        for line in 1.. {
            let (complete, text) = match lines.advance()? {
                Next::End(part) => {
                    tail.rest_bytes = lines.offset() + part - tail.complete_bytes;
                    break;
                }
                Next::TooLong => {
                    chain.note_unreadable();
                    (false, Some("this line is too long".to_owned()))
                }
                Next::Line => {
                    let checked = chain.check(lines.line(), (line == 1).then_some(first));
                    (checked.complete, checked.fault)
                }
            };
            pending = pending.or(text.map(|text| Fault {
                segment: name.to_owned(),
                line,
                text,
            }));
            if complete {
                tail.complete_bytes = lines.offset();
                tail.chain = chain.clone();
                tail.fault = tail.fault.or(pending.take());
            }
        }
        if tail.rest_bytes > 0 && !tail.is_from_crash() {
            tail.fault.get_or_insert(Fault {
                segment: name.to_owned(),
                line: pending.map_or(0, |fault| fault.line),
                text: format!("{} bytes that are no entries", tail.rest_bytes),
            });
        }
        Ok(tail)
    }

    /// Whether the bytes after the last complete line may be from a crash.
    pub fn is_from_crash(&self) -> bool {
        self.rest_bytes > 0 && self.rest_bytes <= MAX_TAIL_BYTES
    }
}
