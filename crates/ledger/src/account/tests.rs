//! From looks by way of entries to accounts.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::entry::{Entry, Event};
use crate::keeper::{Keeper, Vm, Vms, Why};
use crate::look::{Bound, Counters, Fired, Look, Seat, Thread};
use crate::standing::Standing;

const SECOND: u64 = 1_000_000;
const BOOT: &str = "boot-1";

fn seat(cpu: u32) -> Seat {
    Seat {
        cpus: [cpu].into_iter().collect(),
        threads: vec![Thread { id: 10, start: 1 }],
    }
}

fn vms() -> Vms {
    let vm = Vm {
        name: "team/vm".into(),
        state: "isolated".into(),
        seats: [seat(2)].into(),
        own_devices: BTreeSet::from(["0000:3b:00.0".to_owned()]),
    };
    [("uid".to_owned(), vm)].into()
}

/// A host's counters, and a ring in memory.
#[derive(Default)]
struct Host {
    up: u64,
    own: u64,
    others: u64,
    bound: u64,
    nvme: u32,
    vfio: u32,
    ring: Vec<Entry>,
}

impl Host {
    fn look(&mut self) -> Look {
        self.up += 30 * SECOND;
        self.own += 5;
        let fired = |name: &str, count| Fired {
            name: name.to_owned(),
            count,
        };
        let bound = Bound {
            name: "ksoftirqd/2".into(),
            switches: (self.bound, self.bound),
            run_ns: self.bound * 100,
        };
        let counters = Counters {
            switches: self.own + self.others + self.bound,
            own: (self.own, self.own),
            bound: [(Thread { id: 20, start: 1 }, bound)].into(),
            bound_read: true,
            devices: [
                (30, fired("nvme0q3", self.nvme)),
                (31, fired("vfio-msix[0](0000:3b:00.0)", self.vfio)),
            ]
            .into(),
            upkeep: [("LOC".to_owned(), 7), ("PIN".to_owned(), self.vfio)].into(),
            ..Counters::default()
        };
        Look {
            at_us: 1_793_000_000 * SECOND + self.up,
            up_us: self.up,
            seats: [(seat(2), counters)].into(),
        }
    }

    /// An audit: whether something was kept.
    fn audit(&mut self, keeper: &mut Keeper, starts: bool) -> bool {
        let look = self.look();
        let Some(mut draft) = keeper.looked(&look, &vms(), Why::Audit, starts) else {
            return false;
        };
        draft.entry.seq = self.ring.len() as u64 + 1;
        self.ring.push(draft.entry.clone());
        keeper.kept(&draft);
        true
    }

    fn account(&self) -> Account {
        let entries = self.ring.iter().map(|entry| (entry.clone(), String::new()));
        accounts(entries, 0, u64::MAX, None).remove(0)
    }
}

fn keeper() -> Keeper {
    Keeper::resume(Standing::default(), BOOT, "1")
}

#[test]
fn every_class_is_booked_once_whatever_is_kept_between() {
    let (mut host, mut keeper) = (Host::default(), keeper());
    host.audit(&mut keeper, true);
    (host.others, host.bound, host.nvme, host.vfio) = (3, 4, 2, 9);
    assert!(host.audit(&mut keeper, false));
    host.others += 1;
    assert!(!host.audit(&mut keeper, false), "every half a minute would be too much");
    for _ in 0..200 {
        host.audit(&mut keeper, false);
    }
    let account = host.account();
    assert_eq!(account.totals.other_tasks, Range { least: 4, most: 4 });
    assert_eq!(account.totals.devices, [("nvme0q3".to_owned(), 2)].into());
    let own: BTreeMap<String, u64> = [("PIN".to_owned(), 9), ("vfio-msix[0](0000:3b:00.0)".to_owned(), 9)].into();
    assert_eq!(account.totals.own_interrupts, own);
    assert_eq!(account.totals.kernel_threads["ksoftirqd"], Ran { count: 4, ns: 400 });
    assert!(account.promised_us >= account.covered_us && account.covered_us > 0);
    assert!(host.ring.len() < 8, "{} entries", host.ring.len());
    assert_eq!((account.name.as_str(), account.states.len()), ("team/vm", 1));
}

#[test]
fn a_daemon_that_goes_on_from_entries_books_the_same() {
    let (mut host, mut one) = (Host::default(), keeper());
    host.audit(&mut one, true);
    host.others = 3;
    host.audit(&mut one, false);
    let mut standing = Standing::default();
    host.ring.iter().for_each(|entry| standing.apply(entry));
    let mut next = Keeper::resume(standing, BOOT, "2");
    host.others = 8;
    host.audit(&mut next, false);
    host.up += 3600 * SECOND;
    host.audit(&mut next, false);
    let account = host.account();
    assert_eq!(account.totals.other_tasks, Range { least: 8, most: 8 });
    assert_eq!(account.gaps, []);
}

#[test]
fn a_segment_is_read_alone() {
    let (mut host, mut keeper) = (Host::default(), keeper());
    keeper.use_key("key");
    host.audit(&mut keeper, true);
    host.others = 3;
    host.audit(&mut keeper, false);
    host.up += 3600 * SECOND;
    assert!(host.audit(&mut keeper, true));
    let mut standing = Standing::default();
    let last = host.ring.last().unwrap();
    assert!(matches!(last.events.first(), Some(Event::Boot { .. })));
    standing.apply(last);
    let mut all = Standing::default();
    host.ring.iter().for_each(|entry| all.apply(entry));
    assert_eq!(standing, all);
}

#[test]
fn counters_of_another_boot_are_not_compared() {
    let (mut host, mut one) = (Host::default(), keeper());
    host.own = 1000;
    host.audit(&mut one, true);
    let mut standing = Standing::default();
    host.ring.iter().for_each(|entry| standing.apply(entry));
    let mut next = Keeper::resume(standing, "boot-2", "1");
    (host.own, host.others) = (0, 50);
    host.audit(&mut next, false);
    host.others = 51;
    host.audit(&mut next, false);
    let account = host.account();
    assert_eq!(account.totals.other_tasks, Range { least: 1, most: 1 });
    assert_eq!(account.gaps.len(), 1);
    assert_eq!(account.gaps[0].why, Closed::Boot);
}

#[test]
fn what_contradicts_itself_is_a_gap_and_no_number() {
    let (mut host, mut keeper) = (Host::default(), keeper());
    host.others = 100;
    host.audit(&mut keeper, true);
    // The thread ran elsewhere: it has more switch-ins than the CPU.
    host.others = 50;
    assert!(host.audit(&mut keeper, false));
    let account = host.account();
    assert_eq!(account.totals.other_tasks, Range::default());
    assert_eq!(account.gaps[0].why, Closed::Contradicted);
    host.others += 2;
    host.audit(&mut keeper, false);
    assert_eq!(
        host.account().totals.other_tasks,
        Range { least: 2, most: 2 },
        "it goes on from there"
    );
}

#[test]
fn what_was_not_written_is_in_the_next_entry() {
    let (mut host, mut keeper) = (Host::default(), keeper());
    host.audit(&mut keeper, true);
    host.others = 3;
    let look = host.look();
    assert!(keeper.looked(&look, &vms(), Why::Audit, false).is_some());
    keeper.missed("full");
    keeper.missed("full");
    host.audit(&mut keeper, false);
    let missed = |event: &Event| {
        *event
            == Event::Missed {
                looks: 2,
                why: "full".into(),
            }
    };
    assert!(host.ring[1].events.iter().any(missed));
    assert_eq!(host.account().totals.other_tasks, Range { least: 3, most: 3 });
}
