//! When the recorder writes an entry, and what is in it. The VM has one CPU.

use std::collections::BTreeMap;

use stelia_ledger::account::{Account, Range};
use stelia_ledger::day::day;
use stelia_ledger::entry::{Class, Closed, Entry, Event};
use stelia_ledger::recorder::{Draft, EntryRecorder, RecordedVm, heartbeat_hours};
use stelia_ledger::sample::{CounterSample, Counters, Fired};

use super::host::{Host, Run, VMS};
use super::play::Ring;

const VM: &str = VMS[1];
/// The VM's CPU in the model.
const CPU: usize = 2;
const AUDIT_US: u64 = 30_000_000;
const HOUR_US: u64 = 3_600_000_000;

struct Daemon {
    host: Host,
    ring: Ring,
    recorder: EntryRecorder,
}

impl Daemon {
    fn new() -> Self {
        Self::on(Host::new())
    }

    fn on(mut host: Host) -> Self {
        let ring = Ring::default();
        let recorder = ring.resume(&mut host);
        Self { host, ring, recorder }
    }

    fn restart(&mut self) {
        self.recorder = self.ring.resume(&mut self.host);
    }

    fn run(&mut self, what: Run) {
        self.host.run(CPU, what);
    }

    fn counters(&mut self) -> &mut Counters {
        &mut self.host.cpus[CPU].counters
    }

    fn vms(&self, state: &str) -> BTreeMap<String, RecordedVm> {
        let mut vms = self.host.vms();
        vms.retain(|uid, _| uid == VM);
        vms.values_mut().for_each(|vm| vm.state = state.to_owned());
        vms
    }

    fn sample(&mut self, vms: &BTreeMap<String, RecordedVm>) -> CounterSample {
        let seats = self.recorder.seats_to_read(vms);
        self.host.sample(&seats, &[], &[]).0
    }

    fn take(&mut self, sample: &CounterSample, vms: &BTreeMap<String, RecordedVm>) -> Option<Draft> {
        self.recorder.take_sample(sample, vms, self.ring.is_empty())
    }

    /// After an audit's interval, what is to be written where these VMs were read and those are there.
    fn draft(&mut self, read: &BTreeMap<String, RecordedVm>, vms: &BTreeMap<String, RecordedVm>) -> Option<Draft> {
        self.host.later(AUDIT_US);
        let sample = self.sample(read);
        self.take(&sample, vms)
    }

    fn commit(&mut self, draft: Draft) -> Entry {
        self.ring.commit(&mut self.recorder, draft)
    }

    /// Samples the VM in this state, and returns the entry that is written.
    fn look(&mut self, state: &str) -> Option<Entry> {
        let vms = self.vms(state);
        let sample = self.sample(&vms);
        let draft = self.take(&sample, &vms)?;
        Some(self.commit(draft))
    }

    /// As [`look`](Self::look), after an audit's interval.
    fn audit(&mut self, state: &str) -> Option<Entry> {
        self.host.later(AUDIT_US);
        self.look(state)
    }

    fn account(&self) -> Account {
        self.ring.account(VM)
    }
}

fn closed(entry: &Entry) -> Vec<(u64, Closed)> {
    let closed = entry.events.iter().filter_map(|event| match event {
        Event::Closed { seat, why, .. } => Some((*seat, *why)),
        _ => None,
    });
    closed.collect()
}

#[test]
fn a_quiet_vm_is_written_once_an_hour_and_a_noisy_one_hardly_more_often() {
    for (noise, most) in [(false, 25), (true, 35)] {
        let mut daemon = Daemon::new();
        for _ in 0..24 * 120 {
            daemon.run(Run::Own);
            if noise {
                daemon.run(Run::Device);
                daemon.run(Run::Foreign);
            }
            daemon.audit("isolated");
        }
        let count = daemon.ring.entries.len();
        assert!((24..=most + 1).contains(&count), "{count} entries, noise: {noise}");
        let account = daemon.account();
        assert!(account.covered_us >= 23 * HOUR_US);
        assert_eq!(account.totals.other_tasks.most > 0, noise);
    }
}

#[test]
fn a_month_of_any_node_fits_into_its_ring() {
    let ring = 64 << 20;
    assert_eq!(heartbeat_hours(20_000, ring), 1);
    for entry in [1, 40_000, 230_000, 500_000, 1_500_000] {
        let hours = heartbeat_hours(entry, ring);
        assert!(24 % hours == 0 && entry * (31 * 24 / hours) <= ring, "{entry}: {hours}");
    }
    assert_eq!(heartbeat_hours(u64::MAX, ring), 24);
}

#[test]
fn an_intruder_is_written_at_once() {
    let mut daemon = Daemon::new();
    daemon.look("isolated").unwrap();
    assert_eq!(daemon.audit("isolated"), None);
    daemon.run(Run::Foreign);
    let entry = daemon.audit("isolated").unwrap();
    let intruded = entry.events.iter().find_map(|event| match event {
        Event::Intruded { class, count, .. } => Some((*class, *count)),
        _ => None,
    });
    assert_eq!(intruded, Some((Class::OtherTasks, (1, 1))), "{entry:#?}");
}

