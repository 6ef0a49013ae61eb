//! Lets the kernel count what runs on CPUs, with hist triggers (Documentation/trace/histogram.rst) in an instance of tracefs of
//! our own. No events are recorded and no program is woken: the kernel sums, and the sums are read at the end.
//!
//! The instance, `steliad-quiet`, outlives this program, which may end meanwhile: it is found again by its name, and the store
//! has what is needed to evaluate it. An instance that is not in the store, or is too old, is removed. Other instances are
//! never touched; only the names of our synthetic events are visible in them.
//!
//! Each trigger takes some milliseconds to set, so they begin to count at different moments. All sums are therefore read when
//! the last trigger is set, and subtracted from those at the end.

mod fold;
pub mod hist;
mod plan;
mod remove;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Deserialize, Serialize};
use stelia_api::attribution::Attribution;
use stelia_kernel::counters::interrupts::{PATH as INTERRUPTS, Table};

use crate::failure::QuietFailure;
use crate::files::{Files, System};
use crate::order::Target;
use crate::store_json;
use fold::TraceCounts;
use plan::{INSTANCE, Part, ROOT, Step};

/// The record's name in the store.
const NAME: &str = "trace.json";

/// Age after which a count is dropped, in microseconds: no caller waits that long.
pub const MAX_TRACE_AGE_US: u64 = 15 * 60 * 1_000_000;

/// Size of the instance's buffer in KiB for each CPU. Nothing is written to it, and the default is 1.4 MiB.
const BUFFER_KIB: &str = "4";

/// Why nothing is counted.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("nothing is counted: no count was begun, or it is too long ago")]
    NotBegun,
    #[error("tracefs is not mounted at {ROOT}, or the kernel has no instances, or is locked (lockdown): {0}")]
    Absent(io::Error),
    #[error("the kernel has no event {}", plan::SWITCH)]
    NoEvent,
    #[error(transparent)]
    Failed(#[from] QuietFailure),
}

/// The state of a count, saved until its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedTrace {
    from_us: u64,
    target: Target,
    /// The events that have histograms.
    events: BTreeSet<String>,
    problems: Vec<String>,
    /// The counts when the last trigger was set.
    before: TraceCounts,
}

/// Begin to count what runs on these CPUs besides the target's own threads. `clock` is [`stelia_kernel::clock::now_us`]. A count that was begun before
/// is dropped.
///
/// # Errors
/// Task switches cannot be counted; then no instance is left. Other events that cannot be counted are among the problems that
/// [`finish`] returns.
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
        .map_err(QuietFailure::of("make", INSTANCE))?;
    for (name, value) in [("tracing_on", "0"), ("buffer_size_kb", BUFFER_KIB)] {
        let path = format!("{INSTANCE}/{name}");
        files.write(&path, value).map_err(QuietFailure::write(value, &path))?;
    }
    let offered = available_events(files);
    if !offered.contains(plan::SWITCH) {
        return Err(TraceError::NoEvent);
    }
    let (events, problems) = carry_out(files, &plan::plan(target, &offered))?;
    let before = read_counts(files, target, &events)?;
    let saved = SavedTrace {
        from_us: clock(),
        target: target.clone(),
        events,
        problems,
        before,
    };
    save(system, &Some(saved))
}

/// End the count, even if this fails, and return what was counted since [`begin`], without the further own threads `own` if the target's
/// threads are counted each for itself.
///
/// # Errors
/// No count was begun, or the counts cannot be read.
pub fn finish(system: System<'_>, own: &BTreeSet<i32>, clock: &dyn Fn() -> u64) -> Result<Attribution, TraceError> {
    let attribution = read_attribution(system, own, clock);
    let removed = remove(system);
    let mut attribution = attribution?;
    if let Err(error) = removed {
        attribution.problems.push(error.to_string());
    }
    Ok(attribution)
}

fn read_attribution(
    system: System<'_>,
    own: &BTreeSet<i32>,
    clock: &dyn Fn() -> u64,
) -> Result<Attribution, TraceError> {
    let mut saved = load(system)?.ok_or(TraceError::NotBegun)?;
    saved.target.own.extend(own);
    let now = read_counts(system.files, &saved.target, &saved.events)?;
    let counted = now.since(&saved.before).into_attribution();
    let problems = saved.problems.into_iter().chain(counted.problems).collect();
    Ok(Attribution {
        from_us: saved.from_us,
        until_us: clock(),
        cpus: saved.target.cpus.to_string(),
        problems,
        ..counted
    })
}

/// Remove our instance and its record: a running count is lost.
///
/// # Errors
/// Not everything could be removed, or the record cannot be changed.
pub fn remove(system: System<'_>) -> Result<(), TraceError> {
    remove::remove(system.files)?;
    match system.store.load(NAME) {
        Ok(None) => Ok(()),
        _ => save(system, &None),
    }
}

/// Remove an instance that a killed program left half set up, or that was begun [`MAX_TRACE_AGE_US`] ago.
pub fn expire(system: System<'_>, now_us: u64) -> Result<(), TraceError> {
    let saved = load(system).unwrap_or_default();
    // If the clock was set back, the count began in the future and its age is not known.
    let is_valid = saved.is_some_and(|saved| {
        now_us
            .checked_sub(saved.from_us)
            .is_some_and(|age| age <= MAX_TRACE_AGE_US)
    });
    if is_valid || !remove::exists(system.files) {
        return Ok(());
    }
    remove(system)
}

fn load(system: System<'_>) -> Result<Option<SavedTrace>, TraceError> {
    Ok(store_json::load(system.store, NAME)?)
}

fn save(system: System<'_>, saved: &Option<SavedTrace>) -> Result<(), TraceError> {
    Ok(store_json::save(system.store, NAME, saved)?)
}

/// The events that the kernel has, of the groups that are counted.
fn available_events(files: &dyn Files) -> BTreeSet<String> {
    let mut events = BTreeSet::new();
    for group in ["sched", "irq", plan::VECTORS, "nmi"] {
        let names = files.list(&format!("{INSTANCE}/events/{group}")).unwrap_or_default();
        events.extend(names.into_iter().map(|name| format!("{group}/{name}")));
    }
    events
}

/// Take the steps. The result are the events that have histograms now, and the parts that could not be set up: after a step that
/// fails, the rest of its part is left out.
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
                let error = QuietFailure::write(&step.text, &step.path)(cause);
                if step.part == Part::Tasks {
                    return Err(error.into());
                }
                problems.insert(step.part, format!("{}: {error}", step.part));
            }
        }
    }
    Ok((events, problems.into_values().collect()))
}

/// The error with the kernel's reason for refusing a trigger, which is in `error_log`.
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
        let text = files.read(&path).map_err(QuietFailure::of("read", &path))?;
        histograms.insert(event.clone(), hist::parse(&text));
    }
    Ok(TraceCounts::new(target, &histograms, &private_interrupts(files)))
}

/// The numbers of interrupts that each CPU has of its own, which the kernel traces as it does those of devices: on arm64, the timer's and
/// others. Empty if `/proc/interrupts` cannot be read: then they are counted among the devices'.
fn private_interrupts(files: &dyn Files) -> BTreeSet<u32> {
    let read = || Table::parse(files.read(INTERRUPTS).ok()?.as_bytes()).ok();
    // A CPU that goes on- or offline during a reading makes its text invalid.
    let table = read().or_else(read).unwrap_or_default();
    let private = table.lines.values().filter(|line| line.is_private());
    private.map(|line| line.irq).collect()
}
