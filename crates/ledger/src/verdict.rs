//! The result of checking a ring for changes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The result of checking every line of a ring.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub segments: u64,
    pub entries: u64,
    pub bytes: u64,
    /// The first and the last entry: number, and time in microseconds since the epoch. The first number may be above 1, because the
    /// ring removes its oldest segments.
    pub first_seq: u64,
    pub first_us: u64,
    pub last_seq: u64,
    pub last_us: u64,
    /// The hash of the last entry, 64 hexadecimal digits.
    pub hash: String,
    /// The signed heads, ascending.
    pub heads: Vec<SignedHead>,
    /// Public keys that the ring names, base64, in order of their first use.
    pub keys: Vec<String>,
    /// The last entry for which there is a valid head, with the entry's hash and signed with a key that the caller gave. The head also
    /// covers all entries before it. 0: there is no such head, or the caller gave no key.
    pub vouched_seq: u64,
    /// The key that signed that head, base64.
    pub vouched_by: String,
    /// Days that have ended and that no such head covers to their end. If the caller gave an entry and no key: the days that ended
    /// after that entry. If it gave neither: none.
    pub days_without_head: Vec<String>,
    /// The entry that the caller gave, if it exists and has the hash that the caller gave; else 0.
    pub compared_seq: u64,
    /// Events of a newer version. They are as they were written, and nothing of them is read.
    pub newer_events: u64,
    /// What was changed since it was written.
    pub faults: Vec<Fault>,
}

impl Verdict {
    /// No fault, and every signature is good.
    pub fn is_good(&self) -> bool {
        self.faults.is_empty() && self.heads.iter().all(|head| head.good)
    }
}

/// A day's signed head.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedHead {
    pub day: String,
    pub seq: u64,
    pub hash: String,
    pub key: String,
    pub signature: String,
    /// Whether the signature is the key's, and the hash is that of the entry `seq`, if the ring still has that.
    pub good: bool,
}

/// Something that was changed, is missing, or cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The file's name.
    pub segment: String,
    /// From 1; 0: the fault is of the whole file.
    pub line: u64,
    pub text: String,
}

/// `FILE, line 7: TEXT`.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.segment.as_str(), self.line) {
            ("", _) => f.write_str(&self.text),
            (file, 0) => write!(f, "{file}: {}", self.text),
            (file, line) => write!(f, "{file}, line {line}: {}", self.text),
        }
    }
}

/// A fault of the ring that is not in one file.
impl From<String> for Fault {
    fn from(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }
}
