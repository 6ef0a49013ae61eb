//! The entries of the ring. Each is one line of JSON.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use stelia_api::attribution::Attribution;
use stelia_cpus::CpuSet;
use stelia_cpus::located::Located;
use stelia_cpus::text::named;

use crate::sample::{Bound, TaskId};

/// An entry; in the ring it follows its hash in the line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The entry's number: one more than that of the entry before.
    pub seq: u64,
    /// The realtime clock, microseconds since the epoch. It may jump.
    pub at: u64,
    /// `CLOCK_BOOTTIME`, microseconds.
    pub up: u64,
    /// The hash of the previous entry. Only the first entry of a segment has it, so that a segment can be checked without the one before it.
    /// The ring fills it in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub before: String,
    /// The mnemonics of the columns of [`Reading::upkeep`] in this entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub upkeep: Vec<String>,
    /// The names of the columns of [`Reading::softirqs`] in this entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub softirqs: Vec<String>,
    /// What happened before the readings were taken, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readings: Vec<Reading>,
}

/// The counters of one seat (a vCPU thread, or a whole container, with its CPUs) as the kernel has them, not their increase. The next reading continues from the last one, whichever daemon
/// takes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// The number that [`Event::Opened`] gave the seat.
    #[serde(rename = "s")]
    pub seat: u64,
    /// Switch-ins on the CPUs, switch-ins of the seat's threads (lower bound), difference of the upper to the lower bound,
    /// nanoseconds run, nanoseconds of delay, ticks of steal.
    #[serde(rename = "n")]
    pub numbers: [u64; 6],
    /// In the order of [`Entry::upkeep`].
    #[serde(rename = "u", default, skip_serializing_if = "Vec::is_empty")]
    pub upkeep: Vec<u32>,
    /// In the order of [`Entry::softirqs`].
    #[serde(rename = "q", default, skip_serializing_if = "Vec::is_empty")]
    pub softirqs: Vec<u32>,
    /// Device interrupts by number: only those that differ from the seat's previous reading, or all if
    /// [`full`](Self::full) is set.
    #[serde(
        rename = "i",
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "by_number"
    )]
    pub devices: BTreeMap<u32, Device>,
    /// Bound kernel threads, likewise. A thread that ended is `null` once. Tasks of a container that ended, or may have, are `null` with the
    /// number 0 and the start time 1.
    #[serde(rename = "b", default, skip_serializing_if = "Vec::is_empty")]
    pub bound: Vec<(TaskId, Option<Bound>)>,
    /// When it was taken, as [`Entry::at`] and [`Entry::up`], if that is not the entry's time.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub time: Option<(u64, u64)>,
    /// The reading is complete: the first one of a seat in a segment.
    #[serde(rename = "f", default, skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
}

/// Converts JSON's keys, which are strings, to numbers. serde does so only if it reads the text itself, but it reads a tagged event,
/// and a reading in it, from a buffer.
fn by_number<'de, D: Deserializer<'de>>(input: D) -> Result<BTreeMap<u32, Device>, D::Error> {
    let named = BTreeMap::<String, Device>::deserialize(input)?;
    let numbered = named.into_iter().map(|(key, device)| {
        let number = key.parse().ok().filter(|number: &u32| number.to_string() == key);
        Ok((
            number.ok_or_else(|| D::Error::custom(format!("{key:?} is no number of an interrupt")))?,
            device,
        ))
    });
    numbered.collect()
}

/// A device interrupt's name and count, in an array.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device(pub String, pub u32);

