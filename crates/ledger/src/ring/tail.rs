//! What a crash left at the end of the last segment.
//!
//! Each entry is one write, and the next is not begun before `fdatasync` returned. So a crash harms one line at most: the last. It may be
//! there in part, or be followed or replaced by zeros or by blocks of whatever was on the disk. None of this is an entry behind a
//! hash. So what follows the last *whole* line, one that is an entry behind a hash, is cut off where it is not longer than one line may be.
//!
//! A whole line is never cut, even where its hash is wrong: a crash does not leave an entry that is only slightly different, somebody who
//! writes does. Nor is anything cut that a whole line follows. Such lines stay for [`verify`](super::verify) to find, and the next
//! entry begins a new segment behind them, which can be read alone.

use std::fs::File;
use std::io;

use super::chain::Chain;
use super::line::MAX_LINE_BYTES;
use super::lines::{Lines, Next};
use crate::verdict::Fault;

/// The longest line, and what file systems round up to.
const MAX_TAIL_BYTES: u64 = (MAX_LINE_BYTES + (64 << 10)) as u64;

/// A segment, read to its end.
#[derive(Debug)]
pub struct Tail {
    /// The bytes up to the end of the last whole line.
    pub whole: u64,
    /// The bytes behind it.
    pub rest: u64,
    /// Where the next line goes on.
    pub chain: Chain,
    /// The first thing that is wrong and stays.
    pub fault: Option<Fault>,
}

impl Tail {
    /// # Errors
    /// The system's.
    pub fn sample(file: File, name: &str, first: u64) -> io::Result<Self> {
        let mut tail = Self {
            whole: 0,
            rest: 0,
            chain: Chain::new(),
            fault: None,
        };
        let mut lines = Lines::new(file);
        let mut chain = Chain::new();
        chain.begin(first, None);
        let mut pending = None;
        for line in 1.. {
            let (whole, text) = match lines.advance()? {
                Next::End(part) => {
                    tail.rest = lines.at() + part - tail.whole;
                    break;
                }
                Next::TooLong => {
                    chain.lose();
                    (false, Some("this line is too long".to_owned()))
                }
                Next::Line => {
                    let checked = chain.check(lines.line(), (line == 1).then_some(first));
                    (checked.whole, checked.fault)
                }
            };
            pending = pending.or(text.map(|text| Fault {
                segment: name.to_owned(),
                line,
                text,
            }));
            if whole {
                tail.whole = lines.at();
                tail.chain = chain.clone();
                tail.fault = tail.fault.or(pending.take());
            }
        }
        if tail.rest > 0 && !tail.is_torn() {
            tail.fault.get_or_insert(Fault {
                segment: name.to_owned(),
                line: pending.map_or(0, |fault| fault.line),
                text: format!("{} bytes that are no entries", tail.rest),
            });
        }
        Ok(tail)
    }

    /// Whether what is behind the last whole line may be what a crash left.
    pub fn is_torn(&self) -> bool {
        self.rest > 0 && self.rest <= MAX_TAIL_BYTES
    }
}
