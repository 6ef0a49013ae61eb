//! A month of a VM that is made up, for tests of output.

use stelia_ledger::account::Account;
use stelia_ledger::verdict::Verdict;

/// October 2026: 8 CPUs; the 14th has other tasks, the 20th devices' interrupts, the host booted on the 9th and was off on the 10th.
pub(crate) fn october() -> Account {
    serde_json::from_str(include_str!("../../../tests/data/october.json")).unwrap()
}

/// Nothing but zeros, and all is covered.
pub(crate) fn quiet() -> Account {
    let mut account = october();
    (account.worst, account.gaps, account.attributions) = Default::default();
    account.gaps_left_out = 0;
    account.totals.other_tasks = Default::default();
    account.totals.devices.clear();
    account.covered_us = account.promised_us;
    for day in &mut account.days {
        (day.other_tasks, day.devices, day.covered_us) = (Default::default(), 0, day.promised_us);
    }
    account
}

/// The verdict on a ring without faults whose last head covers the account.
pub(crate) fn good() -> Verdict {
    serde_json::from_str(include_str!("../../../tests/data/verdict.json")).unwrap()
}
