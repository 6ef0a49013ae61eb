//! What is done about everything that disturbs a VM's CPUs besides tasks: `steliad-quiet` answers it, Describe shows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stelia_cpus::CpuSet;
use stelia_cpus::text::named;

/// As Describe has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quiet {
    /// The setting `irq-steering`; empty before the daemon has asked.
    pub steering: String,
    /// Why nothing is known of what follows, such as that `steliad-quiet` does not answer.
    pub problem: Option<String>,
    /// When that was answered, microseconds since the epoch; 0: never.
    pub answered_us: u64,
    #[serde(flatten)]
    pub report: Report,
}

/// What `steliad-quiet` found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Device interrupts that the kernel has.
    pub interrupts: u32,
    /// Those whose mask was changed for the VMs and is as wanted.
    pub moved: u32,
    /// Files written for this answer.
    pub writes: u32,
    /// Device interrupts that reach CPUs of VMs although they should not.
    pub remaining: Vec<Remaining>,
    /// By pod UID: the VMs for which nothing was done, with the reason; it may be that they only begin or end.
    pub left_out: BTreeMap<String, String>,
    pub irqbalance: Irqbalance,
    /// Kernel threads that were given the shared CPUs since `steliad-quiet` started.
    pub threads_moved: u64,
    /// Kernel threads that may run on CPUs of VMs and could not be moved.
    pub threads_remaining: Vec<Thread>,
    /// What else could not be done, for the operator: operation, path and cause.
    pub problems: Vec<Problem>,
    /// By pod UID, where resctrl counts.
    pub caches: BTreeMap<String, CacheUse>,
}

/// A device interrupt that reaches CPUs of VMs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remaining {
    pub irq: u32,
    /// The kernel's name of it, as in `/proc/interrupts`; the numbers of a PCI device are part of it.
    pub name: String,
    /// The CPUs of VMs that it reaches.
    pub cpus: CpuSet,
    pub why: RemainingCause,
    /// The system's words, or what was counted.
    pub text: String,
    /// How often it was seen on those CPUs since `steliad-quiet` first wanted it off them.
    pub count: u64,
}

named! {
    /// Why a device interrupt remains.
    #[derive(Default, PartialOrd, Ord)]
    pub enum RemainingCause {
        /// The kernel places it itself (`managed_irq`).
        Managed = "managed",
        /// No other CPU has an interrupt vector left.
        NoVector = "no-vector",
        /// The mask cannot be written for another reason.
        #[default]
        Refused = "refused",
        /// The mask is as wanted, and it fires there nevertheless.
        StillFires = "still-fires",
        /// Another program writes the mask again and again.
        Overwritten = "overwritten",
    }
}

impl RemainingCause {
    /// Why the interrupt remains, in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Managed => "the kernel places it itself",
            Self::NoVector => "no other CPU has a free interrupt vector",
            Self::Refused => "its mask cannot be written",
            Self::StillFires => "its mask is right, but it still fires there",
            Self::Overwritten => "another program writes its mask again and again",
        }
    }

    /// What to do about it.
    pub const fn fix(self) -> &'static str {
        match self {
            Self::Managed => "boot with isolcpus=managed_irq,CPUS, or use fewer queues of the device",
            Self::NoVector => "reserve more shared CPUs, or use fewer queues of the devices (ethtool -L)",
            Self::Refused => "see the kernel's error and /usr/share/doc/steliad/quiet-cpus.md",
            Self::StillFires => "look for the driver's own queue affinity",
            Self::Overwritten => "find the program (irqbalance, tuned, a vendor's affinity script) and stop it",
        }
    }
}

named! {
    /// irqbalance, which moves interrupts by itself.
    #[derive(Default, PartialOrd, Ord)]
    pub enum Irqbalance {
        /// It does not run, or nothing is steered.
        #[default]
        Absent = "absent",
        /// The VMs' CPUs were sent to its socket.
        Informed = "told",
        /// It runs and the VMs' CPUs could not be sent to it: see the problems.
        NotInformed = "not-told",
    }
}

/// A kernel thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub id: i32,
    /// The kernel's name of it.
    pub name: String,
    /// The CPUs of VMs that it may run on.
    pub cpus: CpuSet,
    /// The system's words.
    pub text: String,
}

/// What could not be done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The pod it concerns; empty: all.
    pub pod: String,
    pub text: String,
}

/// What a VM's resctrl group counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheUse {
    /// The class it is in; empty: resctrl's default group.
    pub class: String,
    /// Bytes of L3 cache, all caches together; `None`: not counted here.
    pub llc_bytes: Option<u64>,
    /// Bytes moved to and from memory, since the group was made; `None`: not counted here.
    pub memory_bytes: Option<u64>,
}
