//! Whether a line follows the one before.

use std::ops::Range;

use stelia_text::excerpt;

use super::line::{Hash, Stub, split};
use crate::entry::Entry;

/// The hash of the previous line.
#[derive(Debug, Clone, Copy)]
enum Predecessor {
    /// No line was read yet.
    Nothing,
    Known(Hash),
    /// It has none that could be read.
    Lost,
}

/// Goes from line to line. A line that is wrong is one fault, not a fault of all that follow: those are compared with the hash that the
/// wrong line names.
#[derive(Debug, Clone)]
pub struct Chain {
    before: Predecessor,
    /// The number of the next entry; the least one where lines before it were wrong.
    next: Option<u64>,
    exact: bool,
    /// Numbers that the segment may have: from its own name on, and before the next one's.
    numbers: Range<u64>,
    /// Lines with a hash since the last one that was right.
    wrong: u64,
}

/// What a line showed.
#[derive(Debug, Default)]
pub struct Checked {
    /// The line has a hash and an entry, wrong or right: no crash leaves one that is wrong.
    pub whole: bool,
    pub fault: Option<String>,
    /// An entry that is as it was written. At the beginning of a segment it may come with a fault: the one before is missing.
    pub entry: Option<(Entry, Hash)>,
}

impl Checked {
    fn wrong(whole: bool, fault: impl ToString) -> Self {
        Self {
            whole,
            fault: Some(fault.to_string()),
            entry: None,
        }
    }
}

impl Chain {
    pub fn new() -> Self {
        Self {
            before: Predecessor::Nothing,
            next: None,
            exact: false,
            numbers: 0..u64::MAX,
            wrong: 0,
        }
    }

    /// The segment that begins with `first` is next, and behind it the one that begins with `until`.
    pub fn begin(&mut self, first: u64, until: Option<u64>) {
        self.numbers = first..until.unwrap_or(u64::MAX);
    }

    /// The number of the next entry, and the hash that it follows: `None` where no line had one.
    pub fn end(&self) -> (u64, Option<Hash>) {
        let hash = match self.before {
            Predecessor::Known(hash) => Some(hash),
            Predecessor::Nothing | Predecessor::Lost => None,
        };
        (self.next.unwrap_or(self.numbers.start).saturating_add(self.wrong), hash)
    }

    /// Something was there that has no hash.
    pub fn lose(&mut self) {
        self.before = Predecessor::Lost;
        self.exact = false;
    }

    /// The entries before are gone because the ring is bounded.
    pub fn forget(&mut self) {
        *self = Self::new();
    }

    /// Check one line, without its newline. `first` is the number in the file's name where this is its first line.
    pub fn check(&mut self, line: &[u8], first: Option<u64>) -> Checked {
        let Some((hash, json)) = split(line) else {
            self.lose();
            return Checked::wrong(false, "this is no line of a ledger: it does not begin with a hash");
        };
        let read: Result<Entry, _> = serde_json::from_slice(json);
        let stub = match &read {
            Ok(entry) => Some(Stub {
                seq: entry.seq,
                at: entry.at,
                before: entry.before.clone(),
            }),
            Err(_) => serde_json::from_slice(json).ok(),
        };
        let own = stub.as_ref().and_then(|stub| Hash::read(stub.before.as_bytes()));
        let before = match (self.before, first) {
            (_, Some(_)) => own,
            (Predecessor::Known(before), None) => Some(before),
            (Predecessor::Nothing | Predecessor::Lost, None) => None,
        };
        let matches = before.map(|before| Hash::of(&before, json) == hash);
        let last = std::mem::replace(&mut self.before, Predecessor::Known(hash));
        let Some(stub) = stub.filter(|_| matches == Some(true)) else {
            self.exact = false;
            self.wrong = self.wrong.saturating_add(1);
            let fault = match (matches, first) {
                (Some(true), _) => "there is no entry behind its hash",
                (Some(false), _) => {
                    "its hash is not that of its text behind the line before: it was changed, or a line is missing"
                }
                (None, Some(_)) => "it begins a segment without the hash of the entry before",
                (None, None) => "it cannot be checked: the line before has no hash",
            };
            return Checked::wrong(read.is_ok() || matches == Some(true), fault);
        };
        let fault = self.follows(&stub, first, last, own);
        // A segment says all that is needed to read it alone, so what is missing before it does not make it wrong.
        let begins = first == Some(stub.seq) && self.next.is_none_or(|next| next <= stub.seq);
        if fault.is_none() || begins {
            self.next = Some(stub.seq.saturating_add(1));
            self.wrong = 0;
        } else {
            self.wrong = self.wrong.saturating_add(1);
        }
        self.exact = fault.is_none() || begins;
        match read {
            Ok(entry) if fault.is_none() || begins => Checked {
                whole: true,
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
    fn follows(&self, stub: &Stub, first: Option<u64>, last: Predecessor, own: Option<Hash>) -> Option<String> {
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
                (Predecessor::Known(hash), Some(own)) if hash != own => {
                    Some(format!("number {seq} follows another entry than the one before it"))
                }
                _ => None,
            },
        }
    }
}
