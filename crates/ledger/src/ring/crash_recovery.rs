//! Removes the bytes that a crash left at the end of the last segment, when the ring is opened.
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

use super::RingError;
use super::chain::Chain;
use super::folder::segment_name;
use super::line_format::MAX_LINE_BYTES;
use super::line_reader::{Lines, Next};
use super::write::Ring;
use crate::verdict::Fault;

/// Limit of the bytes that a crash leaves: a line, and the rest of a file system's block.
const MAX_TAIL_BYTES: u64 = (MAX_LINE_BYTES + (64 << 10)) as u64;

/// The result of opening the ring.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RingRecovery {
    /// Bytes that a crash left after the last complete line, and that were removed.
    pub cut: u64,
    /// Number and hash of the entry that the next one follows.
    pub last: Option<(u64, String)>,
    /// Another fault of the last segment, which is left as it is.
    pub fault: Option<Fault>,
}

/// A segment, read to its end.
#[derive(Debug)]
struct Tail {
    /// The offset of the end of the last complete line.
    complete_bytes: u64,
    /// The number of bytes after it.
    rest_bytes: u64,
    /// The chain after the last complete line.
    chain: Chain,
    /// The first fault that is not removed.
    fault: Option<Fault>,
}

impl Tail {
    fn read(file: File, name: &str, first: u64) -> io::Result<Self> {
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
    fn is_from_crash(&self) -> bool {
        self.rest_bytes > 0 && self.rest_bytes <= MAX_TAIL_BYTES
    }
}

impl Ring {
    /// Removes what a crash left, and sets the number and hash to continue with.
    pub(super) fn recover(&mut self) -> Result<RingRecovery, RingError> {
        let mut recovery = RingRecovery::default();
        // Only one line was being written, so only one segment can have an incomplete one.
        let mut has_cut = false;
        let mut index = self.segments.len();
        while let Some(segment) = index.checked_sub(1).and_then(|last| self.segments.get(last)).copied() {
            index -= 1;
            let name = segment_name(segment.first);
            let path = self.folder.path().join(&name);
            let is_last = index + 1 == self.segments.len();
            let mut bytes = segment.bytes;
            if segment.bytes > 0 {
                let file = self.folder.write(&name)?;
                let reader = file.try_clone().map_err(RingError::system("open", &path))?;
                let tail = Tail::read(reader, &name, segment.first).map_err(RingError::system("read", &path))?;
                if is_last && !has_cut && tail.is_from_crash() {
                    let done = self
                        .disk
                        .cut(&file, tail.complete_bytes)
                        .and_then(|()| self.disk.sync(&file));
                    done.map_err(RingError::system("cut", &path))?;
                    recovery.cut = tail.rest_bytes;
                    bytes = tail.complete_bytes;
                    has_cut = true;
                }
                let is_clean = is_last && tail.fault.is_none() && tail.complete_bytes == bytes;
                recovery.fault = recovery.fault.or(tail.fault);
                // After the segment's first entry at least, even if no line can be read.
                self.next = self.next.max(segment.first.saturating_add(u64::from(bytes > 0)));
                if let (seq, Some(hash)) = tail.chain.next_entry() {
                    self.next = self.next.max(seq);
                    self.hash = hash;
                    self.file = Some(file).filter(|_| is_clean);
                    if let Some(segment) = self.segments.get_mut(index) {
                        segment.bytes = bytes;
                    }
                    recovery.last = Some((self.next - 1, hash.to_string()));
                    break;
                }
            }
            if is_last && bytes == 0 {
                self.folder.remove(&name)?;
                self.segments.pop_back();
                self.next = 1;
            }
        }
        Ok(recovery)
    }
}
