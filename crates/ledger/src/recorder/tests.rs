use proptest::prelude::*;
use stelia_cpus::CpuSet;

use super::*;
use crate::account::{Account, Range, accounts};
use crate::entry::{Class, Closed};
use crate::sample::{Bound, Fired, Thread};

const VM: &str = "00000000-0000-4000-8000-000000000001";
const AUDIT: u64 = 30_000_000;
const START: u64 = 1_790_000_000_000_000;

/// One CPU with its thread, kernel threads that are bound to it, and whoever else.
#[derive(Debug, Clone)]
struct Host {
    boot: u32,
    at: u64,
    up: u64,
    seat: Seat,
    counters: Counters,
    /// Since the boot.
    foreign: u64,
    next_worker: i32,
    /// Bound threads that were there at a sample of the daemon that runs, or are in the ring: the kernel lets a worker be idle for 5 minutes
    /// (IDLE_WORKER_TIMEOUT), so none lives from one sample to the next only.
    seen: BTreeSet<Thread>,
    /// Switches of others than the thread at the last sample.
    rest: Option<u64>,
}

/// What happens on the CPU.
#[derive(Debug, Clone, Copy)]
enum Run {
    Own,
    Foreign,
    Bound,
    /// A worker is made: its first runs are elsewhere, so many.
    Born(u64),
    /// One ends, after it ran once more.
    Ends,
    Device,
}

impl Host {
    fn new() -> Self {
        let seat = Seat {
            cpus: "2".parse::<CpuSet>().unwrap(),
            threads: vec![Thread { id: 100, start: 7 }],
        };
        let mut counters = Counters {
            switches: 5_000,
            own: (3_000, 3_000),
            bound_read: true,
            ..Counters::default()
        };
        let bound = Bound {
            name: "ksoftirqd/2".into(),
            switches: (40, 40),
            run_ns: 900,
        };
        counters.bound.insert(Thread { id: 20, start: 1 }, bound);
        let fired = Fired {
            name: "nvme0q1".into(),
            count: u32::MAX - 3,
        };
        counters.devices.insert(30, fired);
        Self {
            boot: 1,
            at: START,
            up: 77_000_000,
            seat,
            counters,
            foreign: 0,
            next_worker: 1000,
            seen: BTreeSet::new(),
            rest: None,
        }
    }

    fn run(&mut self, what: Run) {
        let counters = &mut self.counters;
        match what {
            Run::Own => {
                counters.switches += 1;
                counters.own = (counters.own.0 + 1, counters.own.1 + 1);
                counters.run_ns += 1_000;
            }
            Run::Foreign => {
                counters.switches += 1;
                counters.delay_ns += 500;
                self.foreign += 1;
            }
            Run::Bound => {
                if let Some(bound) = counters.bound.values_mut().next_back() {
                    bound.switches = (bound.switches.0 + 1, bound.switches.1 + 1);
                    bound.run_ns += 10;
                    counters.switches += 1;
                }
            }
            Run::Born(elsewhere) => {
                let thread = Thread {
                    id: self.next_worker,
                    start: 9,
                };
                self.next_worker += 1;
                let bound = Bound {
                    name: format!("kworker/2:{}", thread.id),
                    switches: (elsewhere, elsewhere),
                    run_ns: 0,
                };
                counters.bound.insert(thread, bound);
            }
            Run::Ends => {
                let mortal = |thread: &&Thread| self.seen.contains(thread);
                if let Some(thread) = counters.bound.keys().rfind(mortal).copied() {
                    counters.bound.remove(&thread);
                    counters.switches += 1;
                }
            }
            Run::Device => {
                if let Some(fired) = counters.devices.get_mut(&30) {
                    fired.count = fired.count.wrapping_add(1);
                }
            }
        }
    }