/// An event that the ledger records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Event {
    /// Written in the first entry of a segment, and in the daemon's first one after a boot. Counters of different boots are not
    /// compared.
    Boot {
        /// `/proc/sys/kernel/random/boot_id`.
        id: String,
    },
    /// The daemon started to read counters.
    Started { version: String },
    /// The daemon was stopped.
    Stopped {},
    /// The signing key in use, at the beginning of a segment and when it changes: the public part, base64.
    Key { key: String },
    /// A seat of a VM is read from now on. Repeated at the beginning of each segment while the seat is open.
    Opened {
        seat: u64,
        /// Pod UID.
        vm: String,
        /// `namespace/name`; empty if the runtime does not report it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
        cpus: CpuSet,
        /// As in [`Seat`](crate::sample::Seat).
        threads: Vec<TaskId>,
        /// Likewise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cgroup: Option<String>,
        /// PCI addresses of the VM's own devices: their interrupts are its own.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        own_devices: Vec<String>,
    },
    /// A seat is not read any more. The time since its last reading is a gap.
    Closed {
        seat: u64,
        why: Closed,
        /// The seat's reading of the last sample, if it was not written then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last: Option<Box<Reading>>,
    },
    /// A VM's state as on D-Bus (`isolated`, `pinned`, `waiting`, …), or `gone`.
    State { vm: String, state: String },
    /// Where the parts of a VM are now, all of them; none while it has no CPUs of its own. Written when one of them moved, came or went, and
    /// repeated after the first entry of each segment. It is in an entry of its own.
    Located { vm: String, parts: Vec<Located> },
    /// Something ran on a VM's CPUs that is neither the VM's nor bound to these CPUs.
    Intruded {
        vm: String,
        /// CPUs of the seat.
        cpus: String,
        class: Class,
        /// The interrupt; empty for tasks, which only an attribution names.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
        /// How often it ran since the seat's previous entry: lower and upper bound.
        count: (u64, u64),
    },
    /// What ran, as counted by hist triggers.
    Attributed { vm: String, attribution: Attribution },
    /// The realtime clock was set by this many microseconds.
    Clock { by: i64 },
    /// The number of samples that could not be recorded, and why: a full disk, a full queue.
    Missed { looks: u64, why: String },
    /// This many bytes, which a crash left after the last complete line, were removed.
    Cut { bytes: u64 },
    /// The signed hash of the entry `seq`, which covers all entries before it.
    Head {
        /// UTC, `2026-10-31`: the day that ended.
        day: String,
        seq: u64,
        /// 64 hexadecimal digits.
        hash: String,
        /// Public key and signature, base64.
        key: String,
        signature: String,
    },
    /// An event of a newer version. It is covered by its entry's hash, and nothing of it is read. It is never written.
    #[serde(other, skip_serializing)]
    Newer,
}

/// Why a seat is not read any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Closed {
    /// The VM, or this vCPU, ended.
    Ended,
    /// The thread has another CPU now.
    Moved,
    /// The VM is neither isolated nor pinned any more.
    NotIsolated,
    /// A CPU went offline.
    Offline,
    /// The counters contradict each other: a thread ran elsewhere.
    Contradicted,
    /// The host booted.
    Boot,
    /// It was not read: a VM's threads settle first, or its pod changes too often.
    NotRead,
    /// A container has more tasks or cgroups than are read.
    TooManyTasks,
    /// The daemon that read a container's tasks ended, and with it what it knew of each.
    Restarted,
    /// The reading could not be recorded, such as on a full disk. Only accounts have this reason.
    NotKept,
}

named! {
    /// The kind of what ran.
    #[derive(PartialOrd, Ord)]
    pub enum Class {
        /// A task that is neither the VM's nor bound to the CPU by the kernel.
        OtherTasks = "other-tasks",
        /// An interrupt of a device that is not the VM's.
        Devices = "devices",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_newer_version_is_no_error_and_an_event_with_a_new_field_is_one() {
        let text =
            r#"{"seq":3,"at":1,"up":1,"events":[{"event":"moved-away","vm":"a","to":{"node":1}},{"event":"stopped"}]}"#;
        let entry: Entry = serde_json::from_str(text).unwrap();
        assert_eq!(entry.events, [Event::Newer, Event::Stopped {}]);
        assert!(serde_json::to_string(&entry).is_err(), "it would not be what was read");
        let text = r#"{"seq":3,"at":1,"up":1,"events":[{"event":"stopped","why":"asked"}]}"#;
        assert!(serde_json::from_str::<Entry>(text).is_err());
    }

    #[test]
    fn a_reading_in_an_event_is_read_as_it_was_written() {
        let last = Reading {
            devices: BTreeMap::from([(30, Device("nvme0q1".into(), 5))]),
            bound: vec![
                (TaskId { id: 7, start: 8 }, Some(Bound::default())),
                (TaskId { id: 9, start: 8 }, None),
            ],
            time: Some((1, 2)),
            ..Reading::default()
        };
        let (seat, why) = (3, Closed::Moved);
        let closed = Event::Closed {
            seat,
            why,
            last: Some(Box::new(last.clone())),
        };
        let entry = Entry {
            events: vec![closed],
            readings: vec![last],
            ..Entry::default()
        };
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
        for wrong in ["030", "+30", "a", "4294967296", ""] {
            let text = text.replace("\"30\"", &format!("\"{wrong}\""));
            assert!(serde_json::from_str::<Entry>(&text).is_err(), "{wrong}");
        }
    }
}
