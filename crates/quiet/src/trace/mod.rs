//! Who ran on CPUs for a while, counted by the kernel: hist triggers in an instance of tracefs of our own
//! (Documentation/trace/histogram.rst). Nothing is recorded and nobody is woken: the kernel adds up, and is asked at the end.
//!
//! The instance, `steliad-quiet`, outlives this program, which may end meanwhile: it is found again by its name, and what is
//! needed to make an account of it is in the store. Whoever finds one that is not in the store, or is too old, removes it. Other
//! instances are never touched; only the names of our synthetic events are seen in them.
//!
//! Setting up takes some milliseconds a trigger, each at another moment, so all is read once when the last is set: what is
//! told is the difference.

mod fold;
pub mod hist;
mod plan;
mod remove;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use stelia_api::attribution::Attribution;

use crate::files::{Files, System};
use crate::order::Target;
use crate::record;
use fold::TraceCounts;
use plan::{INSTANCE, Part, ROOT, Step};

/// In the store.
const NAME: &str = "trace.json";

/// Age after which a count is dropped, in microseconds: nobody waits for it any more.
pub const MAX_TRACE_AGE_US: u64 = 15 * 60 * 1_000_000;

/// A buffer has this many KiB a CPU: nothing is written to it, and a new instance's are 1.4 MiB.
const BUFFER: &str = "4";

/// Why nothing is counted.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("nothing is counted: no count was begun, or it is too long ago")]
    NotBegun,
    #[error("tracefs is not mounted at {ROOT}, or the kernel has no instances, or is locked (lockdown): {0}")]
    Absent(io::Error),
    #[error("the kernel has no event {}", plan::SWITCH)]
    NoEvent,
    #[error("{what}: {cause}")]
    System { what: String, cause: io::Error },
    #[error("{0}")]
    Store(String),
}

impl TraceError {
    /// `operation` is a verb: read, list, make, remove.
    fn of(operation: &str, path: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let what = format!("{operation} {path}");
        move |cause| Self::System { what, cause }
    }

    fn write(value: &str, path: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let what = format!("write {value:?} to {path}");
        move |cause| Self::System { what, cause }
    }
}

/// The state of a count, saved until its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedTrace {
    from_us: u64,
    target: Target,
    /// That have histograms.
    events: BTreeSet<String>,
    problems: Vec<String>,
    /// What was counted while the rest was set up.
    before: TraceCounts,
}

/// Microseconds since the epoch.
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Begin to count who runs on these CPUs, besides the target's own threads. `clock` is [`now_us`]. What was begun before is
/// forgotten.
///
/// # Errors
/// Not even switches of tasks can be counted; then nothing is left. What else cannot is among the problems that [`finish`] tells.
pub fn begin(system: System<'_>, target: &Target, clock: &dyn Fn() -> u64) -> Result<(), TraceError> {
    remove(system)?;
    let begun = set_up(system, target, clock);
    if begun.is_err() {
        // The first error says more.
        let _ = remove(system);
    }
    begun
}

fn set_up(system: System<'_>, target: &Target, clock: &dyn Fn() -> u64) -> Result<(), TraceError> {
    let files = system.files;
    files.list(&format!("{ROOT}/instances")).map_err(TraceError::Absent)?;
    files
        .make_directory(INSTANCE)
        .map_err(TraceError::of("make", INSTANCE))?;
    for (name, value) in [("tracing_on", "0"), ("buffer_size_kb", BUFFER)] {
        let path = format!("{INSTANCE}/{name}");
        files.write(&path, value).map_err(TraceError::write(value, &path))?;
    }
    let offered = offered(files);
    if !offered.contains(plan::SWITCH) {
        return Err(TraceError::NoEvent);
    }
    let (events, problems) = carry_out(files, &plan::plan(target, &offered))?;
    let before = read_counts(files, target, &events)?;
    let kept = SavedTrace {
        from_us: clock(),
        target: target.clone(),
        events,
        problems,
        before,
    };
    save(system, &Some(kept))
}

/// What was counted since [`begin`]; nothing is counted any more, also after an error.
///
/// # Errors
/// Nothing was begun, or what was counted cannot be read.
pub fn finish(system: System<'_>, clock: &dyn Fn() -> u64) -> Result<Attribution, TraceError> {
    let counted = counted(system, clock);
    let removed = remove(system);
    let mut attribution = counted?;
    if let Err(error) = removed {
        attribution.problems.push(error.to_string());
    }
    Ok(attribution)
}

