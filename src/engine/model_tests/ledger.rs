//! The ledger beside the engine: what it records of a VM's life, and that neither the engine nor callers wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use stelia_api::attribution::{Attribution, Occupant};
use stelia_ledger::account::{Account, Range};
use stelia_ledger::entry::{Closed, Entry, Event};
use stelia_ledger::ring::{Appended, read};
use stelia_ledger::sample::{CounterSample, Counters, Seat};
use stelia_ledger::verdict::Verdict;
use stelia_quiet::order::Target;
use stelia_settings::{Every, Sample};
use tokio::sync::mpsc;

use super::*;
use crate::ledger::{
    self, AccountReader, CounterReader, LedgerBackend, OpenedRing, RingDirectory, RingOpener, RingWriter, Signal,
    Tracer,
};

/// What the kernel counts, and what the disk does.
#[derive(Default)]
struct Host {
    /// Readings that were begun.
    readings: AtomicU64,
    /// A disk that does not answer.
    hangs: Mutex<bool>,
    changed: Condvar,
    full: AtomicBool,
    /// Switch-ins of others since boot, on each CPU.
    others: AtomicU64,
    clock: AtomicU64,
    targets: Mutex<Vec<Target>>,
    /// Nobody may trace.
    locked: AtomicBool,
    /// The clock is the one by which the engine says when a VM got its CPUs.
    settles: AtomicBool,
}

impl Host {
    fn hang(&self, hangs: bool) {
        *self.hangs.lock().unwrap() = hangs;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut hangs = self.hangs.lock().unwrap();
        while *hangs {
            hangs = self.changed.wait(hangs).unwrap();
        }
    }
}

#[derive(Clone)]
struct Fake {
    host: Arc<Host>,
    root: PathBuf,
}

impl Fake {
    fn new(directory: &Path) -> Self {
        let root = directory.join("host");
        for folder in ["proc/sys/kernel/random", "etc"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let boot = "0b6d4fd0-6c3c-4b0e-9f1b-4d8f6c1d2e3f";
        std::fs::write(root.join("proc/sys/kernel/random/boot_id"), boot).unwrap();
        std::fs::write(root.join("etc/machine-id"), "b08dfa6083e7567a1921a715000001fb\n").unwrap();
        Self {
            host: Arc::default(),
            root,
        }
    }

    fn files(&self) -> RingDirectory {
        RingDirectory::new(&self.root, &self.root.join("ledger"))
    }

    fn entries(&self) -> Vec<Entry> {
        let Ok(entries) = read::entries(&self.root.join("ledger"), None) else {
            return Vec::new();
        };
        entries.map(|entry| entry.unwrap().0).collect()
    }

    fn events(&self) -> Vec<Event> {
        self.entries().into_iter().flat_map(|entry| entry.events).collect()
    }

    fn readings(&self) -> u64 {
        self.host.readings.load(Ordering::SeqCst)
    }
}

impl LedgerBackend for Fake {
    fn counter_reader(&self) -> Box<dyn CounterReader> {
        Box::new(self.clone())
    }

    fn ring_opener(&self) -> Box<dyn RingOpener> {
        Box::new(self.clone())
    }

    fn account_reader(&self) -> Arc<dyn AccountReader> {
        Arc::new(self.files())
    }

    fn tracer(&self) -> Arc<dyn Tracer> {
        Arc::new(self.clone())
    }
}

impl CounterReader for Fake {
    fn read(&mut self, seats: &BTreeSet<Seat>) -> Result<CounterSample, String> {
        self.host.readings.fetch_add(1, Ordering::SeqCst);
        self.host.wait();
        // Each look is a second after the one before.
        let clock = self.host.clock.fetch_add(1, Ordering::SeqCst) * 1_000_000;
        let others = self.host.others.load(Ordering::SeqCst);
        let own = 1000 + clock / 1_000_000 * 10;
        let counters = Counters {
            switches: own + others,
            own: (own, own),
            run_ns: clock * 900,
            bound_read: true,
            ..Counters::default()
        };
        Ok(CounterSample {
            at_us: 1_793_000_000_000_000 + clock,
            up_us: 5_000_000 + clock,
            seats: seats.iter().map(|seat| (seat.clone(), counters.clone())).collect(),
        })
    }

    fn clocks(&self) -> (u64, u64) {
        let clock = self.host.clock.load(Ordering::SeqCst) * 1_000_000;
        if self.host.settles.load(Ordering::SeqCst) {
            return (crate::engine::now_us(), 5_000_000 + clock);
        }
        (1_793_000_000_000_000 + clock, 5_000_000 + clock)
    }

