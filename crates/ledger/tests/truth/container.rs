//! The entries and the account of a whole container.

use std::collections::{BTreeMap, BTreeSet};

use stelia_ledger::account::{Account, Range};
use stelia_ledger::entry::{Closed, Entry, Event};
use stelia_ledger::recorder::{EntryRecorder, RecordedVm};
use stelia_ledger::replay::LedgerState;
use stelia_ledger::sample::{CounterSample, Counters, Seat};

use super::play::Ring;

const POD: &str = "00000000-0000-4000-8000-000000000003";
const AUDIT_US: u64 = 30_000_000;

/// A daemon, and a container with the CPUs 2-3.
struct Daemon {
    ring: Ring,
    recorder: EntryRecorder,
    up: u64,
    counters: Counters,
    too_many: bool,
}

fn seat() -> Seat {
    Seat {
        cpus: "2-3".parse().unwrap(),
        threads: Vec::new(),
        cgroup: Some("/kubepods.slice/cri-containerd-a.scope".to_owned()),
    }
}

fn vms() -> BTreeMap<String, RecordedVm> {
    let vm = RecordedVm {
        name: "data/db".to_owned(),
        state: "isolated".to_owned(),
        seats: [seat()].into(),
        own_devices: BTreeSet::new(),
        located: None,
    };
    BTreeMap::from([(POD.to_owned(), vm)])
}

fn replay(ring: &Ring) -> LedgerState {
    let mut replay = LedgerState::default();
    ring.entries.iter().for_each(|entry| replay.apply(entry).unwrap());
    replay
}

impl Daemon {
    fn new() -> Self {
        let counters = Counters {
            switches: 5_000,
            own: (4_000, 4_000),
            bound_read: true,
            ..Counters::default()
        };
        Self {
            ring: Ring::default(),
            recorder: EntryRecorder::resume(LedgerState::default(), "boot", "1"),
            up: 77_000_000,
            counters,
            too_many: false,
        }
    }

    /// Its tasks run so often, others so often, and tasks of which nothing is known end.
    fn run(&mut self, own: u64, others: u64, ended: bool) {
        self.counters.switches += own + others;
        self.counters.own.0 += own;
        self.counters.own.1 += own;
        self.counters.own_incomplete = ended;
    }

    fn audit(&mut self) -> Option<(Entry, Vec<Event>)> {
        self.up += AUDIT_US;
        let counters = (seat(), self.counters.clone());
        self.counters.own_incomplete = false;
        let sample = CounterSample {
            at_us: 1_790_000_000_000_000 + self.up,
            up_us: self.up,
            seats: Some(counters).filter(|_| !self.too_many).into_iter().collect(),
            too_many_tasks: Some(seat()).filter(|_| self.too_many).into_iter().collect(),
        };
        let draft = self.recorder.take_sample(&sample, &vms(), self.ring.is_empty())?;
        let intrusions = draft.intrusions.clone();
        Some((self.ring.commit(&mut self.recorder, draft), intrusions))
    }

    fn until_written(&mut self) {
        assert!((0..200).any(|_| self.audit().is_some()));
    }

    fn account(&self) -> Account {
        self.ring.account(POD)
    }

    fn others(&self) -> (u64, u64) {
        let Range { least, most } = self.account().totals.other_tasks;
        (least, most)
    }
}

