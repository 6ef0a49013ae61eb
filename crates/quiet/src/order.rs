//! What the daemon orders of `steliad-quiet`, and what that answers: one line of JSON each way on a connection of its own.
//!
//! An order is always whole: what is in force follows from it and from the base records alone, so the same order again
//! changes nothing, and an order without VMs restores everything.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stelia_api::attribution::Attribution;
use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;

/// Where `steliad-quiet` listens. Only root may connect, and only the daemon's unit is answered.
pub const SOCKET: &str = "/run/stelia/quiet.sock";

/// Where what was there before the first change is kept.
pub const STORE: &str = "/run/stelia/quiet";

/// An order, and an answer, longer than this is refused.
pub const MAX_LINE: usize = 4 << 20;

/// What is wanted on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Order {
    /// Device interrupts are kept off the CPUs of all [`vms`](Self::vms), and irqbalance gets their list.
    pub steer: bool,
    /// Where an interrupt goes whose base mask has only CPUs of VMs.
    pub shared: CpuSet,
    /// By pod UID: each live instance that has CPUs of its own.
    pub vms: BTreeMap<String, Vm>,
    /// The administrator's cache classes, by name, if resctrl is used.
    pub cache_classes: BTreeMap<String, CacheClass>,
    /// Whether each VM gets a group of resctrl's of its own, to be counted.
    pub cache_monitoring: bool,
}

/// What is wanted for one VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Vm {
    /// The exclusive CPUs of its record: checked against it.
    pub cpus: CpuSet,
    /// PCI addresses of its VFIO devices whose interrupts go to its own CPUs; all other VFIO interrupts go where any
    /// device's do.
    pub own_devices: BTreeSet<String>,
    /// `None`: nothing is written.
    pub latency: Option<Latency>,
    /// cpufreq's governor for its CPUs; `None`: nothing is written.
    pub governor: Option<String>,
    /// A name of [`Order::cache_classes`]; `None`: resctrl's default group.
    pub cache_class: Option<String>,
}

impl Vm {
    /// Whether anything is ordered for it, steering apart.
    pub fn asks(&self) -> bool {
        self.latency.is_some() || self.governor.is_some() || self.cache_class.is_some()
    }
}

/// `pm_qos_resume_latency_us` of a CPU (Documentation/ABI/testing/sysfs-devices-power).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Latency {
    /// The largest wake-up latency in microseconds, 1 or more: 0 would mean no constraint.
    Microseconds(u32),
    /// `n/a`: none is tolerated, the CPU polls.
    Polling,
}

/// What a cache class allows (Documentation/filesystems/resctrl.rst).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheClass {
    /// How many ways of each L3 cache; `None`: those of resctrl's default group, which has all unless somebody limited it.
    pub l3_ways: Option<u32>,
    /// Per cent of memory bandwidth; `None`: as much as the default group.
    pub memory_bandwidth: Option<u32>,
}

/// The CPUs on which the kernel's hist triggers count what runs, in an instance of tracefs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Target {
    /// Exclusive CPUs of live instances: checked against the records.
    pub cpus: CpuSet,
    /// The threads that these CPUs are for: what they do is not counted.
    pub own: BTreeSet<i32>,
}

/// The answer to a [`Request`](crate::request::Request).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Carried out, as far as the report says.
    Done(Report),
    /// Counting began.
    Begun,
    /// What was counted.
    Attributed(Attribution),
    /// Nothing was changed, and why.
    Refused(String),
}
