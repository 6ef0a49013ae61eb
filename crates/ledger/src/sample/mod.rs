//! Samples the kernel's counters of VMs' CPUs. Every number is the kernel's own, since boot or since the thread started.
//!
//! [`Reader`] reads the files, [`stelia_kernel::counters`] parses them.

mod files;
mod kernel_threads;
mod reader;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stelia_cpus::CpuSet;
pub use stelia_kernel::proc::TaskId;

pub use reader::{MAX_CGROUPS, MAX_TASKS, Reader, SampleError, tasks_of_container};

/// CPUs and the threads that have them exclusively: usually one CPU and one vCPU thread. Threads that share CPUs are one seat, and a CPU
/// to which no thread is pinned is a seat without threads. All CPUs of a whole container are one seat with a cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Seat {
    pub cpus: CpuSet,
    /// By thread number and start time, ascending.
    pub threads: Vec<TaskId>,
    /// The cgroup of a container that has the CPUs, `/kubepods.slice/…`; such a seat has no threads. The tasks of the cgroups below are
    /// the container's too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

/// Unit of a thread's start time, in microseconds (USER_HZ, field 22 of `/proc/<pid>/stat`).
pub(crate) const START_TIME_UNIT_US: u64 = 10_000;

/// The counters of all seats, read at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CounterSample {
    /// The realtime clock, microseconds since the epoch.
    pub at_us: u64,
    /// `CLOCK_BOOTTIME`, microseconds: it continues during suspend, and is never set.
    pub up_us: u64,
    /// The seats whose CPUs are all online and whose threads all exist.
    pub seats: BTreeMap<Seat, Counters>,
    /// The seats of containers with more tasks or cgroups than are read ([`MAX_TASKS`], [`MAX_CGROUPS`]).
    pub too_many_tasks: BTreeSet<Seat>,
}

/// The counters of one seat, summed over its CPUs or its threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// `pcount` of the CPUs: how often a task other than the idle task began to run (`/proc/schedstat`, 9th value of a `cpu` line).
    pub switches: u64,
    /// `pcount` of the seat's threads, read before [`switches`](Self::switches) and after it: the number at the time of that
    /// reading lies between them, and is exact if both are equal. The sum of a container's tasks keeps what was read of those that ended,
    /// and begins anew with each [`Reader`].
    pub own: (u64, u64),
    /// Whether tasks of a container ended since the last sample, or may have ended or run elsewhere before they came: then they ran more
    /// often than [`own`](Self::own) says.
    pub own_incomplete: bool,
    /// How long the threads ran, nanoseconds.
    pub run_ns: u64,
    /// How long the threads were runnable and did not run, nanoseconds: waiting for another task, and waking up.
    pub delay_ns: u64,
    /// The kernel's own threads that are bound to these CPUs. They are only read if something other than the seat's threads ran since the
    /// last reading; if not, they are those of that reading.
    pub bound: BTreeMap<TaskId, Bound>,
    /// Whether [`bound`](Self::bound) was read for this sample.
    pub bound_read: bool,
    /// Interrupts of devices by number, without those that never fired on these CPUs. The kernel's counters have 32 bits and wrap.
    pub devices: BTreeMap<u32, Fired>,
    /// The CPUs' own interrupts by the kernel's mnemonic (`LOC`, `RES`, `CAL`, `TLB`, …) or, on arm64, by the driver's name (`arch_timer`),
    /// also 32 bits. Without those that are 0.
    pub upkeep: BTreeMap<String, u32>,
    /// Softirqs by the kernel's name (`TIMER`, `NET_RX`, `RCU`, …), 32 bits. Without those that are 0.
    pub softirqs: BTreeMap<String, u32>,
    /// Time that a hypervisor below this host took away, in the kernel's ticks of 10 ms (`/proc/stat`).
    pub steal: u64,
}

/// A kernel thread that is bound to a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// `ksoftirqd/2`, `kworker/2:1`: without what a worker works on.
    pub name: String,
    /// `pcount`, as [`Counters::own`].
    pub switches: (u64, u64),
    pub run_ns: u64,
}

/// An interrupt of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fired {
    /// The drivers' names.
    pub name: String,
    /// Summed over the seat's CPUs, modulo 2^32.
    pub count: u32,
}
