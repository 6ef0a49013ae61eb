//! Whether a ring of files is what was written.

use serde::{Deserialize, Serialize};

/// What checking every line of a ring showed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    pub segments: u64,
    pub entries: u64,
    pub bytes: u64,
    /// The first and the last entry that are there: number, and time in microseconds since the epoch. The ring is bounded: that the
    /// first is not number 1 is no fault.
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
    /// The last entry that a head vouches for which is signed with a key that is known from elsewhere, the signature being good and the
    /// hash that of the entry; with that also all entries before it. 0: no such head, or no key is known.
    pub vouched_seq: u64,
    /// That key, base64.
    pub vouched_by: String,
    /// Days that have ended, of which neither such a head nor one of a later entry covers the end; where no key is known, but an entry is,
    /// those that ended after that entry. None where neither is known.
    pub days_without_head: Vec<String>,
    /// The entry that is known from elsewhere, where it is there and has its hash; 0: none is known, or it is not.
    pub compared_seq: u64,
    /// What is not as it was written; empty where everything is.
    pub faults: Vec<Fault>,
}

impl Verdict {
    /// Whether every line is what was written, as far as a chain can show it.
    pub fn is_good(&self) -> bool {
        self.faults.is_empty()
    }
}

/// A day's signed head.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SignedHead {
    pub day: String,
    pub seq: u64,
    pub hash: String,
    pub key: String,
    pub signature: String,
    /// Whether the signature is the key's, and the hash that of the entry `seq` where that is still there.
    pub good: bool,
}

/// Something that was changed, is missing, or cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fault {
    /// The file's name.
    pub segment: String,
    /// From 1; 0 where it is the file as a whole.
    pub line: u64,
    pub text: String,
}
