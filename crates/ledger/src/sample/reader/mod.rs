//! Takes a sample of all seats: decides in which order files are read, and which values are consistent.

mod attempt;
mod candidate;
mod container;
mod loose_counters;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use stelia_kernel::counters::ParseError;

use super::files::{Files, RootedFiles};
use super::kernel_threads::{KernelThreads, read_stat};
use super::{CounterSample, Seat, TaskId};
use candidate::{Candidate, PreviousSample};
pub use container::{MAX_CGROUPS, MAX_TASKS, tasks_of_container};

/// Limit of the attempts to read consistent counters of a seat.
const MAX_READ_ATTEMPTS: usize = 5;

/// How long a container that had too many tasks is not read, in microseconds, so that one that crosses the limit again and again costs
/// little time and few entries.
const TOO_MANY_PAUSE_US: u64 = 3_600_000_000;

/// Why a sample failed.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// A file could not be read.
    #[error("read {path}: {cause}")]
    Read { path: String, cause: io::Error },
    /// A file has an unexpected format, or CPUs went online or offline during each attempt.
    #[error("read {path}: {cause}")]
    Form { path: String, cause: ParseError },
}

impl SampleError {
    pub(super) fn read(path: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |cause| Self::Read { path, cause }
    }

    fn form(path: &str) -> impl FnOnce(ParseError) -> Self + use<> {
        let path = path.to_owned();
        move |cause| Self::Form { path, cause }
    }
}

/// Reads counters. It holds its last sample, to read bound threads only if they can have run.
pub struct Reader {
    files: Box<dyn Files>,
    threads: KernelThreads,
    before: BTreeMap<Seat, PreviousSample>,
    /// Containers that had too many tasks, and when: `CLOCK_BOOTTIME`, microseconds.
    too_many: BTreeMap<Seat, u64>,
}

impl Reader {
    /// `root` is `/`, or a folder with another host's `proc` and `sys`.
    pub fn new(root: &Path) -> Self {
        let root = root.to_string_lossy();
        Self::with_files(Box::new(RootedFiles::new(root.trim_end_matches('/'))))
    }

    fn with_files(files: Box<dyn Files>) -> Self {
        Self {
            files,
            threads: KernelThreads::default(),
            before: BTreeMap::new(),
            too_many: BTreeMap::new(),
        }
    }

    /// Reads the counters of these seats. The answer lacks seats with an offline CPU or an ended thread; they count as new when
    /// they return.
    ///
    /// # Cost
    /// Reads the node's files once, `/proc/schedstat` up to five times; three files of each thread, more if its counters changed while
    /// they were read; and three of each bound kernel thread of a seat on which something other than its threads ran. The number of
    /// tasks of the host only matters for the list of the root cgroup, in which each new thread is read once. For each container
    /// `/proc/schedstat` again up to five times and at most [`MAX_TASKS`] times eight files, after all VMs: how many tasks it has does not
    /// change how exactly others are read.
    ///
    /// # Errors
    /// A file cannot be read or has an unexpected format. The next sample is not affected.
    pub fn sample(&mut self, seats: &BTreeSet<Seat>) -> Result<CounterSample, SampleError> {
        // One buffer for all files. It is freed at the end, so it does not add to the daemon's idle memory.
        let mut buffer = Vec::new();
        let candidate = |seat| Candidate::new(seat, self.before.get(seat));
        let (containers, vms): (Vec<&Seat>, Vec<&Seat>) = seats.iter().partition(|seat| seat.cgroup.is_some());
        let mut candidates: Vec<Candidate<'_>> = vms.into_iter().map(candidate).collect();
        let mut sample = CounterSample::default();
        (sample.at_us, sample.up_us) = read(&*self.files, &mut self.threads, &mut candidates, &mut buffer)?;
        self.too_many.retain(|seat, since_us| {
            seats.contains(seat) && sample.up_us.saturating_sub(*since_us) < TOO_MANY_PAUSE_US
        });
        for seat in containers {
            if !self.too_many.contains_key(seat) {
                let mut container = [candidate(seat)];
                read(&*self.files, &mut self.threads, &mut container, &mut buffer)?;
                candidates.extend(container);
            }
        }
        let mut before = BTreeMap::new();
        for candidate in candidates {
            let seat = candidate.seat;
            if candidate.has_too_many_tasks() {
                self.too_many.insert(seat.clone(), sample.up_us);
            }
            let Some((mut counters, rest, container)) = candidate.best() else {
                continue;
            };
            // Checked last: a thread that still exists has existed during the whole sample.
            if !ended(&*self.files, seat.threads.iter(), &mut buffer)?.is_empty() {
                continue;
            }
            if counters.bound_read {
                // A thread that has not run since the last sample need not be checked: a new one with its number would have run.
                let known = self.before.get(seat).map(|before| &before.bound);
                let ran = counters.bound.iter().filter(|(thread, bound)| {
                    let known = known.and_then(|known| known.get(thread));
                    known.is_none_or(|known| known.switches != bound.switches)
                });
                for gone in ended(&*self.files, ran.map(|(thread, _)| thread), &mut buffer)? {
                    counters.bound.remove(&gone);
                    self.threads.remove(gone.id);
                }
            }
            let bound = counters.bound.clone();
            let previous = PreviousSample { bound, rest, container };
            before.insert(seat.clone(), previous);
            sample.seats.insert(seat.clone(), counters);
        }
        loose_counters::fill(&*self.files, &mut sample.seats, &mut buffer)?;
        before.retain(|seat, _| sample.seats.contains_key(seat));
        self.before = before;
        sample.too_many_tasks = self.too_many.keys().cloned().collect();
        self.files.end_sample(seats.is_empty());
        Ok(sample)
    }
}

/// Reads these seats until they are certain, in a limited number of attempts. Returns the clocks at the first one.
fn read(
    files: &dyn Files,
    threads: &mut KernelThreads,
    candidates: &mut [Candidate<'_>],
    buffer: &mut Vec<u8>,
) -> Result<(u64, u64), SampleError> {
    let clocks = attempt::take(files, threads, candidates, buffer)?;
    for _ in 1..MAX_READ_ATTEMPTS {
        if !candidates.iter().any(Candidate::is_open) {
            break;
        }
        attempt::take(files, threads, candidates, buffer)?;
    }
    Ok(clocks)
}

/// The threads that ended: their number is unused or belongs to another thread.
fn ended<'a>(
    files: &dyn Files,
    threads: impl Iterator<Item = &'a TaskId>,
    buffer: &mut Vec<u8>,
) -> Result<Vec<TaskId>, SampleError> {
    let mut ended = Vec::new();
    for thread in threads {
        let stat = read_stat(files, thread.id, buffer)?;
        if stat.is_none_or(|stat| stat.start != thread.start) {
            ended.push(*thread);
        }
    }
    Ok(ended)
}
