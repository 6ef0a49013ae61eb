//! The ledger in the answer of Describe: whether it is written, its last signed head, and sums by VM.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use stelia_cpus::located::Located;

/// As Describe has it, and the metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerSummary {
    /// The setting `ledger`.
    pub enabled: bool,
    /// Why nothing can be read or kept now; `None` where both is done.
    pub problem: Option<String>,
    /// The public key that heads are signed with, base64; empty where there is none.
    pub key: String,
    /// The last signed head: the entry that it covers with everything before, and that entry's hash, 64 hexadecimal digits. Empty and 0
    /// before the first.
    pub seq: u64,
    pub hash: String,
    /// UTC, `2026-10-31`: the day that head ended.
    pub day: String,
    /// How large the ring's files are together.
    pub bytes: u64,
    /// By pod UID, of VMs that have CPUs of their own now.
    pub vms: BTreeMap<String, LedgerVm>,
    /// By pod UID: where the parts of these VMs are, as the ledger recorded it.
    pub located: BTreeMap<String, Vec<Located>>,
}

/// Sums since the daemon began to keep the ledger: they only grow, and begin at 0 with each daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerVm {
    /// Switch-ins of tasks that are neither the VM's nor bound to the CPU by the kernel: at least, at most.
    pub other_tasks_least: u64,
    pub other_tasks_most: u64,
    /// Interrupts of devices that are not the VM's.
    pub devices: u64,
    /// No more than this was lost to tasks, nanoseconds.
    pub delay_ns: u64,
    /// CPUs times time, microseconds: of the time that the VM had CPUs of its own, and of that which lies in readings.
    pub promised_us: u64,
    pub covered_us: u64,
    /// How often something was seen on its CPUs that is neither its own nor bound there.
    pub intruded: u64,
}
