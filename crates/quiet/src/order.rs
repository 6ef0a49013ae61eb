//! The daemon's orders to `steliad-quiet`, and the answers: one line of JSON each way on a connection of its own.
//!
//! An order is always complete: the values in force follow from it and from the base records alone, so the same order again
//! changes nothing, and an order without VMs restores everything.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stelia_api::attribution::Attribution;
use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;

/// The socket of `steliad-quiet`. Only root may connect, and only the daemon's unit is answered.
pub const SOCKET: &str = "/run/stelia/quiet.sock";

/// The directory of the records from which changes are undone.
pub const STORE: &str = "/run/stelia/quiet";

/// Limit of an order and of an answer, in bytes.
pub const MAX_LINE: usize = 4 << 20;

/// What is wanted on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Order {
    /// Keep device interrupts off the CPUs of all [`vms`](Self::vms), and send their list to irqbalance.
    pub steer: bool,
    /// The CPUs for interrupts whose base mask has only CPUs of VMs.
    pub shared: CpuSet,
    /// By pod UID: each live instance that has CPUs of its own.
    pub vms: BTreeMap<String, OrderedVm>,
    /// The administrator's cache classes, by name, if resctrl is used.
    pub cache_classes: BTreeMap<String, CacheClass>,
    /// Whether each VM gets its own monitoring group in resctrl.
    pub cache_monitoring: bool,
}

/// What is wanted for one instance: a VM or a whole container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OrderedVm {
    /// The exclusive CPUs of its record, against which they are checked.
    pub cpus: CpuSet,
    /// PCI addresses of its VFIO devices whose interrupts go to its own CPUs. Interrupts of other VFIO devices are treated as
    /// those of any device.
    pub own_devices: BTreeSet<String>,
    /// `None`: nothing is written.
    pub latency: Option<Latency>,
    /// cpufreq's governor for its CPUs; `None`: nothing is written.
    pub governor: Option<String>,
    /// A name of [`Order::cache_classes`]; `None`: resctrl's default group.
    pub cache_class: Option<String>,
}

impl OrderedVm {
    /// Whether anything besides steering is ordered for it.
    pub fn has_order(&self) -> bool {
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

/// The limits of a cache class (Documentation/filesystems/resctrl.rst).
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
    /// Exclusive CPUs of live instances; they are checked against the records.
    pub cpus: CpuSet,
    /// The threads of the VMs that have these CPUs; their runs are not counted.
    pub own: BTreeSet<i32>,
    /// Whether `finish` names more own threads; then each is counted by itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_thread: bool,
}

/// The answer to a [`Request`](crate::request::Request).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderAnswer {
    /// Carried out, as far as the report says.
    Done(Report),
    /// Counting began.
    Begun,
    /// What was counted.
    Attributed(Attribution),
    /// Nothing was changed, and why.
    Refused(String),
}
