//! Who ran on CPUs for a while, as the kernel's hist triggers counted it.

use serde::{Deserialize, Serialize};

/// The result of looking closely for a while.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// When it began and ended, microseconds since the epoch.
    pub from_us: u64,
    pub until_us: u64,
    /// CPU list.
    pub cpus: String,
    /// How many events the kernel had no room to count: more than 0 means incomplete.
    pub dropped: u64,
    /// What could not be counted, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Tasks other than the VM's and the idle one, the kernel's bound threads among them.
    pub tasks: Vec<Occupant>,
    /// Interrupts of devices, by handler.
    pub interrupts: Vec<Occupant>,
    pub softirqs: Vec<Occupant>,
    /// The CPUs' own interrupts, by the kernel's tracepoint: `local_timer`, `reschedule`, `call_function`, …; on arm64 by handler: `arch_timer`,
    /// `IPI`.
    pub vectors: Vec<Occupant>,
}

/// Something that ran on a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Occupant {
    pub cpu: u32,
    /// `comm` of a task, `30 nvme0q3`, `net_rx`, `local_timer`.
    pub name: String,
    /// How often it began to run.
    pub count: u64,
    /// How long it ran, nanoseconds; `None` where that was not measured. For a softirq it includes nested interrupts.
    pub ns: Option<u64>,
    /// Whether [`ns`](Self::ns) is a count times a sampled mean.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}
