//! Accounts and attributions over D-Bus, and waiting for them.

use std::fs;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stelia_api::attribution::Attribution;
use stelia_ledger::account::{Account, Range};

use crate::support::*;

/// The object path of a pod's instance.
pub fn object(uid: &str) -> String {
    call(&["GetInstance", "s", uid]).as_str().expect("a path").to_owned()
}

/// The account of a VM from its beginning until now.
pub fn account(pod: &Pod) -> Account {
    answered(&run(&busctl(
        &object(&pod.uid),
        "Instance",
        &["Ledger", "tta{sv}", "0", "0", "0"],
    )))
}

/// The account of a VM that may have ended; empty until its first entry.
pub fn account_by_uid(uid: &str) -> Account {
    answered(&run(&busctl(
        MANAGER,
        "Manager",
        &["Ledger", "stta{sv}", uid, "0", "0", "0"],
    )))
}

/// The account once the bounds of its count of other tasks do not get closer any more. A guest that wakes during a reading leaves an interval
/// until the next reading. A bound kernel thread that ended (the kernel's idle workers do, after 5 minutes) leaves one for good, because its
/// last runs are not known.
pub fn settled(pod: &Pod) -> Account {
    let width = |of: &Account| of.totals.other_tasks.most - of.totals.other_tasks.least;
    let mut best = account(pod);
    let mut same = 0;
    while width(&best) > 0 && same < 20 {
        let now = account(pod);
        same = if width(&now) < width(&best) { 0 } else { same + 1 };
        // Of equal intervals the newer account counts.
        if width(&now) <= width(&best) {
            best = now;
        }
    }
    best
}

/// By how many the count of other tasks has risen, if the interval has not become wider.
pub fn more(now: Range, before: Range) -> Option<u64> {
    let least = now.least.checked_sub(before.least)?;
    (now.most.checked_sub(before.most)? == least).then_some(least)
}

/// Checks that the ledger counts as many runs as the kernel traced, which `ran` returns. If a bound kernel thread ended meanwhile, there is
/// only an interval: it must contain the traced number, and `ran` is called again. Returns the account afterwards.
pub fn booked_as_traced(pod: &Pod, what: &str, mut ran: impl FnMut() -> u64) -> Account {
    for _ in 0..5 {
        let before = settled(pod);
        let traced = ran();
        let after = settled(pod);
        let (now, then) = (after.totals.other_tasks, before.totals.other_tasks);
        let (certain, more) = (difference(now, then), more(now, then));
        println!("  {what}: traced {traced}, booked {certain:?}, {more:?} more");
        assert!((certain.least..=certain.most).contains(&traced), "{what}: {after:#?}");
        if more.is_some() {
            assert_eq!(more, Some(traced), "{what}: {after:#?}");
            return after;
        }
    }
    panic!("{what}: never was it certain");
}

/// Waits until the VM's CPUs are read, from the first audit after KVM's late threads are in place. Requests an audit every 2 s: audits take long if
/// eight VMs start on an emulated node.
pub fn wait_booked(pod: &Pod) {
    let mut asked: Option<Instant> = None;
    wait_within(PATIENCE * 5, "it is booked", String::new, || {
        if asked.is_none_or(|at| at.elapsed() > Duration::from_secs(2)) {
            reconcile();
            asked = Some(Instant::now());
        }
        account_by_uid(&pod.uid).covered_us > 0
    });
}

/// Waits until the counters were read after this call. On a slow node an account may be answered without a new reading; and a reading may
/// be under way now, so the second one counts.
pub fn wait_read_again(pod: &Pod) {
    for reading in ["a reading", "another reading"] {
        let before = account(pod).promised_us;
        wait_until(reading, || account(pod).promised_us > before);
    }
}

pub fn devices(of: &Account) -> u64 {
    of.totals.devices.values().sum()
}

/// steliad-quiet's record of a count, which has its start once all triggers are set. That of the last count may still be there.
fn trace_record() -> String {
    fs::read_to_string("/run/stelia/quiet/trace.json").unwrap_or_default()
}

/// Begins an attribution of so many seconds, and waits until it counts or has failed.
pub fn begin_attribution(uid: &str, seconds: u32) -> JoinHandle<Result<Attribution, String>> {
    let last = trace_record();
    let uid = uid.to_owned();
    let call = std::thread::spawn(move || attribute(&uid, seconds));
    wait_until("it counts", || {
        let now = trace_record();
        let is_counting = now != last && now.contains("from");
        is_counting || call.is_finished()
    });
    call
}

fn attribute(uid: &str, seconds: u32) -> Result<Attribution, String> {
    let seconds = seconds.to_string();
    let mut call = busctl(
        &object(uid),
        "Instance",
        &["Attribute", "a{sv}", "1", "seconds", "u", &seconds],
    );
    call.insert(1, "--timeout=120".to_owned());
    let out = output(&call);
    if !out.status.success() {
        return Err(utf8(&out.stderr));
    }
    Ok(answered(&utf8(&out.stdout)))
}

pub fn difference(now: Range, before: Range) -> Range {
    Range {
        least: now.least.saturating_sub(before.most),
        most: now.most.saturating_sub(before.least),
    }
}
