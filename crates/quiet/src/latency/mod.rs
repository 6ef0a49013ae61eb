//! Wake-up latency and clock rate of a VM's CPUs: the limit of idle states, and cpufreq's governor.
//!
//! The former value is saved in the store before the first write, and written back unless another program has changed ours.

mod governor;
mod pm_qos;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use stelia_api::quiet::Report;

use crate::failure::{QuietFailure, problem};
use crate::files::{Files, System};
use crate::order::Order;
use crate::store_json;

/// The record's name in the store.
const RECORD: &str = "latency.json";

/// The directory of the CPUs' directories.
const CPUS: &str = "/sys/devices/system/cpu";

/// The files that were changed.
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

/// What to do with a file whose value was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decision {
    /// The value to write; `None`: the file has it already.
    write: Option<String>,
    /// The record's entry afterwards.
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

    /// Restore the base if ours is still there; another program's value is newer and stays.
    fn undo(record: &Change, now: &str) -> Self {
        Self {
            write: (now == record.ours && now != record.base).then(|| record.base.clone()),
            record: None,
        }
    }

    /// The decision about a file that is not in an order any more.
    fn unwanted(record: Option<&Change>, now: Result<String, QuietFailure>) -> Self {
        match (record, now) {
            (Some(change), Ok(now)) => Self::undo(change, &now),
            (change, Err(failure)) if !is_gone(&failure) => Self::keep(change),
            _ => Self::keep(None),
        }
    }

    /// Enters the decision about the file `path`, which has this key in the record.
    fn apply<K: Ord>(self, key: K, path: String, pod: &str, record: &mut BTreeMap<K, Change>, writes: &mut Vec<Write>) {
        match self.record {
            Some(change) => record.insert(key, change),
            None => record.remove(&key),
        };
        writes.extend(self.write.map(|value| Write {
            pod: pod.to_owned(),
            path,
            value,
        }));
    }
}

/// A file that is to be written.
struct Write {
    /// The pod of the VM that it is written for; empty: the base is restored.
    pod: String,
    path: String,
    value: String,
}

/// Give each VM's CPUs the wake-up latency and the governor that the order has, and restore those of all other CPUs.
///
/// # Cost
/// One read for each CPU of a VM that has a latency, a few for each VM that has a governor, and writes only of values that differ.
pub fn carry_out(system: System<'_>, order: &Order, report: &mut Report) {
    let before: Record = match store_json::load(system.store, RECORD) {
        Ok(before) => before,
        Err(failure) => return problem(report, "", failure),
    };
    let mut after = before.clone();
    let mut writes = pm_qos::plan(system.files, order, &mut after.latency, report);
    writes.extend(governor::plan(system.files, order, &mut after.governor, report));
    if after == before && writes.is_empty() {
        return;
    }
    // New entries are saved before the writes, and entries of restored values removed after them: after a crash in between,
    // the next order finds all of them in the record and completes the writes.
    let mut both = before.clone();
    both.latency.extend(after.latency.clone());
    both.governor.extend(after.governor.clone());
    if both != before
        && let Err(failure) = store_json::save(system.store, RECORD, &both)
    {
        return problem(report, "", failure);
    }
    let mut failed: BTreeMap<String, (usize, QuietFailure)> = BTreeMap::new();
    for write in writes {
        let written = system.files.write(&write.path, &write.value);
        match written.map_err(QuietFailure::write(&write.value, &write.path)) {
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
    // The entry of a value that was not restored stays, and the next order tries again.
    let last = if all_done { after } else { both.clone() };
    if last != both
        && let Err(failure) = store_json::save(system.store, RECORD, &last)
    {
        problem(report, "", failure);
    }
}

/// Whether a file is gone. Other errors do not mean so: a CPU that is offline answers EBUSY, and has its values when it is back.
fn is_gone(failure: &QuietFailure) -> bool {
    failure.cause.kind() == io::ErrorKind::NotFound
}

/// The file's text without white space around it.
fn read(files: &dyn Files, path: &str) -> Result<String, QuietFailure> {
    let text = files.read(path).map_err(QuietFailure::of("read", path))?;
    Ok(text.trim().to_owned())
}
