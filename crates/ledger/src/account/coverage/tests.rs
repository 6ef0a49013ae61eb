//! Time in which a VM had CPUs of its own, and that nobody read.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::account::{Account, Gap, accounts};
use crate::entry::{Entry, Event};
use crate::recorder::{EntryRecorder, RecordedVm};
use crate::sample::{CounterSample, Counters, Seat, TaskId};

const VM: &str = "vm";
const SECOND: u64 = 1_000_000;
const START: u64 = 1_790_000_000 * SECOND;

/// A daemon with its ring, and a VM on CPUs 2 and 3.
struct Daemon {
    recorder: EntryRecorder,
    entries: Vec<Entry>,
    second: u64,
    /// What was booked as entries were kept.
    promised_us: u64,
    covered_us: u64,
}

fn seats(cpus: &[u32]) -> BTreeSet<Seat> {
    let seat = |cpu: &u32| Seat {
        cpus: [*cpu].into_iter().collect(),
        threads: vec![TaskId {
            id: i32::try_from(*cpu).unwrap(),
            start: 1,
        }],
        cgroup: None,
    };
    cpus.iter().map(seat).collect()
}

impl Daemon {
    fn new() -> Self {
        Self {
            recorder: EntryRecorder::resume(LedgerState::default(), "boot", "1"),
            entries: Vec::new(),
            second: 0,
            promised_us: 0,
            covered_us: 0,
        }
    }

    /// In this second the VM has this state and these CPUs; whether the ring takes it.
    fn looks(&mut self, second: u64, state: &str, cpus: &[u32], kept: bool) {
        self.second = second;
        let vm = RecordedVm {
            state: state.into(),
            seats: seats(cpus),
            ..RecordedVm::default()
        };
        let vms = match state {
            "gone" => BTreeMap::new(),
            _ => BTreeMap::from([(VM.to_owned(), vm)]),
        };
        let counters = Counters {
            bound_read: true,
            ..Counters::default()
        };
        let seats = self
            .recorder
            .seats_to_read(&vms)
            .into_iter()
            .map(|seat| (seat, counters.clone()));
        let sample = CounterSample {
            at_us: START + second * SECOND,
            up_us: 77 * SECOND + second * SECOND,
            seats: seats.collect(),
            ..CounterSample::default()
        };
        let Some(mut draft) = self.recorder.take_sample(&sample, &vms, self.entries.is_empty()) else {
            return;
        };
        if !kept {
            return self.recorder.missed("No space left on device");
        }
        draft.entry.seq = self.entries.len() as u64 + 1;
        self.entries.push(draft.entry.clone());
        for account in self.recorder.committed(draft, 100).into_values() {
            self.promised_us += account.promised_us;
            self.covered_us += account.covered_us;
        }
    }

    fn settling(&mut self, settling: bool) {
        let vms = [VM.to_owned()].into_iter().filter(|_| settling);
        self.recorder.set_settling(vms.collect());
    }

    /// All is written at the beginning of an hour since boot: what is open until then is read then.
    fn account(&self, since: u64, until: u64) -> Account {
        let entries = self.entries.iter().cloned().map(|entry| (entry, "hash".to_owned()));
        let part = |second: u64| if second == 0 { 0 } else { START + second * SECOND };
        accounts(entries, part(since), part(until), None)
            .remove(VM)
            .unwrap_or_default()
    }
}

/// `CPUs from-until why`, in seconds.
fn gaps(account: &Account) -> Vec<String> {
    let second = |us: u64| (us - START) / SECOND;
    let one = |gap: &Gap| {
        format!(
            "{} {}-{} {:?}",
            gap.cpus,
            second(gap.from_us),
            second(gap.until_us),
            gap.why
        )
    };
    account.gaps.iter().map(one).collect()
}

fn seconds(account: &Account) -> (u64, u64) {
    let days: u64 = account.days.iter().map(|day| day.promised_us).sum();
    assert_eq!(days, account.promised_us);
    (account.promised_us / SECOND, account.covered_us / SECOND)
}

