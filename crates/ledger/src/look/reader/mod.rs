//! One look at all seats: which file is read when, and what is believed of it.

mod attempt;
mod candidate;
mod fill;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use stelia_node::counters::ParseError;

use super::files::{Below, Files};
use super::kernel_threads::{KernelThreads, identity};
use super::{Look, Seat, Thread};
use candidate::{Before, Candidate};

/// How often the files are read until a seat's counters agree with each other.
const TRIES: usize = 5;

/// Why there is no look.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The system's.
    #[error("read {path}: {cause}")]
    Read { path: String, cause: io::Error },
    /// The kernel wrote what is not understood, or CPUs came and went at each of some tries.
    #[error("read {path}: {cause}")]
    Form { path: String, cause: ParseError },
}

impl LookError {
    pub(super) fn read(path: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |cause| Self::Read { path, cause }
    }

    fn form(path: &str) -> impl FnOnce(ParseError) -> Self + use<> {
        let path = path.to_owned();
        move |cause| Self::Form { path, cause }
    }
}

/// Reads counters, and knows what it read before.
pub struct Reader {
    files: Box<dyn Files>,
    threads: KernelThreads,
    before: BTreeMap<Seat, Before>,
}

impl Reader {
    /// `root` is `/`, or a folder with another host's `proc` and `sys`.
    pub fn new(root: &Path) -> Self {
        let root = root.to_string_lossy();
        Self::with(Box::new(Below::new(root.trim_end_matches('/'))))
    }

    fn with(files: Box<dyn Files>) -> Self {
        Self {
            files,
            threads: KernelThreads::default(),
            before: BTreeMap::new(),
        }
    }

    /// Read the counters of these seats. Those with an offline CPU or a thread that ended are missing in the answer, and are new
    /// when they come again.
    ///
    /// # Cost
    /// The node's files are read once, `/proc/schedstat` up to five times; three files of each thread, more of those whose counters
    /// moved while they were read; and three of each bound kernel thread of a seat where something other than its threads ran. It does
    /// not depend on how many tasks the host has, but for the list of the root cgroup, and each new thread in it once.
    ///
    /// # Errors
    /// A file that cannot be read or has not the form it should. Nothing is known then, and the next look is as if this had not been.
    pub fn look(&mut self, seats: &BTreeSet<Seat>) -> Result<Look, LookError> {
        // One for all files, and not kept: the daemon's idle memory has none of it.
        let mut buffer = Vec::new();
        let mut candidates: Vec<Candidate<'_>> = seats
            .iter()
            .map(|seat| Candidate::new(seat, self.before.get(seat)))
            .collect();
        let mut look = Look::default();
        for number in 0..TRIES {
            if number > 0 && !candidates.iter().any(Candidate::is_open) {
                break;
            }
            let clocks = attempt::take(&*self.files, &mut self.threads, &mut candidates, &mut buffer)?;
            if number == 0 {
                (look.at_us, look.up_us) = clocks;
            }
        }
        let mut before = BTreeMap::new();
        for candidate in candidates {
            let seat = candidate.seat;
            let Some((mut counters, rest)) = candidate.best() else {
                continue;
            };
            // Last of all: a thread that is there now was there all the time.
            if !ended(&*self.files, seat.threads.iter(), &mut buffer)?.is_empty() {
                continue;
            }
            if counters.bound_read {
                // What has not run since the last look need not be looked at: another with its number would have.
                let known = self.before.get(seat).map(|before| &before.bound);
                let ran = counters.bound.iter().filter(|(thread, bound)| {
                    let known = known.and_then(|known| known.get(thread));
                    known.is_none_or(|known| known.switches != bound.switches)
                });
                for gone in ended(&*self.files, ran.map(|(thread, _)| thread), &mut buffer)? {
                    counters.bound.remove(&gone);
                    self.threads.forget(gone.id);
                }
            }
            let bound = counters.bound.clone();
            before.insert(seat.clone(), Before { bound, rest });
            look.seats.insert(seat.clone(), counters);
        }
        fill::fill(&*self.files, &mut look.seats, &mut buffer)?;
        before.retain(|seat, _| look.seats.contains_key(seat));
        self.before = before;
        self.files.ended(seats.is_empty());
        Ok(look)
    }
}

/// Those of these threads that ended: their number is nobody's or another's.
fn ended<'a>(
    files: &dyn Files,
    threads: impl Iterator<Item = &'a Thread>,
    buffer: &mut Vec<u8>,
) -> Result<Vec<Thread>, LookError> {
    let mut ended = Vec::new();
    for thread in threads {
        let stat = identity(files, thread.id, buffer)?;
        if stat.is_none_or(|stat| stat.start != thread.start) {
            ended.push(*thread);
        }
    }
    Ok(ended)
}