    fn devices(&self, _: &CgroupPath) -> BTreeSet<String> {
        BTreeSet::new()
    }
}

impl RingOpener for Fake {
    fn open(&mut self, bytes: u64) -> Result<OpenedRing, String> {
        self.host.wait();
        let opened = self.files().open(bytes)?;
        let writer = Box::new(SlowWriter {
            writer: opened.writer,
            host: self.host.clone(),
        });
        Ok(OpenedRing { writer, ..opened })
    }

    fn bytes(&self) -> u64 {
        self.files().bytes()
    }
}

struct SlowWriter {
    writer: Box<dyn RingWriter>,
    host: Arc<Host>,
}

impl RingWriter for SlowWriter {
    fn append(&mut self, entry: &mut Entry) -> Result<Appended, String> {
        self.host.wait();
        if self.host.full.load(Ordering::SeqCst) {
            return Err("write /var/lib/stelia/ledger: No space left on device".to_owned());
        }
        self.writer.append(entry)
    }

    fn starts_segment(&self) -> bool {
        self.writer.starts_segment()
    }

    fn limit(&mut self, bytes: u64) {
        self.writer.limit(bytes);
    }

    fn sign(&self, day: &str, seq: u64, hash: &str) -> Event {
        self.writer.sign(day, seq, hash)
    }
}

impl Tracer for Fake {
    fn begin(&self, target: &Target) -> Result<(), String> {
        self.host.targets.lock().unwrap().push(target.clone());
        match self.host.locked.load(Ordering::SeqCst) {
            true => Err("tracefs is locked".to_owned()),
            false => Ok(()),
        }
    }

    fn finish(&self) -> Result<Attribution, String> {
        Ok(Attribution {
            tasks: vec![Occupant {
                cpu: 2,
                name: "payroll".to_owned(),
                count: 3,
                ..Occupant::default()
            }],
            ..Attribution::default()
        })
    }

    fn may_be_counting(&self) -> bool {
        false
    }
}

/// The ledger beside a node's daemon.
struct RunningLedger {
    cancel: CancellationToken,
    running: JoinHandle<()>,
    signals: mpsc::UnboundedReceiver<Signal>,
}

impl RunningLedger {
    async fn end(self) {
        self.cancel.cancel();
        self.running.await.unwrap();
    }
}

impl Node {
    fn keep_ledger(&self, fake: &Fake) -> RunningLedger {
        let (sender, signals) = mpsc::unbounded_channel();
        let cancel = CancellationToken::new();
        let running = ledger::run(self.handle.clone(), Arc::new(fake.clone()), sender, cancel.clone());
        RunningLedger {
            cancel,
            running: tokio::spawn(running),
            signals,
        }
    }