    /// Threads are read before and after the CPU; meanwhile this happens.
    fn sample(&mut self, before: &[Run], after: &[Run]) -> (CounterSample, u64) {
        let first = self.counters.clone();
        before.iter().for_each(|what| self.run(*what));
        let (switches, foreign) = (self.counters.switches, self.foreign);
        after.iter().for_each(|what| self.run(*what));
        let mut read = self.counters.clone();
        read.switches = switches;
        read.own.0 = first.own.0;
        for (thread, bound) in &mut read.bound {
            bound.switches.0 = first.bound.get(thread).map_or(0, |before| before.switches.0);
        }
        // As the reader does: only where something else ran.
        let rest = read.switches - read.own.0;
        read.bound_read = self.rest != Some(rest) || read.own.0 != read.own.1;
        if read.bound_read {
            self.seen.extend(self.counters.bound.keys().copied());
        }
        if !read.bound_read {
            read.bound.clear();
        }
        // What an interval hides is not known to have been read.
        self.rest = (read.own.0 == read.own.1).then_some(rest);
        let sample = CounterSample {
            at_us: self.at,
            up_us: self.up,
            seats: BTreeMap::from([(self.seat.clone(), read)]),
        };
        (sample, foreign)
    }

    fn later(&mut self, us: u64) {
        (self.at, self.up) = (self.at + us, self.up + us);
    }

    fn vms(&self, state: &str) -> BTreeMap<String, Vm> {
        let vm = Vm {
            name: "tenant/vm".into(),
            state: state.into(),
            seats: BTreeSet::from([self.seat.clone()]),
            own_devices: BTreeSet::new(),
        };
        BTreeMap::from([(VM.to_owned(), vm)])
    }

    fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }
}

/// The ring: entries, and where segments begin.
#[derive(Debug, Clone, Default)]
struct Ring {
    entries: Vec<Entry>,
    segment: usize,
}

impl Ring {
    fn keep(&mut self, recorder: &mut EntryRecorder, mut draft: Draft) {
        let seq = self.entries.len() as u64 + 1;
        draft.entry.seq = seq;
        let text = serde_json::to_string(&draft.entry).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), draft.entry);
        self.entries.push(draft.entry.clone());
        recorder.committed(draft, text.len() as u64);
    }

    /// As a daemon finds it: it reads the last segment alone.
    fn replay(&self) -> LedgerState {
        let mut replay = LedgerState::default();
        for entry in &self.entries[self.segment..] {
            replay.apply(entry).unwrap();
        }
        replay
    }

    fn account(&self, more: Option<Entry>) -> Account {
        let entries = self.entries.iter().cloned().chain(more);
        let all = accounts(entries.map(|entry| (entry, String::new())), 0, 0, None);
        all.into_values().next().unwrap_or_default()
    }
}

fn resume(ring: &Ring, host: &Host) -> EntryRecorder {
    let mut recorder = EntryRecorder::resume(ring.replay(), &host.boot_id(), "1");
    recorder.use_key("key");
    recorder
}

#[derive(Debug, Clone)]
enum Step {
    Run(Run),
    /// A sample with what happens between its readings; whether the ring takes it, and whether a segment begins.
    CounterSample(Vec<Run>, Vec<Run>, bool, bool),
    Killed,
    Later(u64),
}

fn run(with_workers: bool) -> impl Strategy<Value = Run> {
    let workers = if with_workers { 1 } else { 0 };
    prop_oneof![
        4 => Just(Run::Own),
        2 => Just(Run::Foreign),
        2 => Just(Run::Bound),
        1 => Just(Run::Device),
        workers => (0..=2u64).prop_map(Run::Born),
        workers => Just(Run::Ends),
    ]
}

fn step(with_workers: bool, slack: usize) -> impl Strategy<Value = Step> {
    let during = move || proptest::collection::vec(run(with_workers), 0..=slack);
    prop_oneof![
        6 => run(with_workers).prop_map(Step::Run),
        3 => (during(), during(), prop::bool::weighted(0.8), prop::bool::weighted(0.1))
            .prop_map(|(before, after, taken, segment)| Step::CounterSample(before, after, taken, segment)),
        1 => Just(Step::Killed),
        2 => (1..7_200_000_000u64).prop_map(Step::Later),
    ]
}

