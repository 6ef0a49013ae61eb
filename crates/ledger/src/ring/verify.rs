//! Whether a ring is what was written.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use super::RingError;
use super::key;
use super::read::Entries;
use crate::day::day;
use crate::entry::{Entry, Event};
use crate::verdict::{Fault, SignedHead, Verdict};

/// What is checked.
#[derive(Debug, Clone, Copy)]
pub enum Ring<'a> {
    Directory(&'a Path),
    /// Segments that were copied from somewhere, in any order; those that follow each other.
    Files(&'a [PathBuf]),
}

/// Limit of the faults that are listed; further ones are counted.
const MAX_FAULTS: u64 = 1000;
/// Limit of the entries whose hashes are held for heads that name them: a head is written soon after its entry.
const MAX_HELD_LINES: usize = 4096;

/// As [`check`], for whoever has a ring from somebody else. Where keys are known, it is a fault too that none of them vouches for anything,
/// or not for a day that has ended: whoever made the ring could have left out the heads. Where only an entry is known, it is a fault that a
/// day has ended after it: anybody can go on from that entry.
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
        (false, 0, _) => {
            Some("no head that is here is signed with a known key: nobody vouches for any entry".to_owned())
        }
        (.., []) => None,
        (false, seq, [first, ..]) => Some(format!(
            "a known key vouches up to entry {seq} only: {} without a head of it",
            ended(first, &verdict)
        )),
        (true, _, [first, ..]) => match verdict.compared_seq {
            // That it cannot be compared is a fault already.
            0 => None,
            seq => Some(format!(
                "the entry that is known vouches up to entry {seq} only: {} after it",
                ended(first, &verdict)
            )),
        },
    };
    verdict.faults.extend(missing.map(|text| Fault {
        text,
        ..Fault::default()
    }));
    Ok(verdict)
}

/// The days that have ended and that nobody vouches for, from this one on.
fn ended(first: &str, verdict: &Verdict) -> String {
    let last = verdict.days_without_head.last().map_or(first, String::as_str);
    format!("the days from {first} to {last} have ended")
}

/// Read everything and compare: the chain, the numbers, the files' names, the signed heads.
///
/// `known` are public keys, base64: where there are any, another key is a fault. `expected` is the number and the hash of an entry that is
/// known from elsewhere: it is a fault if that cannot be compared. Without it nobody sees that entries at the end are missing, as nobody
/// sees it of those at the beginning, which the ring removes itself.
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
                for text in check.entry(&entry, hash) {
                    check.fault(entries.fault(text));
                }
            }
        }
    }
    check.verdict.segments = entries.seen.segments;
    check.verdict.bytes = entries.seen.bytes;
    Ok(check.end())
}

#[derive(Default)]
struct Check<'a> {
    known: BTreeSet<&'a str>,
    expected: Option<(u64, &'a str)>,
    verdict: Verdict,
    /// The last entries, ascending.
    held: VecDeque<(u64, String)>,
    /// The day of the entry before; and the days before it that no head of a known key covers yet, with the number of the last entry of each.
    day: String,
    ended: Vec<(String, u64)>,
    left_out: u64,
    /// The entry that is expected was there.
    met: bool,
}

impl Check<'_> {
    fn fault(&mut self, fault: Fault) {
        if (self.verdict.faults.len() as u64) < MAX_FAULTS {
            self.verdict.faults.push(fault);
        } else {
            self.left_out += 1;
        }
    }

    /// What is wrong with an entry besides its place.
    fn entry(&mut self, entry: &Entry, hash: String) -> Vec<String> {
        let mut faults = Vec::new();
        let verdict = &mut self.verdict;
        if verdict.entries == 0 {
            (verdict.first_seq, verdict.first_us) = (entry.seq, entry.at);
        }
        let today = day(entry.at);
        if verdict.entries > 0 && self.day != today {
            self.ended.push((std::mem::take(&mut self.day), verdict.last_seq));
        }
        self.day = today;
        verdict.entries += 1;
        (verdict.last_seq, verdict.last_us) = (entry.seq, entry.at);
        verdict.hash.clone_from(&hash);
        if let Some((seq, expected)) = self.expected.filter(|(seq, _)| *seq == entry.seq) {
            self.met = true;
            match expected == hash {
                true => verdict.compared_seq = seq,
                false => faults.push(format!("entry {seq} has another hash than the one that is known of it")),
            }
        }
        for event in &entry.events {
            match event {
                Event::Key { key } => {
                    self.name(key);
                    if self.is_strange(key) {
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
                    let fault = self.head(entry.seq, (day, *seq, hash), key, signature);
                    self.name(key);
                    if fault.is_none() {
                        self.vouch(*seq, key);
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
                _ => {}
            }
        }
        if self.held.len() == MAX_HELD_LINES {
            self.held.pop_front();
        }
        self.held.push_back((entry.seq, hash));
        faults
    }

    fn name(&mut self, key: &str) {
        if !self.verdict.keys.iter().any(|named| named == key) {
            self.verdict.keys.push(key.to_owned());
        }
    }

    fn is_strange(&self, key: &str) -> bool {
        !self.known.is_empty() && !self.known.contains(key)
    }

    /// A good head. One of an entry that is gone shows nothing of those that are here.
    fn vouch(&mut self, seq: u64, key: &str) {
        let verdict = &mut self.verdict;
        if !self.known.is_empty() && seq >= verdict.first_seq {
            verdict.vouched_seq = seq;
            key.clone_into(&mut verdict.vouched_by);
            // A head that was kept back, and comes late, covers no day after its entry.
            self.ended.retain(|(_, last)| *last > seq);
        }
    }

    fn head(&self, at: u64, (day, seq, hash): (&str, u64, &str), key: &str, signature: &str) -> Option<&'static str> {
        if !key::is_signed(day, seq, hash, key, signature) {
            return Some("the signature is not that of its key");
        }
        if self.is_strange(key) {
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
        match self.held.binary_search_by_key(&seq, |(seq, _)| *seq) {
            Ok(index) if self.held.get(index).is_some_and(|(_, held)| held == hash) => None,
            Ok(_) => Some("its hash is not that of the entry"),
            // Where the entry itself is wrong that is a fault already, and what was signed cannot be compared.
            Err(_) => Some("its entry is not there to be compared"),
        }
    }

    /// Why an entry that is known cannot be compared. One that has another hash was.
    fn uncompared(&self, seq: u64) -> Option<String> {
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
            _ if self.met => return None,
            _ => "it is not there as it was written".to_owned(),
        };
        Some(format!("entry {seq}, which is known, cannot be compared: {why}"))
    }

    fn end(mut self) -> Verdict {
        if let Some((seq, _)) = self.expected {
            let uncompared = self.uncompared(seq);
            self.verdict.faults.extend(uncompared.map(|text| Fault {
                text,
                ..Fault::default()
            }));
        }
        let compared = self.verdict.compared_seq;
        if self.known.is_empty() {
            self.ended.retain(|(_, last)| *last > compared);
        }
        if !self.known.is_empty() || self.expected.is_some() {
            self.verdict.days_without_head = self.ended.drain(..).map(|(day, _)| day).collect();
        }
        if self.left_out > 0 {
            self.verdict.faults.push(Fault {
                text: format!("{} more", self.left_out),
                ..Fault::default()
            });
        }
        self.verdict
    }
}