#[test]
fn the_time_before_the_first_reading_is_promised_and_a_gap() {
    // As it is now: the seats are known and not read. And as it was: they were known when they were read.
    for known_before in [true, false] {
        let mut daemon = Daemon::new();
        daemon.settling(known_before);
        let before: &[u32] = if known_before { &[2, 3] } else { &[] };
        daemon.looks(0, "isolated", before, true);
        daemon.looks(9, "isolated", before, true);
        daemon.settling(false);
        daemon.looks(30, "isolated", &[2, 3], true);
        daemon.looks(60, "gone", &[], true);
        let account = daemon.account(0, 0);
        // It was last looked at in second 30.
        assert_eq!(seconds(&account), (120, 0), "{account:#?}");
        let mut daemon = Daemon::new();
        daemon.settling(known_before);
        daemon.looks(0, "isolated", before, true);
        daemon.settling(false);
        daemon.looks(30, "isolated", &[2, 3], true);
        daemon.looks(59, "isolated", &[2, 3], true);
        daemon.looks(60, "gone", &[], true);
        let account = daemon.account(0, 0);
        assert_eq!(seconds(&account), (120, 58), "{account:#?}");
        assert_eq!(gaps(&account), ["2-3 0-30 NotRead", "2-3 59-60 Ended"]);
        assert_eq!(
            (daemon.promised_us, daemon.covered_us),
            (account.promised_us, account.covered_us)
        );
        // Of a part of it likewise.
        let part = daemon.account(20, 50);
        assert_eq!(
            (seconds(&part), gaps(&part)),
            ((60, 40), vec!["2-3 20-30 NotRead".to_owned()])
        );
    }
}

#[test]
fn a_vm_that_is_isolated_anew_again_and_again_and_never_read_is_not_covered() {
    for known in [true, false] {
        let mut daemon = Daemon::new();
        daemon.settling(known);
        let cpus: &[u32] = if known { &[2, 3] } else { &[] };
        for round in 0..20 {
            daemon.looks(round * 9, "isolated", cpus, true);
            daemon.looks(round * 9 + 8, "attaching", &[], true);
        }
        let account = daemon.account(0, 0);
        let cpus = if known { 2 } else { 1 };
        assert_eq!(seconds(&account), (20 * 8 * cpus, 0));
        assert!(
            account.gaps.len() == 20 && account.gaps.iter().all(|gap| gap.why == Closed::NotRead),
            "{account:#?}"
        );
        assert_eq!(daemon.promised_us, account.promised_us);
    }
    // The state stays the same in all samples.
    let mut daemon = Daemon::new();
    daemon.settling(true);
    daemon.looks(0, "isolated", &[2, 3], true);
    daemon.looks(90, "isolated", &[2, 3], true);
    daemon.looks(180, "waiting", &[], true);
    assert_eq!(seconds(&daemon.account(0, 0)), (360, 0));
    assert_eq!(gaps(&daemon.account(0, 0)), ["2-3 0-180 NotRead"]);
}

#[test]
fn a_vm_that_settles_anew_without_another_state_is_not_covered_meanwhile() {
    let mut daemon = Daemon::new();
    for (second, settles) in [
        (0, false),
        (30, false),
        (60, true),
        (65, true),
        (90, false),
        (120, false),
    ] {
        daemon.settling(settles);
        daemon.looks(second, "isolated", &[2, 3], true);
    }
    daemon.looks(121, "gone", &[], true);
    let account = daemon.account(0, 0);
    assert_eq!(gaps(&account), ["2-3 30-90 NotRead", "2-3 120-121 Ended"]);
    assert_eq!(seconds(&account), (242, 120));
}

#[test]
fn a_cpu_that_cannot_be_read_is_not_covered_and_the_others_are() {
    let mut daemon = Daemon::new();
    daemon.looks(0, "isolated", &[2, 3], true);
    daemon.looks(30, "isolated", &[2, 3], true);
    // Another CPU comes, and the last one goes.
    daemon.looks(60, "isolated", &[2, 4], true);
    daemon.looks(90, "isolated", &[2, 4], true);
    daemon.looks(100, "waiting", &[], true);
    let account = daemon.account(0, 0);
    assert_eq!(gaps(&account), ["3 30-60 Ended", "2,4 90-100 NotIsolated"]);
    assert_eq!(seconds(&account), (2 * 60 + 2 * 40, 90 + 30 + 30));
}

#[test]
fn what_could_not_be_kept_is_said_where_no_window_covers_it() {
    let mut daemon = Daemon::new();
    daemon.looks(0, "isolated", &[2], true);
    daemon.looks(30, "isolated", &[2], true);
    daemon.looks(60, "gone", &[], false);
    daemon.looks(90, "gone", &[], false);
    daemon.looks(120, "gone", &[], true);
    let account = daemon.account(0, 0);
    assert_eq!(gaps(&account), ["2 30-120 NotKept"]);
    let missed = daemon.entries.iter().flat_map(|entry| &entry.events);
    let missed = missed.filter(|event| matches!(event, Event::Missed { looks: 2, .. }));
    assert_eq!(missed.count(), 1);
    // What goes on is covered: the counters went on.
    let mut daemon = Daemon::new();
    for (second, kept) in [(0, true), (30, false), (60, false), (3600, true)] {
        daemon.looks(second, "isolated", &[2], kept);
    }
    let account = daemon.account(0, 0);
    assert_eq!((seconds(&account), gaps(&account)), ((3600, 3600), Vec::new()));
}