/// What the account says in the end, and what is true.
fn play(steps: &[Step], kills: bool) -> (Range, u64, Account) {
    let (mut host, mut ring) = (Host::new(), Ring::default());
    let mut recorder = resume(&ring, &host);
    let mut first = None;
    for step in steps {
        match step {
            Step::Run(what) => host.run(*what),
            Step::Later(us) => host.later(*us),
            Step::Killed if kills => {
                recorder = resume(&ring, &host);
                host.rest = None;
            }
            Step::Killed => {}
            Step::CounterSample(before, after, taken, segment) => {
                host.later(1);
                // Its reader tries again where a thread ended meanwhile, and without a reading before nobody would know of it.
                let after: Vec<Run> = after
                    .iter()
                    .copied()
                    .filter(|what| first.is_some() || !matches!(what, Run::Ends))
                    .collect();
                let (sample, foreign) = host.sample(before, &after);
                let segment = *segment || ring.entries.is_empty();
                if let Some(draft) = recorder.take_sample(&sample, &host.vms("isolated"), segment) {
                    if !taken {
                        recorder.missed("the disk is full");
                        continue;
                    }
                    if segment {
                        ring.segment = ring.entries.len();
                    }
                    let reads = !draft.entry.readings.is_empty();
                    ring.keep(&mut recorder, draft);
                    first = first.or(reads.then_some(foreign));
                }
            }
        }
    }
    host.later(AUDIT);
    let (sample, foreign) = host.sample(&[], &[]);
    let account = ring.account(Some(recorder.provisional(&sample, &host.vms("isolated"))));
    let truth = foreign - first.unwrap_or(foreign);
    (account.totals.other_tasks, truth, account)
}

proptest! {
    #[test]
    fn the_truth_lies_in_the_range(steps in proptest::collection::vec(step(true, 3), 1..60)) {
        let (told, truth, account) = play(&steps, false);
        prop_assert!(told.least <= truth && truth <= told.most, "{truth} and {told:?}");
        let days = account.days.iter().fold(Range::default(), |sum, day| Range {
            least: sum.least + day.other_tasks.least,
            most: sum.most + day.other_tasks.most,
        });
        prop_assert!(days.least <= truth && truth <= days.most, "{truth} and {days:?}");
        let fired: u64 = account.totals.devices.values().sum();
        prop_assert_eq!(fired, account.days.iter().map(|day| day.devices).sum::<u64>());
    }

    #[test]
    fn it_is_exact_where_nothing_ran_while_it_was_read_and_no_worker_came_or_went(
        steps in proptest::collection::vec(step(false, 0), 1..60)
    ) {
        // The daemon is not away, and samples each minute.
        let sample = Step::CounterSample(Vec::new(), Vec::new(), true, false);
        let often = |step: &Step| match step {
            Step::Later(us) => vec![Step::Later(us % 60_000_000), sample.clone()],
            other => vec![other.clone()],
        };
        let (told, truth, _) = play(&steps.iter().flat_map(often).collect::<Vec<_>>(), false);
        prop_assert_eq!(told, Range { least: truth, most: truth });
    }

    #[test]
    fn a_daemon_that_is_killed_changes_no_total(steps in proptest::collection::vec(step(false, 3), 1..60)) {
        let (killed, undisturbed) = (play(&steps, true), play(&steps, false));
        let totals = |of: Account| (of.totals.devices, of.totals.own, of.totals.delay_ns, of.totals.upkeep);
        // It looks at once when it begins, so how its windows lie differs, and with it how tight they are.
        prop_assert!(killed.0.least <= undisturbed.1 && undisturbed.1 <= killed.0.most);
        prop_assert_eq!(totals(killed.2), totals(undisturbed.2));
    }

    #[test]
    fn whatever_the_entries_are_there_is_an_account(
        steps in proptest::collection::vec(step(true, 2), 1..30),
        cut in 0..40usize, swap in 0..40usize, number in any::<u64>(),
    ) {
        let mut ring = Ring::default();
        let mut host = Host::new();
        let mut recorder = resume(&ring, &host);
        for step in &steps {
            if let Step::Run(what) = step { host.run(*what) }
            host.later(AUDIT * 100);
            let (sample, _) = host.sample(&[], &[]);
            let first = ring.entries.is_empty();
            if let Some(draft) = recorder.take_sample(&sample, &host.vms("isolated"), first) { ring.keep(&mut recorder, draft) }
        }
        let length = ring.entries.len();
        ring.entries.swap(cut % length, swap % length);
        if let Some(reading) = ring.entries[cut % length].readings.first_mut() {
            reading.numbers[swap % 6] = number;
        }
        ring.entries.remove(swap % length);
        ring.account(None);
    }
}