#[test]
fn others_are_counted_exactly_unless_tasks_ended_and_then_nobody_is_told_of() {
    let mut daemon = Daemon::new();
    daemon.audit().unwrap();
    daemon.run(70, 5, false);
    let (_, intrusions) = daemon.audit().unwrap();
    assert_eq!((daemon.others(), intrusions.len()), ((5, 5), 1));
    // Its pause is over; a task ended at a sample that is not written.
    daemon.run(70, 2, true);
    assert_eq!(daemon.audit(), None);
    daemon.run(70, 1, false);
    let (entry, intrusions) = daemon.audit().unwrap();
    assert_eq!((daemon.others(), intrusions), ((5, 8), Vec::new()));
    let text = serde_json::to_string(&entry.readings).unwrap();
    assert!(text.contains(r#""b":[[{"id":0,"start":1},null]]"#), "{text}");
    // Such a task may run once more.
    daemon.run(1, 1, false);
    daemon.until_written();
    assert_eq!(daemon.others(), (5, 9));
    daemon.run(1, 1, false);
    daemon.until_written();
    assert_eq!(daemon.others(), (6, 10));
    assert!(daemon.account().is_container);
    assert_eq!(daemon.account().totals.own.count, 212);
}

#[test]
fn a_container_whose_tasks_end_all_the_time_is_written_hardly_more_often_than_a_disturbed_vm() {
    let mut daemon = Daemon::new();
    for _ in 0..24 * 120 {
        daemon.run(1_000, 20, true);
        if let Some((entry, intrusions)) = daemon.audit() {
            assert_eq!(intrusions, []);
            let bytes = serde_json::to_string(&entry.readings).unwrap().len();
            assert!(bytes < 200, "{bytes}, however many tasks it has");
        }
    }
    let count = daemon.ring.entries.len();
    assert!((24..=36).contains(&count), "{count} entries");
    let account = daemon.account();
    assert_eq!(account.totals.other_tasks.least, 0);
    assert_eq!(account.gaps, []);
}

#[test]
fn a_container_with_too_many_tasks_has_one_gap_that_says_so() {
    for was_read in [true, false] {
        let mut daemon = Daemon::new();
        daemon.too_many = !was_read;
        daemon.audit().unwrap();
        daemon.too_many = true;
        daemon.audit().unwrap();
        let told = daemon.ring.entries.len();
        for _ in 0..20 {
            daemon.run(9, 9, true);
            assert_eq!(daemon.audit(), None);
        }
        daemon.too_many = false;
        daemon.audit().unwrap();
        daemon.run(9, 1, false);
        daemon.audit().unwrap();
        assert_eq!(daemon.ring.entries.len(), told + 2);
        let account = daemon.account();
        let whys: Vec<Closed> = account.gaps.iter().map(|gap| gap.why).collect();
        // What was not told at the first look is so at the second.
        assert_eq!(whys, [Closed::TooManyTasks], "{account:#?}");
        assert_eq!(daemon.others(), (1, 1));
        assert_eq!(account.covered_us, 2 * AUDIT_US);
    }
}

#[test]
fn the_next_daemon_does_not_compare_the_sums_of_the_last_one() {
    let mut daemon = Daemon::new();
    daemon.audit().unwrap();
    daemon.run(5, 0, false);
    assert_eq!(daemon.audit(), None);
    let last = daemon
        .recorder
        .stop(1_790_000_000_000_001 + daemon.up, daemon.up + 1, false);
    daemon.ring.append(last.unwrap());
    daemon.recorder = EntryRecorder::resume(replay(&daemon.ring), "boot", "2");
    // Tasks ended meanwhile, so the sum is smaller.
    daemon.counters.own = (100, 100);
    daemon.run(0, 400, false);
    let (entry, _) = daemon.audit().unwrap();
    let closed = entry.events.iter().find_map(|event| match event {
        Event::Closed { why, .. } => Some(*why),
        _ => None,
    });
    assert_eq!(closed, Some(Closed::Restarted));
    daemon.run(5, 2, false);
    daemon.audit().unwrap();
    let account = daemon.account();
    assert_eq!(daemon.others(), (2, 2));
    let gaps: Vec<(u64, Closed)> = account
        .gaps
        .iter()
        .map(|gap| (gap.until_us - gap.from_us, gap.why))
        .collect();
    assert_eq!(gaps, [(AUDIT_US, Closed::Restarted)]);
    assert_eq!(account.covered_us, 2 * 2 * AUDIT_US);
}

#[test]
fn what_is_written_of_a_vm_has_not_grown() {
    let opened = |cgroup: Option<String>| Event::Opened {
        seat: 1,
        vm: "vm".into(),
        name: String::new(),
        cpus: "2".parse().unwrap(),
        threads: Vec::new(),
        cgroup,
        own_devices: Vec::new(),
    };
    let text = serde_json::to_string(&opened(None)).unwrap();
    assert_eq!(text, r#"{"event":"opened","seat":1,"vm":"vm","cpus":"2","threads":[]}"#);
    assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), opened(None));
    let container = opened(Some("/kubepods.slice".into()));
    let text = serde_json::to_string(&container).unwrap();
    assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), container);
}