    /// Audit until an attribution is recorded, with names or with the reason why there are none.
    async fn attributed(&self, fake: &Fake) -> Vec<(String, Attribution)> {
        for _ in 0..2_000 {
            self.reconcile().await;
            let found = attributed(&fake.events());
            if !found.is_empty() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nobody was named");
    }

    /// The VM's account over all its time.
    async fn account(&self, pod: &Pod) -> Account {
        let text = self.handle.account(Some(pod.uid.clone()), 0, None).await.unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

fn states(events: &[Event]) -> Vec<String> {
    let states = events.iter().filter_map(|event| match event {
        Event::State { state, .. } => Some(state.clone()),
        _ => None,
    });
    states.collect()
}

/// The attributions among these events, with their VMs.
fn attributed(events: &[Event]) -> Vec<(String, Attribution)> {
    let attributed = events.iter().filter_map(|event| match event {
        Event::Attributed { vm, attribution } => Some((vm.clone(), attribution.clone())),
        _ => None,
    });
    attributed.collect()
}

fn opened(events: &[Event]) -> BTreeMap<u64, String> {
    let opened = events.iter().filter_map(|event| match event {
        Event::Opened { seat, cpus, .. } => Some((*seat, cpus.to_string())),
        _ => None,
    });
    opened.collect()
}

#[tokio::test]
async fn of_a_vms_life_its_seats_are_opened_read_and_closed() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    let seats = opened(&fake.events());
    assert_eq!(seats.values().collect::<Vec<_>>(), ["2", "3"]);
    let account = node.account(&pod).await;
    assert_eq!(account.vm, uid(1).to_string());
    assert_eq!(account.totals.other_tasks, Range::default(), "nobody else ran");
    assert!(account.covered_us > 0, "{account:?}");
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    let ended = |events: &[Event]| {
        let closed = events.iter().filter(|event| matches!(event, Event::Closed { .. }));
        closed.count() == 2 && states(events).last().is_some_and(|state| state == "gone")
    };
    node.until("they are closed", |_| ended(&fake.events())).await;
    for event in fake.events() {
        if let Event::Closed { why, .. } = event {
            assert!([Closed::Ended, Closed::NotIsolated].contains(&why), "{why:?}");
        }
    }
    let verdict: Verdict = serde_json::from_str(&node.handle.verify_ledger().await.unwrap()).unwrap();
    assert!(verdict.is_good() && verdict.entries > 1, "{verdict:?}");
    assert_eq!(verdict.keys, [node.handle.view().ledger.key.clone()]);
    running.end().await;
    assert!(matches!(fake.events().last(), Some(Event::Stopped {})));
}

#[tokio::test]
async fn neither_engine_nor_callers_wait_for_a_disk_that_hangs() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    fake.host.hang(true);
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.check().await;
    assert_eq!(
        node.account(&pod).await.covered_us,
        0,
        "it is answered without a fresh look"
    );
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    node.check().await;
    running.end().await;
    // For the thread, which nobody waits for.
    fake.host.hang(false);
}

#[tokio::test]
async fn what_changes_while_it_is_at_work_is_one_look() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let running = node.keep_ledger(&fake);
    // Where there is no VM it does not look.
    node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    node.quiet().await;
    fake.host.hang(true);
    let before = fake.readings();
    for (number, list) in [(2, "4-5"), (3, "6-7")] {
        node.isolated(number, list).await;
    }
    fake.host.hang(false);
    node.until("all seats are opened", |_| opened(&fake.events()).len() == 6)
        .await;
    // One that hung, one for all that came meanwhile, and one if the last change was not seen by then.
    assert!(fake.readings() - before <= 3, "{} readings", fake.readings() - before);
    running.end().await;
}

#[tokio::test]
async fn what_no_view_shows_differently_is_not_looked_at() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let running = node.keep_ledger(&fake);
    node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    node.quiet().await;
    let before = fake.readings();
    node.reconcile().await;
    node.until("it readings beside the audit", |_| fake.readings() > before)
        .await;
    let before = fake.readings();
    // A container that is no VM has CPUs now: every float has fewer.
    let float = node.handle.view().instances[&uid(1)].float.clone();
    node.checkpoint.admit(&uid(9), "other", &cpus("4-5")).unwrap();
    node.until("its float changed", |node| {
        node.handle.view().instances[&uid(1)].float != float
    })
    .await;
    node.quiet().await;
    assert_eq!(fake.readings(), before);
    running.end().await;
}

#[tokio::test]
async fn a_full_disk_is_said_hurts_no_vm_and_loses_no_count() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    fake.host.full.store(true, Ordering::SeqCst);
    fake.host.others.fetch_add(7, Ordering::SeqCst);
    let problem = |node: &Node| node.handle.view().ledger.problem.clone();
    for _ in 0..100 {
        node.reconcile().await;
        if problem(&node).is_some() {
            break;
        }
    }
    assert!(problem(&node).unwrap().contains("No space left"));
    node.check().await;
    fake.host.full.store(false, Ordering::SeqCst);
    node.reconcile().await;
    node.until("it is kept again", |node| problem(node).is_none()).await;
    let missed = |event: &Event| matches!(event, Event::Missed { why, .. } if why.contains("No space left"));
    node.until("what was missed is said", |_| fake.events().iter().any(missed))
        .await;
    let others = node.account(&pod).await.totals.other_tasks;
    assert_eq!((others.least, others.most), (14, 14), "seven on each of two CPUs");
    running.end().await;
}

#[tokio::test]
async fn a_daemon_that_was_killed_loses_and_books_nothing_twice() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    fake.host.others.fetch_add(5, Ordering::SeqCst);
    assert_eq!(
        node.account(&pod).await.totals.other_tasks,
        Range { least: 10, most: 10 }
    );
    // It does not come to write that it ends.
    fake.host.full.store(true, Ordering::SeqCst);
    running.end().await;
    fake.host.full.store(false, Ordering::SeqCst);
    fake.host.others.fetch_add(1, Ordering::SeqCst);
    node.restart().await;
    node.reconcile().await;
    let running = node.keep_ledger(&fake);
    node.until("the next one began", |_| {
        let started = fake
            .events()
            .iter()
            .filter(|event| matches!(event, Event::Started { .. }))
            .count();
        started == 2
    })
    .await;
    let account = node.account(&pod).await;
    assert_eq!(account.totals.other_tasks, Range { least: 12, most: 12 }, "{account:?}");
    assert_eq!(account.gaps, [], "nothing is unknown");
    running.end().await;
}