fn closed(entry: &Entry) -> Vec<(u64, Closed)> {
    let closed = entry.events.iter().filter_map(|event| match event {
        Event::Closed { seat, why, .. } => Some((*seat, *why)),
        _ => None,
    });
    closed.collect()
}

fn looked(host: &mut Host, recorder: &mut EntryRecorder, ring: &mut Ring, state: &str) -> Option<Entry> {
    let (sample, _) = host.sample(&[], &[]);
    let first = ring.entries.is_empty();
    let draft = recorder.take_sample(&sample, &host.vms(state), first)?;
    let entry = draft.entry.clone();
    ring.keep(recorder, draft);
    Some(entry)
}

#[test]
fn a_quiet_vm_is_written_once_an_hour_and_a_noisy_one_hardly_more_often() {
    for (noise, most) in [(false, 25), (true, 35)] {
        let (mut host, mut ring) = (Host::new(), Ring::default());
        let mut recorder = resume(&ring, &host);
        for _ in 0..24 * 120 {
            host.later(AUDIT);
            host.run(Run::Own);
            if noise {
                host.run(Run::Device);
                host.run(Run::Foreign);
            }
            looked(&mut host, &mut recorder, &mut ring, "isolated");
        }
        let count = ring.entries.len();
        assert!((24..=most + 1).contains(&count), "{count} entries, noise: {noise}");
        let account = ring.account(None);
        assert!(account.covered_us >= 23 * HEARTBEAT_INTERVAL_US);
        assert_eq!(account.totals.other_tasks.most > 0, noise);
    }
}

#[test]
fn a_month_of_any_node_fits_into_its_ring() {
    let ring = 64 << 20;
    assert_eq!(hours_between(20_000, ring), 1);
    for entry in [1, 40_000, 230_000, 500_000, 1_500_000] {
        let hours = hours_between(entry, ring);
        assert!(24 % hours == 0 && entry * (31 * 24 / hours) <= ring, "{entry}: {hours}");
    }
    assert_eq!(hours_between(u64::MAX, ring), 24);
}

#[test]
fn an_intruder_is_told_at_once() {
    let (mut host, mut ring) = (Host::new(), Ring::default());
    let mut recorder = resume(&ring, &host);
    looked(&mut host, &mut recorder, &mut ring, "isolated").unwrap();
    host.later(AUDIT);
    assert_eq!(looked(&mut host, &mut recorder, &mut ring, "isolated"), None);
    host.later(AUDIT);
    host.run(Run::Foreign);
    let entry = looked(&mut host, &mut recorder, &mut ring, "isolated").unwrap();
    assert!(
        entry.events.iter().any(|event| matches!(
            event,
            Event::Intruded {
                class: Class::OtherTasks,
                count: (1, 1),
                ..
            }
        )),
        "{entry:#?}"
    );
}

#[test]
fn a_day_begins_with_a_reading_and_sums_are_those_of_its_days() {
    let (mut host, mut ring) = (Host::new(), Ring::default());
    let mut recorder = resume(&ring, &host);
    let mut foreign_by_day: BTreeMap<String, u64> = BTreeMap::new();
    for sample in 0..31 * 2_880 {
        host.later(AUDIT);
        match sample {
            // The clock is set: an hour on, later two back.
            20_000 => host.at += 3_600_000_000,
            40_000 => host.at -= 7_200_000_000,
            // The host boots, and the same pod comes again.
            60_000 => {
                host.boot += 1;
                host.up = 60_000_000;
                host.later(0);
                let fresh = Host::new();
                (host.counters, host.foreign, host.rest) = (fresh.counters, 0, None);
                recorder = resume(&ring, &host);
            }
            _ if sample % 997 == 0 => {
                host.run(Run::Foreign);
                *foreign_by_day.entry(day(host.at)).or_default() += 1;
            }
            _ => {}
        }
        looked(&mut host, &mut recorder, &mut ring, "isolated");
    }
    let account = ring.account(None);
    // Two intruders came where nothing is known: before the first reading, and none else.
    let told: u64 = account.days.iter().map(|day| day.other_tasks.least).sum();
    assert_eq!(
        account.totals.other_tasks,
        Range {
            least: told,
            most: told
        }
    );
    assert_eq!(told, foreign_by_day.values().sum::<u64>() - 1);
    assert!((31..=33).contains(&account.days.len()), "{}", account.days.len());
    assert!(account.covered_us > 30 * 24 * HEARTBEAT_INTERVAL_US && account.covered_us <= account.promised_us);
    let gaps: Vec<Closed> = account.gaps.iter().map(|gap| gap.why).collect();
    assert_eq!(gaps, [Closed::Boot]);
    let clocks = ring.entries.iter().flat_map(|entry| &entry.events);
    let clocks: Vec<i64> = clocks
        .filter_map(|event| match event {
            Event::Clock { by } => Some(*by),
            _ => None,
        })
        .collect();
    assert_eq!(clocks, [3_600_000_000, -7_200_000_000]);
}

