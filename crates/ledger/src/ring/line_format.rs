//! The format of a line: a hash, a space, and an entry as JSON.

use std::fmt;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::RingError;
use crate::entry::Entry;

/// Limit of a line with its newline, in bytes. The first entry of a segment with 4096 seats has 4 MiB.
pub const MAX_LINE_BYTES: usize = 8 << 20;

/// A SHA-256 as in a line: 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hash([u8; 64]);

impl Hash {
    /// The hash that the ring's first entry names as that of the entry before.
    pub const NONE: Self = Self([b'0'; 64]);

    /// `None` if it is not 64 lowercase hexadecimal digits.
    pub fn parse(digits: &[u8]) -> Option<Self> {
        let hash: [u8; 64] = digits.try_into().ok()?;
        let hexadecimal = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        hash.iter().all(hexadecimal).then_some(Self(hash))
    }

    /// The hash of an entry with this text that follows the entry with the hash `before`.
    pub fn of(before: &Self, json: &[u8]) -> Self {
        let digest = Sha256::new()
            .chain_update(before.0)
            .chain_update(b"\n")
            .chain_update(json)
            .finalize();
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(digest) {
            for (digit, half) in pair.iter_mut().zip([byte >> 4, byte & 15]) {
                *digit = if half < 10 { b'0' + half } else { b'a' + half - 10 };
            }
        }
        Self(digits)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.iter().try_for_each(|digit| write!(f, "{}", char::from(*digit)))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The members of an entry that the chain needs. It can be read even if a newer version has added others.
#[derive(Debug, Deserialize)]
pub struct Stub {
    pub seq: u64,
    pub at: u64,
    #[serde(default)]
    pub before: String,
}

/// The line of an entry, with its newline, and its hash.
pub fn write(before: &Hash, entry: &Entry) -> Result<(Vec<u8>, Hash), RingError> {
    let mut line = vec![b' '; 65];
    serde_json::to_writer(&mut line, entry).map_err(RingError::Entry)?;
    let (digits, json) = line.split_at_mut(65);
    let hash = Hash::of(before, json);
    digits[..64].copy_from_slice(&hash.0);
    line.push(b'\n');
    Ok((line, hash))
}

/// The hash and the JSON text of a line without its newline; `None` if it has another form.
pub fn split(line: &[u8]) -> Option<(Hash, &[u8])> {
    let (digits, rest) = line.split_at_checked(64)?;
    Some((Hash::parse(digits)?, rest.strip_prefix(b" ")?))
}
