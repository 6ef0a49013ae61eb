//! A month of a VM that is made up, for tests of output.

use std::fs;
use std::path::Path;

use serde_json::json;
use stelia_ledger::account::Account;
use stelia_ledger::entry::Entry;
use stelia_ledger::ring::{Limits, Ring};
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

/// A ring of one entry.
pub(crate) fn ring_at(directory: &Path) {
    let limits = Limits {
        bytes: 1 << 20,
        segment_bytes: 1 << 16,
    };
    fs::create_dir_all(directory).unwrap();
    let (mut ring, _) = Ring::open(directory, limits).unwrap();
    let entry =
        json!({"seq": 0, "at": 1_790_812_800_000_000_u64, "up": 60_000_000, "events": [{"event": "boot", "id": "b"}]});
    ring.append(&mut serde_json::from_value::<Entry>(entry).unwrap())
        .unwrap();
}