#[test]
fn a_life_is_opened_and_closed_with_the_reason() {
    let (mut host, mut ring) = (Host::new(), Ring::default());
    let mut recorder = resume(&ring, &host);
    assert!(
        looked(&mut host, &mut recorder, &mut ring, "floating")
            .unwrap()
            .readings
            .is_empty()
    );
    host.later(AUDIT);
    assert_eq!(
        looked(&mut host, &mut recorder, &mut ring, "isolated")
            .unwrap()
            .readings
            .len(),
        1
    );
    // Its CPU is offline: the sample has nothing of it.
    host.later(AUDIT);
    let (mut sample, _) = host.sample(&[], &[]);
    sample.seats.clear();
    let draft = recorder.take_sample(&sample, &host.vms("isolated"), false).unwrap();
    assert_eq!(closed(&draft.entry), [(0, Closed::Offline)]);
    ring.keep(&mut recorder, draft);
    host.later(AUDIT);
    looked(&mut host, &mut recorder, &mut ring, "isolated").unwrap();
    // Its thread ran elsewhere.
    host.later(AUDIT);
    host.counters.own = (host.counters.own.0 + 50, host.counters.own.1 + 50);
    let entry = looked(&mut host, &mut recorder, &mut ring, "isolated").unwrap();
    assert_eq!(closed(&entry), [(1, Closed::Contradicted)]);
    host.later(AUDIT);
    let (sample, _) = host.sample(&[], &[]);
    let draft = recorder.take_sample(&sample, &BTreeMap::new(), false).unwrap();
    assert_eq!(closed(&draft.entry), [(2, Closed::Ended)]);
    ring.keep(&mut recorder, draft);
    let account = ring.account(None);
    let states: Vec<&str> = account.states.iter().map(|(_, state)| state.as_str()).collect();
    assert_eq!(states, ["floating", "isolated", "gone"]);
    let gaps: Vec<Closed> = account.gaps.iter().map(|gap| gap.why).collect();
    assert_eq!(gaps, [Closed::Offline, Closed::Contradicted, Closed::Ended]);
    assert_eq!(account.totals.other_tasks, Range::default());
    assert!(
        recorder.take_sample(&sample, &BTreeMap::new(), false).is_none(),
        "an empty node writes nothing"
    );
}

#[test]
fn a_seats_hour_has_few_bytes() {
    let mut host = Host::new();
    let counters = &mut host.counters;
    (counters.switches, counters.own) = (9_876_543_210, (9_876_500_000, 9_876_500_000));
    (counters.run_ns, counters.delay_ns) = (2_678_400_000_000_000, 3_456_789_012);
    for (name, count) in [
        ("LOC", 669_600_000),
        ("RES", 1_234_567),
        ("CAL", 2_345_678),
        ("TLB", 123_456),
        ("IWI", 12_345),
    ] {
        counters.upkeep.insert(name.into(), count);
    }
    for (name, count) in [("TIMER", 3_456_789), ("SCHED", 1_234_567), ("RCU", 23_456_789)] {
        counters.softirqs.insert(name.into(), count);
    }
    let mut ring = Ring::default();
    let mut recorder = resume(&ring, &host);
    looked(&mut host, &mut recorder, &mut ring, "isolated");
    host.run(Run::Own);
    let entry = (0..=HEARTBEAT_INTERVAL_US / AUDIT).find_map(|_| {
        host.later(AUDIT);
        looked(&mut host, &mut recorder, &mut ring, "isolated")
    });
    let entry = entry.unwrap();
    let bytes = serde_json::to_string(&entry.readings).unwrap().len();
    println!("a CPU's hour: {bytes} bytes of the entry");
    assert!(
        bytes <= 170,
        "{bytes}: {}",
        serde_json::to_string(&entry.readings).unwrap()
    );
}

