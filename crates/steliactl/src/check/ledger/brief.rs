//! What other commands show of an account.

use serde::Serialize;

use super::{VmAccount, words};
use crate::shared::daemon::Pod;
use stelia_ledger::account::Range;

/// The headline of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Brief {
    #[serde(flatten)]
    pub pod: Pod,
    pub other_tasks: Range,
    /// Interrupts of other devices.
    pub devices: u64,
    pub promised_us: u64,
    pub covered_us: u64,
}

impl Brief {
    pub(super) fn of(vm_account: VmAccount) -> Self {
        let account = &vm_account.account;
        Self {
            other_tasks: account.totals.other_tasks,
            devices: words::total(&account.totals.devices),
            promised_us: account.promised_us,
            covered_us: account.covered_us,
            pod: vm_account.pod,
        }
    }

    /// What is above the promised 0. A lower bound of 0 proves nothing, nor does a time that no reading covers.
    pub(crate) fn above_promise(&self) -> Option<String> {
        let tasks = (self.other_tasks.least > 0).then(|| format!("other tasks {}", words::range(self.other_tasks)));
        let devices = (self.devices > 0).then(|| format!("other devices' interrupts {}", words::grouped(self.devices)));
        let above: Vec<String> = [tasks, devices].into_iter().flatten().collect();
        (self.covered_us > 0 && !above.is_empty()).then(|| above.join(", "))
    }
}
