//! Checks that each line of the ring follows the one before.

use std::ops::Range;

use stelia_cpus::text::excerpt;

use super::line_format::{Hash, Stub, split};
use crate::entry::Entry;

/// The hash of the previous line.
#[derive(Debug, Clone, Copy)]
enum Predecessor {
    /// No line was read yet.
    NoLine,
    Hash(Hash),
    /// The previous line has no hash.
    Unreadable,
}

/// The state of the check from line to line. A wrong line is one fault and not a fault of all later lines: the next line is compared with
/// the hash in the wrong one.
#[derive(Debug, Clone)]
pub struct Chain {
    before: Predecessor,
    /// The number of the next entry; its least possible number if [`exact`](Self::exact) is not set.
    next: Option<u64>,
    /// Whether the line before was right.
    exact: bool,
    /// The numbers that the segment's entries may have: from that in its name on, below that of the next segment.
    numbers: Range<u64>,
    /// The number of lines with a hash since the last one that was right.
    wrong_lines: u64,
}

/// The result of checking a line.
#[derive(Debug, Default)]
pub struct Checked {
    /// Whether the line has a hash and an entry, wrong or right. A crash does not leave such a line with a wrong hash.
    pub complete: bool,
    pub fault: Option<String>,
    /// The entry, if it is as it was written. At the beginning of a segment there may be a fault besides: the entry before is missing.
    pub entry: Option<(Entry, Hash)>,
}

impl Checked {
    fn wrong(complete: bool, fault: impl ToString) -> Self {
        Self {
            complete,
            fault: Some(fault.to_string()),
            entry: None,
        }
    }
}

impl Chain {
    pub fn new() -> Self {
        Self {
            before: Predecessor::NoLine,
            next: None,
            exact: false,
            numbers: 0..u64::MAX,
            wrong_lines: 0,
        }
    }

    /// Begins the segment whose first entry is `first`; the next segment begins with `until`.
    pub fn begin_segment(&mut self, first: u64, until: Option<u64>) {
        self.numbers = first..until.unwrap_or(u64::MAX);
    }

    /// The number of the next entry, and the hash that it follows; `None` if the last line had none.
    pub fn next_entry(&self) -> (u64, Option<Hash>) {
        let hash = match self.before {
            Predecessor::Hash(hash) => Some(hash),
            Predecessor::NoLine | Predecessor::Unreadable => None,
        };
        (
            self.next.unwrap_or(self.numbers.start).saturating_add(self.wrong_lines),
            hash,
        )
    }

    /// Notes that the last line has no hash.
    pub fn note_unreadable(&mut self) {
        self.before = Predecessor::Unreadable;
        self.exact = false;
    }

    /// Begins anew, because the ring has removed the next segment.
    pub fn restart(&mut self) {
        *self = Self::new();
    }

    /// Checks one line, without its newline. `first` is the number in the file's name, if this is the file's first line.
    pub fn check(&mut self, line: &[u8], first: Option<u64>) -> Checked {
        let Some((hash, json)) = split(line) else {
            self.note_unreadable();
            return Checked::wrong(false, "this is no line of a ledger: it does not begin with a hash");
        };
        let parsed: Result<Entry, _> = serde_json::from_slice(json);
        let stub = match &parsed {
            Ok(entry) => Some(Stub {
                seq: entry.seq,
                at: entry.at,
                before: entry.before.clone(),
            }),
            Err(_) => serde_json::from_slice(json).ok(),
        };
        let own = stub.as_ref().and_then(|stub| Hash::parse(stub.before.as_bytes()));
        let before = match (self.before, first) {
            (_, Some(_)) => own,
            (Predecessor::Hash(before), None) => Some(before),
            (Predecessor::NoLine | Predecessor::Unreadable, None) => None,
        };
        let matches = before.map(|before| Hash::of(&before, json) == hash);
        let last = std::mem::replace(&mut self.before, Predecessor::Hash(hash));
        let Some(stub) = stub.filter(|_| matches == Some(true)) else {
            self.exact = false;
            self.wrong_lines = self.wrong_lines.saturating_add(1);
            let fault = match (matches, first) {
                (Some(true), _) => "there is no entry behind its hash",
                (Some(false), _) => {
                    "its hash is not that of its text behind the line before: it was changed, or a line is missing"
                }
                (None, Some(_)) => "it begins a segment without the hash of the entry before",
                (None, None) => "it cannot be checked: the line before has no hash",
            };
            return Checked::wrong(parsed.is_ok() || matches == Some(true), fault);
        };
        let fault = self.misplaced(&stub, first, last, own);
        // A segment can be read without those before it, so its first entry is right even if entries before it are missing.
        let starts_segment = first == Some(stub.seq) && self.next.is_none_or(|next| next <= stub.seq);
        if fault.is_none() || starts_segment {
            self.next = Some(stub.seq.saturating_add(1));
            self.wrong_lines = 0;
        } else {
            self.wrong_lines = self.wrong_lines.saturating_add(1);
        }
        self.exact = fault.is_none() || starts_segment;
        match parsed {
            Ok(entry) if fault.is_none() || starts_segment => Checked {
                complete: true,
                fault,
                entry: Some((entry, hash)),
            },
            Ok(_) => Checked::wrong(true, fault.unwrap_or_default()),
            Err(error) => {
                let unknown = || format!("it is no entry of this version: {}", excerpt::cause(&error));
                Checked::wrong(true, fault.unwrap_or_else(unknown))
            }
        }
    }

    /// What is wrong with the place of an entry whose hash is right.
    fn misplaced(&self, stub: &Stub, first: Option<u64>, last: Predecessor, own: Option<Hash>) -> Option<String> {
        let seq = stub.seq;
        if first.is_some_and(|first| first != seq) || !self.numbers.contains(&seq) {
            return Some(format!(
                "number {seq} in a segment that begins with {}",
                self.numbers.start
            ));
        }
        if first.is_none() && !stub.before.is_empty() {
            return Some(format!("number {seq} should begin a segment"));
        }
        if seq == 0 || (seq == 1 && own != Some(Hash::NONE)) {
            return Some(format!("number {seq} is not the beginning of a ledger"));
        }
        match self.next {
            Some(next) if seq < next => Some(format!("number {seq} where {next} should be")),
            Some(next) if seq > next && self.exact => Some(format!("numbers {next} to {} are missing", seq - 1)),
            _ => match (last, own) {
                (Predecessor::Hash(hash), Some(own)) if hash != own => {
                    Some(format!("number {seq} follows another entry than the one before it"))
                }
                _ => None,
            },
        }
    }
}