#[test]
fn a_device_that_becomes_the_vms_own_is_its_own_from_then_on() {
    let (mut host, mut ring) = (Host::new(), Ring::default());
    let vfio = Fired {
        name: "vfio-msix[0](0000:3b:00.0)".into(),
        count: 7,
    };
    host.counters.devices = BTreeMap::from([(40, vfio)]);
    let mut recorder = resume(&ring, &host);
    looked(&mut host, &mut recorder, &mut ring, "isolated").unwrap();
    let mut vms = host.vms("isolated");
    vms.get_mut(VM).unwrap().own_devices.insert("0000:3b:00.0".into());
    host.counters.devices.get_mut(&40).unwrap().count += 5;
    host.later(AUDIT);
    let draft = recorder.take_sample(&host.sample(&[], &[]).0, &vms, false).unwrap();
    assert_eq!(draft.intrusions, []);
    ring.keep(&mut recorder, draft);
    let account = ring.account(None);
    assert_eq!(account.totals.devices, BTreeMap::new());
    assert_eq!(account.totals.own_interrupts.into_values().sum::<u64>(), 5);
    host.later(AUDIT);
    assert_eq!(
        recorder.take_sample(&host.sample(&[], &[]).0, &vms, false),
        None,
        "it is told once"
    );
}

#[test]
fn what_could_not_be_kept_is_told_later() {
    let (mut host, mut ring) = (Host::new(), Ring::default());
    let mut recorder = resume(&ring, &host);
    looked(&mut host, &mut recorder, &mut ring, "isolated").unwrap();
    host.later(AUDIT);
    host.at += 3 * HEARTBEAT_INTERVAL_US;
    assert!(
        recorder
            .take_sample(&host.sample(&[], &[]).0, &host.vms("isolated"), false)
            .is_some()
    );
    recorder.missed("the disk is full");
    // The disk's reason is not lost by another one, and reasons are bounded.
    ["slow", "slow", "a", "b", "c", "d", "c"]
        .into_iter()
        .for_each(|why| recorder.missed(why));
    host.later(AUDIT);
    let entry = looked(&mut host, &mut recorder, &mut ring, "isolated").unwrap();
    let by = i64::try_from(3 * HEARTBEAT_INTERVAL_US).unwrap();
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
fn a_question_before_the_first_look_after_a_boot_compares_nothing() {
    let (mut host, mut ring) = (Host::new(), Ring::default());
    host.seat.threads.clear();
    let mut recorder = resume(&ring, &host);
    looked(&mut host, &mut recorder, &mut ring, "isolated").unwrap();
    host.boot += 1;
    host.later(AUDIT);
    let mut recorder = resume(&ring, &host);
    let (sample, _) = host.sample(&[], &[]);
    assert_eq!(recorder.provisional(&sample, &host.vms("isolated")).readings, []);
}

#[test]
fn the_last_look_at_a_seat_ends_it_although_it_was_not_written() {
    let (mut host, mut ring) = (Host::new(), Ring::default());
    let mut recorder = resume(&ring, &host);
    looked(&mut host, &mut recorder, &mut ring, "isolated").unwrap();
    for _ in 0..3 {
        host.later(AUDIT);
        host.run(Run::Own);
        assert_eq!(looked(&mut host, &mut recorder, &mut ring, "isolated"), None);
    }
    host.later(AUDIT);
    host.run(Run::Own);
    let (sample, _) = host.sample(&[], &[]);
    let draft = recorder.take_sample(&sample, &BTreeMap::new(), false).unwrap();
    ring.keep(&mut recorder, draft);
    let account = ring.account(None);
    assert_eq!((account.totals.own.count, account.covered_us), (3, 3 * AUDIT));
    assert_eq!(account.promised_us, 4 * AUDIT);
}
