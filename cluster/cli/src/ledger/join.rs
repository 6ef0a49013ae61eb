//! Copies of one ring: which belong together, and their entries in order, each once.

use std::path::Path;
use std::slice;

use stelia_ledger::account::accounts;
use stelia_ledger::entry::Entry;
use stelia_ledger::ring::read::{self, Entries};
use stelia_ledger::verdict::Verdict;

use super::rings::{ReadRing, in_words};

/// A checked copy and its place among the arguments.
type Placed = (usize, ReadRing);

/// Copies of one ring that overlap or follow each other.
#[derive(Debug, Default)]
struct Chain {
    /// Those that have entries which the ones before do not have, ascending.
    parts: Vec<Placed>,
    /// The others.
    repetitions: Vec<Placed>,
}

/// How a copy belongs to a chain.
#[derive(Debug, Clone, Copy)]
enum Belongs {
    Continues,
    Repeats,
}

/// Makes the accounts of checked copies for a period, and returns the copies in their order. Accounts of copies that are joined are those of
/// the copy that ends last.
pub(super) fn with_accounts(rings: Vec<ReadRing>, since_us: u64, until_us: u64) -> Vec<ReadRing> {
    let is_good = |(_, ring): &Placed| ring.problem.is_none() && ring.verdict.entries > 0;
    let (mut good, mut all): (Vec<Placed>, Vec<Placed>) = rings.into_iter().enumerate().partition(is_good);
    good.sort_by_key(|(_, ring)| (ring.verdict.first_seq, ring.verdict.last_seq));
    let mut chains: Vec<Chain> = Vec::new();
    for next in good {
        let chain = chains
            .iter_mut()
            .find_map(|chain| Some((chain.belongs(&next.1)?, chain)));
        match chain {
            Some((Belongs::Continues, chain)) => chain.parts.push(next),
            Some((Belongs::Repeats, chain)) => chain.repetitions.push(next),
            None => chains.push(Chain {
                parts: vec![next],
                ..Chain::default()
            }),
        }
    }
    all.extend(chains.into_iter().flat_map(|chain| chain.read(since_us, until_us)));
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, ring)| ring).collect()
}

impl Chain {
    /// An entry's hash depends on all entries before it, so copies with the same hash of one entry have the same entries before it.
    fn belongs(&self, ring: &ReadRing) -> Option<Belongs> {
        let (_, end) = self.parts.last().filter(|(_, end)| end.node == ring.node)?;
        let (has, new) = (&end.verdict, &ring.verdict);
        if new.last_seq <= has.last_seq {
            return has_last_entry(&end.directory, new).then_some(Belongs::Repeats);
        }
        let follows = if new.first_seq <= has.last_seq {
            has_last_entry(&ring.directory, has)
        } else {
            new.first_seq == has.last_seq.saturating_add(1) && begins_after(&ring.directory, has)
        };
        follows.then_some(Belongs::Continues)
    }

    /// Makes the accounts. What cannot be read is the problem of all copies, because none of them is counted then.
    fn read(mut self, since_us: u64, until_us: u64) -> Vec<Placed> {
        let mut joined = Joined {
            copies: self.parts.iter(),
            // Which segments are left out is decided in each copy for itself, and joined copies must have no gap between them.
            since_us: (self.parts.len() == 1).then_some(since_us),
            open: None,
            last_seq: 0,
            problem: None,
        };
        let made = accounts(&mut joined, since_us, until_us, None);
        let problem = joined.problem;
        let times = self.parts.iter();
        let times = times.flat_map(|(_, ring)| [ring.verdict.first_us, ring.verdict.last_us]);
        // The realtime clock may have been set back.
        let (from_us, until_us) = times.fold((u64::MAX, 0), |(from, until), at| (from.min(at), until.max(at)));
        if let (Some((_, last)), None) = (self.parts.last_mut(), &problem) {
            last.accounts = made.into_values().collect();
            (last.from_us, last.until_us) = (from_us, until_us);
        }
        let mut all = self.parts;
        all.append(&mut self.repetitions);
        if problem.is_some() {
            all.iter_mut().for_each(|(_, ring)| ring.problem.clone_from(&problem));
        }
        all
    }
}

/// Whether a copy has the last entry of another.
fn has_last_entry(directory: &Path, other: &Verdict) -> bool {
    // If the clock was set, the segment of the entry may be left out. The copies are then not joined.
    let Ok(entries) = read::entries(directory, Some(other.last_us)) else {
        return false;
    };
    let found = entries.flatten().find(|(entry, _)| entry.seq >= other.last_seq);
    found.is_some_and(|(entry, hash)| entry.seq == other.last_seq && hash == other.hash)
}

/// Whether a copy begins with the entry that follows the last one of another.
fn begins_after(directory: &Path, other: &Verdict) -> bool {
    let first = read::entries(directory, None).map(|mut entries| entries.next());
    matches!(first, Ok(Some(Ok((entry, _)))) if entry.before == other.hash)
}

/// The entries of a chain's copies. It ends at the first that cannot be read.
struct Joined<'a> {
    copies: slice::Iter<'a, Placed>,
    since_us: Option<u64>,
    open: Option<Entries>,
    last_seq: u64,
    problem: Option<String>,
}

impl Iterator for Joined<'_> {
    type Item = (Entry, String);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(open) = &mut self.open else {
                let (_, copy) = self.copies.next()?;
                match read::entries(&copy.directory, self.since_us) {
                    Ok(entries) => self.open = Some(entries),
                    Err(cause) => {
                        self.problem = Some(cause.to_string());
                        return None;
                    }
                }
                continue;
            };
            match open.next() {
                None => self.open = None,
                Some(Ok((entry, hash))) if entry.seq > self.last_seq => {
                    self.last_seq = entry.seq;
                    return Some((entry, hash));
                }
                // A copy before it has it.
                Some(Ok(_)) => {}
                Some(Err(fault)) => {
                    self.problem = Some(in_words(&fault, 1));
                    return None;
                }
            }
        }
    }
}