#[test]
fn a_day_begins_with_a_reading_and_sums_are_those_of_its_days() {
    let mut daemon = Daemon::new();
    let mut foreign_by_day: BTreeMap<String, u64> = BTreeMap::new();
    for sample in 0..31 * 2_880 {
        daemon.host.later(AUDIT_US);
        match sample {
            // The clock is set: an hour ahead, later two back.
            20_000 => daemon.host.at += HOUR_US,
            40_000 => daemon.host.at -= 2 * HOUR_US,
            60_000 => {
                daemon.host.boot();
                daemon.restart();
            }
            _ if sample % 997 == 0 => {
                daemon.run(Run::Foreign);
                *foreign_by_day.entry(day(daemon.host.at)).or_default() += 1;
            }
            _ => {}
        }
        daemon.look("isolated");
    }
    let account = daemon.account();
    // The first one ran before the first reading.
    let told: u64 = account.days.iter().map(|day| day.other_tasks.least).sum();
    let (least, most) = (told, told);
    assert_eq!(account.totals.other_tasks, Range { least, most });
    assert_eq!(told, foreign_by_day.values().sum::<u64>() - 1);
    assert!((31..=33).contains(&account.days.len()), "{}", account.days.len());
    assert!(account.covered_us > 30 * 24 * HOUR_US && account.covered_us <= account.promised_us);
    let gaps: Vec<Closed> = account.gaps.iter().map(|gap| gap.why).collect();
    assert_eq!(gaps, [Closed::Boot]);
    let events = daemon.ring.entries.iter().flat_map(|entry| &entry.events);
    let clocks: Vec<i64> = events
        .filter_map(|event| match event {
            Event::Clock { by } => Some(*by),
            _ => None,
        })
        .collect();
    assert_eq!(clocks, [3_600_000_000, -7_200_000_000]);
}

#[test]
fn a_life_is_opened_and_closed_with_the_reason() {
    let mut daemon = Daemon::new();
    assert!(daemon.look("waiting").unwrap().readings.is_empty());
    assert_eq!(daemon.audit("isolated").unwrap().readings.len(), 1);
    daemon.host.cpus[CPU].hidden = true;
    let entry = daemon.audit("isolated").unwrap();
    assert_eq!(closed(&entry), [(0, Closed::Offline)]);
    daemon.audit("isolated").unwrap();
    // Its thread ran elsewhere.
    let counters = daemon.counters();
    counters.own = (counters.own.0 + 50, counters.own.1 + 50);
    let entry = daemon.audit("isolated").unwrap();
    assert_eq!(closed(&entry), [(1, Closed::Contradicted)]);
    daemon.host.later(AUDIT_US);
    let (none, isolated) = (BTreeMap::new(), daemon.vms("isolated"));
    let sample = daemon.sample(&isolated);
    let draft = daemon.take(&sample, &none).unwrap();
    assert_eq!(closed(&draft.entry), [(2, Closed::Ended)]);
    daemon.commit(draft);
    let account = daemon.account();
    let states: Vec<&str> = account.states.iter().map(|(_, state)| state.as_str()).collect();
    assert_eq!(states, ["waiting", "isolated", "gone"]);
    let gaps: Vec<Closed> = account.gaps.iter().map(|gap| gap.why).collect();
    assert_eq!(gaps, [Closed::Offline, Closed::Contradicted, Closed::Ended]);
    assert_eq!(account.totals.other_tasks, Range::default());
    assert!(daemon.take(&sample, &none).is_none(), "an empty node writes nothing");
}

#[test]
fn a_seats_hour_has_few_bytes() {
    let mut daemon = Daemon::new();
    let counters = daemon.counters();
    (counters.switches, counters.own) = (9_876_543_210, (9_876_500_000, 9_876_500_000));
    (counters.run_ns, counters.delay_ns) = (2_678_400_000_000_000, 3_456_789_012);
    let (loc, res, cal, tlb, iwi) = (669_600_000, 1_234_567, 2_345_678, 123_456, 12_345);
    let upkeep = [("LOC", loc), ("RES", res), ("CAL", cal), ("TLB", tlb), ("IWI", iwi)];
    let softirqs = [("TIMER", 3_456_789), ("SCHED", 1_234_567), ("RCU", 23_456_789)];
    counters.upkeep.extend(upkeep.map(|(name, count)| (name.into(), count)));
    counters
        .softirqs
        .extend(softirqs.map(|(name, count)| (name.into(), count)));
    daemon.look("isolated");
    daemon.run(Run::Own);
    let entry = (0..=HOUR_US / AUDIT_US).find_map(|_| daemon.audit("isolated"));
    let text = serde_json::to_string(&entry.unwrap().readings).unwrap();
    println!("a CPU's hour: {} bytes of the entry", text.len());
    assert!(text.len() <= 170, "{}: {text}", text.len());
}