fn counted(system: System<'_>, clock: &dyn Fn() -> u64) -> Result<Attribution, TraceError> {
    let kept = load(system)?.ok_or(TraceError::NotBegun)?;
    let now = read_counts(system.files, &kept.target, &kept.events)?;
    let into_attribution = now.since(&kept.before).into_attribution();
    let problems = kept.problems.into_iter().chain(into_attribution.problems).collect();
    Ok(Attribution {
        from_us: kept.from_us,
        until_us: clock(),
        cpus: kept.target.cpus.to_string(),
        problems,
        ..into_attribution
    })
}

/// Remove whatever is there of ours: a count that goes on is lost.
///
/// # Errors
/// Something is left, or that nothing is cannot be kept.
pub fn remove(system: System<'_>) -> Result<(), TraceError> {
    remove::remove(system.files)?;
    match system.store.load(NAME) {
        Ok(None) => Ok(()),
        _ => save(system, &None),
    }
}

/// Remove what nobody waits for: what a killed program left half set up, and what was begun [`MAX_TRACE_AGE_US`] ago.
///
/// # Errors
/// As [`remove`].
pub fn expire(system: System<'_>, now_us: u64) -> Result<(), TraceError> {
    let kept = load(system).unwrap_or_default();
    // A clock that was set back makes it one of the future: its age is not known.
    let waits = kept.is_some_and(|kept| {
        now_us
            .checked_sub(kept.from_us)
            .is_some_and(|age| age <= MAX_TRACE_AGE_US)
    });
    match waits || !remove::is_there(system.files) {
        true => Ok(()),
        false => remove(system),
    }
}

fn load(system: System<'_>) -> Result<Option<SavedTrace>, TraceError> {
    record::load(system.store, NAME).map_err(|failure| TraceError::Store(failure.to_string()))
}

fn save(system: System<'_>, kept: &Option<SavedTrace>) -> Result<(), TraceError> {
    record::save(system.store, NAME, kept).map_err(|failure| TraceError::Store(failure.to_string()))
}

/// The events of our instance that could be of use.
fn offered(files: &dyn Files) -> BTreeSet<String> {
    let mut offered = BTreeSet::new();
    for group in ["sched", "irq", plan::VECTORS, "nmi"] {
        let names = files.list(&format!("{INSTANCE}/events/{group}")).unwrap_or_default();
        offered.extend(names.into_iter().map(|name| format!("{group}/{name}")));
    }
    offered
}

/// The events that have histograms now, and what could not be set up: after a step that fails the rest of its part is left out.
fn carry_out(files: &dyn Files, steps: &[Step]) -> Result<(BTreeSet<String>, Vec<String>), TraceError> {
    let (mut events, mut problems) = (BTreeSet::new(), BTreeMap::new());
    for step in steps {
        if problems.contains_key(&step.part) {
            continue;
        }
        match files.write(&step.path, &step.text) {
            Ok(()) => events.extend(step.event.clone()),
            Err(cause) => {
                let cause = explained(files, cause);
                let error = TraceError::write(&step.text, &step.path)(cause);
                if step.part == Part::Tasks {
                    return Err(error);
                }
                problems.insert(step.part, format!("{}: {error}", step.part));
            }
        }
    }
    Ok((events, problems.into_values().collect()))
}

/// The kernel says in a file of its own why it did not take a trigger.
fn explained(files: &dyn Files, cause: io::Error) -> io::Error {
    let log = files.read(&format!("{INSTANCE}/error_log")).unwrap_or_default();
    match log.lines().rev().find_map(|line| line.split_once(" error: ")) {
        Some((_, reason)) => io::Error::new(cause.kind(), format!("{cause}: {}", reason.trim())),
        None => cause,
    }
}

fn read_counts(files: &dyn Files, target: &Target, events: &BTreeSet<String>) -> Result<TraceCounts, TraceError> {
    let mut histograms = BTreeMap::new();
    for event in events {
        let path = plan::hist(event);
        let text = files.read(&path).map_err(TraceError::of("read", &path))?;
        histograms.insert(event.clone(), hist::parse(&text));
    }
    Ok(TraceCounts::of(target, &histograms))
}