#[tokio::test]
async fn an_intruder_is_told_and_looked_for_and_its_pod_is_not_told_who() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let mut running = node.keep_ledger(&fake);
    let (pod, qemu) = node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    fake.host.others.fetch_add(5, Ordering::SeqCst);
    node.reconcile().await;
    let signal = tokio::time::timeout(Duration::from_secs(60), running.signals.recv())
        .await
        .unwrap();
    let Some(Signal::Intruded(intruded, events)) = signal else {
        panic!("{signal:?}")
    };
    assert_eq!((intruded, events.len()), (pod.uid.clone(), 2));
    node.until("it is looked who", |_| !fake.host.targets.lock().unwrap().is_empty())
        .await;
    let target = fake.host.targets.lock().unwrap()[0].clone();
    assert_eq!(
        (target.cpus, target.own),
        (cpus("2-3"), qemu.vcpus.iter().copied().collect())
    );
    let own = node.handle.on_behalf_of(&pod.uid);
    let told = own.account(Some(pod.uid.clone()), 0, None).await.unwrap();
    let account: Account = serde_json::from_str(&told).unwrap();
    assert_eq!(account.totals.other_tasks.least, 10);
    let busy = own.account(Some(pod.uid.clone()), 0, None).await.unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Busy);
    running.end().await;
}

#[tokio::test]
async fn where_nobody_may_trace_counts_go_on_and_the_entry_says_that_it_names_nobody() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    fake.host.locked.store(true, Ordering::SeqCst);
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    fake.host.others.fetch_add(5, Ordering::SeqCst);
    node.reconcile().await;
    node.until("it is kept that nobody is named", |_| {
        !attributed(&fake.events()).is_empty()
    })
    .await;
    let (vm, attribution) = attributed(&fake.events()).remove(0);
    assert_eq!(
        (vm, attribution.cpus.as_str(), attribution.problems),
        (pod.uid.to_string(), "2-3", vec!["tracefs is locked".to_owned()])
    );
    assert!(attribution.tasks.is_empty() && attribution.until_us > 0);
    fake.host.others.fetch_add(1, Ordering::SeqCst);
    let account = node.account(&pod).await;
    assert_eq!(account.totals.other_tasks, Range { least: 12, most: 12 });
    assert_eq!(account.attributions.len(), 1);
    running.end().await;
}

#[tokio::test]
async fn a_sample_is_counted_beside_an_audit_and_kept_although_nobody_intruded() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    node.reconcile().await;
    node.until("the audit's look is taken", |_| fake.readings() > 1).await;
    assert!(fake.host.targets.lock().unwrap().is_empty(), "off by default");
    let every = Every::Hour;
    node.settings.ledger.sample = Some(Sample { seconds: 1, every });
    node.handle.reload(node.settings.clone()).await.unwrap();
    let sampled = node.attributed(&fake).await;
    assert_eq!((sampled.len(), sampled[0].0.as_str()), (1, pod.uid.as_str()));
    assert_eq!(sampled[0].1.tasks[0].name, "payroll");
    assert_eq!(fake.host.targets.lock().unwrap().len(), 1, "once an hour");
    running.end().await;
}

/// The next head that is signalled: day, number and hash.
async fn head(running: &mut RunningLedger) -> (String, u64, String) {
    loop {
        let signal = tokio::time::timeout(Duration::from_secs(60), running.signals.recv());
        if let Signal::Head(Event::Head { day, seq, hash, .. }) = signal.await.unwrap().unwrap() {
            return (day, seq, hash);
        }
    }
}

