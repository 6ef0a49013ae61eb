//! Computes the account of one VM for a period from the entries of a ring.

mod coverage;
mod fold;
mod located;
mod merge;
mod sum;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stelia_api::attribution::Attribution;
use stelia_cpus::located::Located;

use crate::entry::{Class, Closed};

pub(crate) use coverage::Coverage;
pub use fold::{AccountBuilder, accounts};
pub use merge::{MergedAccount, NodeAccount, Repeated, TimeWithout};
pub use words::{grouped, share, total};

/// The account of one VM for a period. Counts are those of whole windows, from one reading to the next; a window belongs to the period
/// and the day in which it ends. Times are those within the period; those of a window that ends after it belong to its last day.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Pod UID.
    pub vm: String,
    /// `namespace/name`; may be empty.
    pub name: String,
    /// Whether it is the account of a whole container, all of whose tasks are its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_container: bool,
    /// The period, microseconds since the epoch.
    pub since_us: u64,
    pub until_us: u64,
    /// CPUs times time, microseconds, in which the VM had CPUs of its own according to its states.
    pub promised_us: u64,
    /// The part of it that lies in windows. The rest is in [`gaps`](Self::gaps).
    pub covered_us: u64,
    pub totals: Totals,
    /// By UTC day, `2026-10-31`, ascending; days without a window are missing.
    pub days: Vec<Day>,
    /// The hours in which it had CPUs of its own, counted from the epoch, as ranges in the order of the readings, at most 10,000.
    #[serde(skip)]
    pub hours: Vec<std::ops::Range<u64>>,
    /// The windows with the most runs of other tasks and devices, the worst first, at most ten.
    pub worst: Vec<Window>,
    /// Times without readings, ascending, at most 100.
    pub gaps: Vec<Gap>,
    /// The number of further gaps.
    pub gaps_left_out: u64,
    /// The attributions in the period, the newest last, at most 20.
    pub attributions: Vec<Attribution>,
    /// Each change of state with its time, ascending, at most 100: `isolated`, `pinned`, `waiting`, …
    pub states: Vec<(u64, String)>,
    /// Where the VM's parts were, ascending by part and time, at most the last 100 of the period.
    pub located: Vec<LocatedTime>,
    /// The last entry that this account includes, and its hash.
    pub seq: u64,
    pub hash: String,
}

/// The time in which a part of the VM was in one place. It begins and ends with readings, of which there is one an hour, or less often on nodes with
/// many VMs, and one when the VM's CPUs change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocatedTime {
    #[serde(flatten)]
    pub located: Located,
    /// The first reading that did not find it so; 0: none in the period.
    pub until_us: u64,
}

/// Counts by class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Switch-ins of tasks that are neither the VM's nor bound to the CPU by the kernel.
    pub other_tasks: Range,
    /// Interrupts of devices that are not the VM's, by the driver's name.
    pub devices: BTreeMap<String, u64>,
    /// The kernel's threads that are bound to the CPU, by name without the CPU's number (`ksoftirqd`, `kworker`).
    pub kernel_threads: BTreeMap<String, Ran>,
    /// The CPUs' own interrupts, by mnemonic, without those that the processor delivers to the VM.
    pub upkeep: BTreeMap<String, u64>,
    pub softirqs: BTreeMap<String, u64>,
    /// Interrupts of the VM's own devices and those that the processor delivers to it, by name.
    pub own_interrupts: BTreeMap<String, u64>,
    /// How long the VM's threads ran, and how often one began to, nanoseconds.
    pub own: Ran,
    /// How long they were runnable and did not run, nanoseconds: the upper limit of the time lost to other tasks. It includes wake-ups.
    pub delay_ns: u64,
    /// Time taken by a hypervisor below this host, nanoseconds.
    pub steal_ns: u64,
}

/// A lower and an upper bound. If they are equal, the value is exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Range {
    pub least: u64,
    pub most: u64,
}

/// How often and how long something ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ran {
    pub count: u64,
    pub ns: u64,
}

/// A day's sums.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Day {
    pub day: String,
    pub promised_us: u64,
    pub covered_us: u64,
    pub other_tasks: Range,
    pub devices: u64,
    pub delay_ns: u64,
}

/// What ran from one reading of a seat to the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// CPU list.
    pub cpus: String,
    pub from_us: u64,
    pub until_us: u64,
    pub class: Class,
    /// The interrupt; empty for tasks.
    pub name: String,
    pub count: Range,
    /// For tasks: the upper limit of the time lost to them, nanoseconds.
    pub delay_ns: u64,
}

/// A time without readings of these CPUs, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    pub cpus: String,
    pub from_us: u64,
    pub until_us: u64,
    pub why: Closed,
}
