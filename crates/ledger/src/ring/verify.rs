//! Checks a ring for changes.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use super::RingError;
use super::key;
use super::read::Entries;
use crate::day::day;
use crate::entry::{Entry, Event};
use crate::verdict::{Fault, SignedHead, Verdict};

/// The ring to check.
#[derive(Debug, Clone, Copy)]
pub enum Ring<'a> {
    Directory(&'a Path),
    /// Copies of consecutive segments, in any order.
    Files(&'a [PathBuf]),
}

/// Limit of the faults that are listed; further ones are counted.
const MAX_FAULTS: u64 = 1000;
/// Limit of the entries whose hashes are held to compare them with heads. A head is written soon after its entry.
const MAX_HELD_HASHES: usize = 4096;

/// As [`check`], for a ring that comes from somebody else. With `known` keys it is also a fault if there is no head of such a key, or none
/// for a day that has ended: who made the ring could have left out the heads. With only an `expected` entry it is a fault if a day has ended
/// after it, because anybody can continue from that entry.
///
/// # Errors
/// The directory cannot be read. Everything else is a fault.
pub fn verify(ring: Ring, known: &[String], expected: Option<(u64, &str)>) -> Result<Verdict, RingError> {
    let mut verdict = check(ring, known, expected)?;
    let missing = match (
        known.is_empty(),
        verdict.vouched_seq,
        verdict.days_without_head.as_slice(),
    ) {
        (false, 0, _) => Some("no signature is of a given key: no entry is verified".to_owned()),
        (.., []) => None,
        (false, seq, [first, ..]) => Some(format!(
            "the given key verifies up to entry {seq} only: {} without a signature of it",
            ended_days(first, &verdict)
        )),
        (true, _, [first, ..]) => match verdict.compared_seq {
            // There is already a fault that it cannot be compared.
            0 => None,
            seq => Some(format!(
                "the expected entry verifies up to entry {seq} only: {} after it",
                ended_days(first, &verdict)
            )),
        },
    };
    verdict.faults.extend(missing.map(Fault::from));
    Ok(verdict)
}

/// The text about the days that have ended and that no head covers, from this one on.
fn ended_days(first: &str, verdict: &Verdict) -> String {
    let last = verdict.days_without_head.last().map_or(first, String::as_str);
    format!("the days from {first} to {last} have ended")
}

/// Reads everything and checks the chain, the numbers, the files' names and the signed heads.
///
/// `known` are public keys, base64: if there are any, another key in the ring is a fault. `expected` is the number and the hash of an entry
/// that the caller has from elsewhere: it is a fault if it cannot be compared. Without it, missing entries at the end are not noticed, nor
/// are those at the beginning, which the ring removes itself.
///
/// # Errors
/// The directory cannot be read. Everything else is a fault.
pub fn check(ring: Ring, known: &[String], expected: Option<(u64, &str)>) -> Result<Verdict, RingError> {
    let mut entries = match ring {
        Ring::Directory(directory) => Entries::of_directory(directory)?,
        Ring::Files(files) => Entries::of_files(files),
    };
    let mut check = Check {
        known: known.iter().map(String::as_str).collect(),
        expected,
        ..Check::default()
    };
    while let Some(next) = entries.next() {
        match next {
            Err(fault) => check.fault(fault),
            Ok((entry, hash)) => {
                for text in check.check_entry(&entry, hash) {
                    check.fault(entries.fault(text));
                }
            }
        }
    }
    check.verdict.segments = entries.progress.segments;
    check.verdict.bytes = entries.progress.bytes;
    Ok(check.finish())
}

#[derive(Default)]
struct Check<'a> {
    known: BTreeSet<&'a str>,
    expected: Option<(u64, &'a str)>,
    verdict: Verdict,
    /// Numbers and hashes of the last entries, ascending.
    hashes: VecDeque<(u64, String)>,
    /// The day of the entry before.
    day: String,
    /// The days before it that no head of a known key covers yet, with the number of the last entry of each.
    uncovered_days: Vec<(String, u64)>,
    faults_left_out: u64,
    /// Whether the expected entry was read.
    has_expected: bool,
}

impl Check<'_> {
    fn fault(&mut self, fault: Fault) {
        if (self.verdict.faults.len() as u64) < MAX_FAULTS {
            self.verdict.faults.push(fault);
        } else {
            self.faults_left_out += 1;
        }
    }

    /// Checks an entry that is in its place, and returns its faults.
    fn check_entry(&mut self, entry: &Entry, hash: String) -> Vec<String> {
        let mut faults = Vec::new();
        let verdict = &mut self.verdict;
        if verdict.entries == 0 {
            (verdict.first_seq, verdict.first_us) = (entry.seq, entry.at);
        }
        let today = day(entry.at);
        if verdict.entries > 0 && self.day != today {
            self.uncovered_days
                .push((std::mem::take(&mut self.day), verdict.last_seq));
        }
        self.day = today;
        verdict.entries += 1;
        (verdict.last_seq, verdict.last_us) = (entry.seq, entry.at);
        verdict.hash.clone_from(&hash);
        if let Some((seq, expected)) = self.expected.filter(|(seq, _)| *seq == entry.seq) {
            self.has_expected = true;
            if expected == hash {
                verdict.compared_seq = seq;
            } else {
                faults.push(format!("entry {seq} has another hash than the one that is known of it"));
            }
        }
        for event in &entry.events {
            match event {
                Event::Key { key } => {
                    self.add_key(key);
                    if self.is_unknown(key) {
                        faults.push(format!("it names an unknown key as the one in use: {key}"));
                    }
                }
                Event::Head {
                    day,
                    seq,
                    hash,
                    key,
                    signature,
                } => {
                    let fault = self.head_fault(entry.seq, (day, *seq, hash), key, signature);
                    self.add_key(key);
                    if fault.is_none() {
                        self.note_head(*seq, key);
                    }
                    self.verdict.heads.push(SignedHead {
                        day: day.clone(),
                        seq: *seq,
                        hash: hash.clone(),
                        key: key.clone(),
                        signature: signature.clone(),
                        good: fault.is_none(),
                    });
                    faults.extend(fault.map(|fault| format!("the head of {seq}: {fault}")));
                }
                Event::Newer => self.verdict.newer_events += 1,
                _ => {}
            }
        }
        if self.hashes.len() == MAX_HELD_HASHES {
            self.hashes.pop_front();
        }
        self.hashes.push_back((entry.seq, hash));
        faults
    }

    fn add_key(&mut self, key: &str) {
        if !self.verdict.keys.iter().any(|named| named == key) {
            self.verdict.keys.push(key.to_owned());
        }
    }

    fn is_unknown(&self, key: &str) -> bool {
        !self.known.is_empty() && !self.known.contains(key)
    }

    /// Notes a valid head of a known key. A head of an entry that the ring has removed says nothing about the others.
    fn note_head(&mut self, seq: u64, key: &str) {
        let verdict = &mut self.verdict;
        if !self.known.is_empty() && seq >= verdict.first_seq {
            verdict.vouched_seq = seq;
            key.clone_into(&mut verdict.vouched_by);
            // A head that was written late covers no day after its entry.
            self.uncovered_days.retain(|(_, last)| *last > seq);
        }
    }

    /// What is wrong with a head in entry `at`.
    fn head_fault(
        &self,
        at: u64,
        (day, seq, hash): (&str, u64, &str),
        key: &str,
        signature: &str,
    ) -> Option<&'static str> {
        if !key::is_signed(day, seq, hash, key, signature) {
            return Some("the signature is not that of its key");
        }
        if self.is_unknown(key) {
            return Some("it is signed by an unknown key");
        }
        if self.verdict.heads.iter().any(|head| head.good && head.seq >= seq) {
            return Some("a head before it is of the same entry or a later one");
        }
        if seq >= at {
            return Some("it is of an entry that was not written yet");
        }
        if seq < self.verdict.first_seq {
            return None;
        }
        match self.hashes.binary_search_by_key(&seq, |(seq, _)| *seq) {
            Ok(index) if self.hashes.get(index).is_some_and(|(_, other)| other == hash) => None,
            Ok(_) => Some("its hash is not that of the entry"),
            // If the entry is wrong, that is a fault already, and the signed hash cannot be compared.
            Err(_) => Some("its entry is not there to be compared"),
        }
    }

    /// Why the expected entry could not be compared, if it was not.
    fn not_compared(&self, seq: u64) -> Option<String> {
        let Verdict {
            entries,
            first_seq: first,
            last_seq: last,
            ..
        } = self.verdict;
        let why = match seq {
            _ if entries == 0 => "the ledger has no entries".to_owned(),
            _ if seq < first => format!("the ledger begins with number {first}, after it"),
            _ if seq > last => format!("the ledger ends at number {last}, before number {seq} which is known"),
            _ if self.has_expected => return None,
            _ => "it is not there as it was written".to_owned(),
        };
        Some(format!("entry {seq}, which is known, cannot be compared: {why}"))
    }

    fn finish(mut self) -> Verdict {
        if let Some((seq, _)) = self.expected {
            let not_compared = self.not_compared(seq);
            self.verdict.faults.extend(not_compared.map(Fault::from));
        }
        let compared = self.verdict.compared_seq;
        if self.known.is_empty() {
            self.uncovered_days.retain(|(_, last)| *last > compared);
        }
        if !self.known.is_empty() || self.expected.is_some() {
            self.verdict.days_without_head = self.uncovered_days.drain(..).map(|(day, _)| day).collect();
        }
        if self.faults_left_out > 0 {
            let text = format!("{} more", self.faults_left_out);
            self.verdict.faults.push(Fault::from(text));
        }
        self.verdict
    }
}