#[tokio::test]
async fn a_day_that_ended_is_signed_once_told_and_still_shown_by_the_next_daemon() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let mut running = node.keep_ledger(&fake);
    node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    // It ends while the disk is full.
    fake.host.full.store(true, Ordering::SeqCst);
    fake.host.clock.fetch_add(86_400, Ordering::SeqCst);
    node.reconcile().await;
    node.until("it is said", |node| node.handle.view().ledger.problem.is_some())
        .await;
    assert!(running.signals.try_recv().is_err(), "nothing that is not kept is told");
    fake.host.full.store(false, Ordering::SeqCst);
    node.reconcile().await;
    let told = head(&mut running).await;
    let shown = |node: &Node| {
        let ledger = node.handle.view().ledger.clone();
        (ledger.day.clone(), ledger.seq, ledger.hash.clone())
    };
    node.until("it is shown", |node| shown(node) == told).await;
    let verdict: Verdict = serde_json::from_str(&node.handle.verify_ledger().await.unwrap()).unwrap();
    let heads = verdict.heads.iter();
    let heads: Vec<_> = heads
        .map(|head| (head.day.clone(), head.seq, head.hash.clone()))
        .collect();
    assert_eq!((verdict.is_good(), heads), (true, vec![told.clone()]), "{verdict:?}");
    running.end().await;
    node.restart().await;
    node.reconcile().await;
    let running = node.keep_ledger(&fake);
    node.until("the next daemon shows it", |node| shown(node) == told).await;
    running.end().await;
}

#[tokio::test]
async fn a_clock_that_was_years_in_the_future_ends_no_signing_also_across_a_restart() {
    const DAY: u64 = 86_400;
    for restarts in [false, true] {
        let mut node = Node::new();
        let fake = Fake::new(node.directory.path());
        let mut running = node.keep_ledger(&fake);
        node.isolated(1, "2-3").await;
        node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
            .await;
        // In another year, for two days.
        fake.host.clock.fetch_add(1_000 * DAY, Ordering::SeqCst);
        let mut days = Vec::new();
        for step in [0, DAY] {
            fake.host.clock.fetch_add(step, Ordering::SeqCst);
            node.reconcile().await;
            days.push(head(&mut running).await);
        }
        if restarts {
            running.end().await;
            node.restart().await;
            node.reconcile().await;
            running = node.keep_ledger(&fake);
            node.until("the next daemon shows the last head", |node| {
                node.handle.view().ledger.seq == days[1].1
            })
            .await;
        }
        // It is right again: what was written in that year is signed at once, and the days from then on as always.
        fake.host.clock.fetch_sub(1_001 * DAY, Ordering::SeqCst);
        for step in [0, DAY, DAY] {
            fake.host.clock.fetch_add(step, Ordering::SeqCst);
            node.reconcile().await;
            days.push(head(&mut running).await);
        }
        let numbers: Vec<u64> = days.iter().map(|(_, seq, _)| *seq).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{days:?}");
        assert!(days[1].0 > days[3].0 && days[2].0 > days[4].0, "{days:?}");
        let verdict: Verdict = serde_json::from_str(&node.handle.verify_ledger().await.unwrap()).unwrap();
        assert!(verdict.is_good() && verdict.vouched_seq == numbers[4], "{verdict:?}");
        running.end().await;
    }
}

#[tokio::test]
async fn the_time_before_a_vms_first_reading_is_a_gap() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    // It has just got its CPUs, for as long as the test lasts.
    fake.host.settles.store(true, Ordering::SeqCst);
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    let account = node.account(&pod).await;
    assert!(account.promised_us > 0 && account.covered_us == 0, "{account:?}");
    assert!(account.gaps.iter().all(|gap| gap.why == Closed::NotRead), "{account:?}");
    fake.host.settles.store(false, Ordering::SeqCst);
    node.reconcile().await;
    node.until("it is read", |_| {
        fake.entries().iter().any(|entry| !entry.readings.is_empty())
    })
    .await;
    let account = node.account(&pod).await;
    assert!(
        account.covered_us > 0 && account.covered_us < account.promised_us,
        "{account:?}"
    );
    let whys: Vec<Closed> = account.gaps.iter().map(|gap| gap.why).collect();
    assert_eq!(whys, [Closed::NotRead], "{account:?}");
    running.end().await;
}

#[tokio::test]
async fn switched_off_nothing_is_looked_at_and_a_reload_switches_it() {
    let mut node = Node::new();
    node.settings.ledger.kept = false;
    node.restart().await;
    let fake = Fake::new(node.directory.path());
    let running = node.keep_ledger(&fake);
    node.isolated(1, "2-3").await;
    node.reconcile().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!((fake.readings(), node.handle.view().ledger.enabled), (0, false));
    node.settings.ledger.kept = true;
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.until("it is switched on", |_| opened(&fake.events()).len() == 2)
        .await;
    node.settings.ledger.kept = false;
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.until("it is switched off", |node| !node.handle.view().ledger.enabled)
        .await;
    let ended = || matches!(fake.events().last(), Some(Event::Stopped {}));
    node.until("and says so", |_| ended()).await;
    running.end().await;
}