#[test]
fn a_device_that_becomes_the_vms_own_is_its_own_from_then_on() {
    let mut daemon = Daemon::new();
    let vfio = Fired {
        name: "vfio-msix[0](0000:3b:00.0)".into(),
        count: 7,
    };
    daemon.counters().devices = BTreeMap::from([(40, vfio)]);
    daemon.look("isolated").unwrap();
    let mut vms = daemon.vms("isolated");
    vms.get_mut(VM).unwrap().own_devices.insert("0000:3b:00.0".into());
    daemon.counters().devices.get_mut(&40).unwrap().count += 5;
    let draft = daemon.draft(&vms, &vms).unwrap();
    assert_eq!(draft.intrusions, []);
    daemon.commit(draft);
    let account = daemon.account();
    assert_eq!(account.totals.devices, BTreeMap::new());
    assert_eq!(account.totals.own_interrupts.into_values().sum::<u64>(), 5);
    assert_eq!(daemon.draft(&vms, &vms), None, "it is written once");
}

#[test]
fn what_could_not_be_written_is_written_later() {
    let mut daemon = Daemon::new();
    daemon.look("isolated").unwrap();
    daemon.host.at += 3 * HOUR_US;
    let vms = daemon.vms("isolated");
    assert!(daemon.draft(&vms, &vms).is_some());
    daemon.recorder.missed("the disk is full");
    // Other reasons do not replace the first one, and their number is limited.
    ["slow", "slow", "a", "b", "c", "d", "c"]
        .into_iter()
        .for_each(|why| daemon.recorder.missed(why));
    let entry = daemon.audit("isolated").unwrap();
    let by = i64::try_from(3 * HOUR_US).unwrap();
    assert!(entry.events.contains(&Event::Clock { by }), "{entry:#?}");
    let missed = entry.events.iter().filter_map(|event| match event {
        Event::Missed { looks, why } => Some((*looks, why.as_str())),
        _ => None,
    });
    let expected = [
        (1, "the disk is full"),
        (2, "slow"),
        (1, "a"),
        (1, "b"),
        (3, "other reasons"),
    ];
    assert_eq!(missed.collect::<Vec<_>>(), expected);
}

#[test]
fn a_query_before_the_first_sample_after_a_boot_compares_nothing() {
    let mut host = Host::new();
    host.cpus[CPU].seat.threads.clear();
    let mut daemon = Daemon::on(host);
    daemon.look("isolated").unwrap();
    daemon.host.boot += 1;
    daemon.host.later(AUDIT_US);
    daemon.restart();
    let vms = daemon.vms("isolated");
    let sample = daemon.sample(&vms);
    assert_eq!(daemon.recorder.provisional(&sample, &vms).readings, []);
}

#[test]
fn the_last_sample_of_a_seat_ends_it_although_it_was_not_written() {
    let mut daemon = Daemon::new();
    daemon.look("isolated").unwrap();
    for _ in 0..3 {
        daemon.run(Run::Own);
        assert_eq!(daemon.audit("isolated"), None);
    }
    daemon.run(Run::Own);
    let vms = daemon.vms("isolated");
    let draft = daemon.draft(&vms, &BTreeMap::new()).unwrap();
    daemon.commit(draft);
    let account = daemon.account();
    assert_eq!((account.totals.own.count, account.covered_us), (3, 3 * AUDIT_US));
    assert_eq!(account.promised_us, 4 * AUDIT_US);
}

/// A guest with a passed-through device restarts its driver, or gives the device back.
#[test]
fn what_an_interrupt_counted_until_the_last_sample_is_booked_when_it_has_ended() {
    let mut daemon = Daemon::new();
    let fire = |daemon: &mut Daemon, name: &str, count: u32| {
        let name = name.to_owned();
        daemon.counters().devices.insert(50, Fired { name, count });
    };
    let own = "vfio-msix[1](0000:3b:00.0)";
    let booked = |daemon: &Daemon| {
        let booked = daemon.account().totals.own_interrupts;
        booked.get(own).copied().unwrap_or_default()
    };
    let mut vms = daemon.vms("isolated");
    for vm in vms.values_mut() {
        vm.own_devices = ["0000:3b:00.0".to_owned()].into();
    }
    let audit = |daemon: &mut Daemon| {
        let draft = daemon.draft(&vms, &vms);
        draft.map(|draft| daemon.commit(draft)).is_some()
    };
    audit(&mut daemon);
    fire(&mut daemon, own, 100);
    assert!(!audit(&mut daemon), "it is the VM's own");
    // Requested again under the same number, and fired since.
    fire(&mut daemon, own, 40);
    assert!(audit(&mut daemon));
    assert_eq!(booked(&daemon), 100);
    assert!(!audit(&mut daemon), "nothing else is lost");
    // Gone, and its number is another's.
    fire(&mut daemon, "eth0", 0);
    assert!(audit(&mut daemon));
    assert_eq!(booked(&daemon), 140);
    fire(&mut daemon, own, 7);
    audit(&mut daemon);
    daemon.counters().devices.remove(&50);
    assert!(audit(&mut daemon));
    assert_eq!(booked(&daemon), 147);
    let closes = |entry: &Entry| !closed(entry).is_empty();
    assert!(!daemon.ring.entries.iter().any(closes));
}
