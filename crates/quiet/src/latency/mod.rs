//! How fast and how steadily a VM's CPUs wake up and run: idle states and cpufreq's governor.
//!
//! What was there before is kept in the store before the first write, and written back where our value is still there.

mod governor;
mod pm_qos;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use stelia_api::quiet::Report;

use crate::failure::{Failure, problem};
use crate::files::{Files, System};
use crate::order::Order;
use crate::record;

/// The record in the store.
const RECORD: &str = "latency.json";

/// Below it each CPU has its directory.
const CPUS: &str = "/sys/devices/system/cpu";

/// What was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Record {
    /// By CPU.
    latency: BTreeMap<u32, Change>,
    /// By cpufreq policy, such as `policy2`.
    governor: BTreeMap<String, Change>,
}

/// A file's value before ours, and ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    base: String,
    ours: String,
}

/// What is to be done with a file whose value was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decision {
    /// The value to write, if it is another.
    write: Option<String>,
    /// What the record has afterwards.
    record: Option<Change>,
}

impl Decision {
    /// Write `ours` over `base`.
    fn change(base: &str, ours: &str) -> Self {
        let (base, ours) = (base.to_owned(), ours.to_owned());
        Self {
            write: Some(ours.clone()),
            record: Some(Change { base, ours }),
        }
    }

    fn keep(record: Option<&Change>) -> Self {
        Self {
            write: None,
            record: record.cloned(),
        }
    }

    /// Nothing is wanted: the base where ours is still there, else nothing, because another program's value is newer.
    fn undo(record: &Change, now: &str) -> Self {
        Self {
            write: (now == record.ours && now != record.base).then(|| record.base.clone()),
            record: None,
        }
    }
}

/// A file that is to be written.
struct Write {
    /// The VM that it is written for; empty: for none, it is restored.
    pod: String,
    path: String,
    value: String,
}

/// Give each VM's CPUs the wake-up latency and the governor that the order has, and all others what they had.
///
/// # Cost
/// A read a CPU of a VM that has a latency, a few a VM that has a governor; writes only where a value differs.
pub fn carry_out(system: System<'_>, order: &Order, report: &mut Report) {
    let before: Record = match record::load(system.store, RECORD) {
        Ok(before) => before,
        Err(failure) => return problem(report, "", failure),
    };
    let mut after = before.clone();
    let mut writes = pm_qos::plan(system.files, order, &mut after.latency, report);
    writes.extend(governor::plan(system.files, order, &mut after.governor, report));
    if after == before && writes.is_empty() {
        return;
    }
    // What is written is in the record first, and what is restored stays in it until that is done: after a crash between
    // the two the next order finds the one or the other, and does the rest.
    let mut both = before.clone();
    both.latency.extend(after.latency.clone());
    both.governor.extend(after.governor.clone());
    if both != before
        && let Err(failure) = record::save(system.store, RECORD, &both)
    {
        return problem(report, "", failure);
    }
    let mut failed: BTreeMap<String, (usize, Failure)> = BTreeMap::new();
    for write in writes {
        let written = system.files.write(&write.path, &write.value);
        match written.map_err(Failure::write(&write.value, &write.path)) {
            Ok(()) => report.writes += 1,
            Err(failure) => failed.entry(write.pod).or_insert((0, failure)).0 += 1,
        }
    }
    let all_done = failed.is_empty();
    for (pod, (count, failure)) in failed {
        let more = match count {
            1 => String::new(),
            count => format!(", and {} more", count - 1),
        };
        problem(report, &pod, format!("{failure}{more}"));
    }
    // A record of a value that was not restored stays, and the next order tries again.
    let last = if all_done { after } else { both.clone() };
    if last != both
        && let Err(failure) = record::save(system.store, RECORD, &last)
    {
        problem(report, "", failure);
    }
}

/// Whether a file is gone. Any other error says nothing: a CPU that is offline answers EBUSY, and has its values when it is back.
fn is_gone(failure: &Failure) -> bool {
    failure.cause.kind() == io::ErrorKind::NotFound
}

/// The file's one value.
fn read(files: &dyn Files, path: &str) -> Result<String, Failure> {
    let text = files.read(path).map_err(Failure::of("read", path))?;
    Ok(text.trim().to_owned())
}
