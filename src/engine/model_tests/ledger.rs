//! The ledger beside the engine: what it records of a VM's life, and that neither the engine nor callers wait for it.

mod attributions;
mod heads;
mod located;
mod readings;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use stelia_api::attribution::{Attribution, Occupant};
use stelia_cpus::located::{Located, Part};
use stelia_ledger::account::{Account, Range};
use stelia_ledger::entry::{Closed, Entry, Event};
use stelia_ledger::ring::{Appended, read};
use stelia_ledger::sample::{CounterSample, Counters, Seat};
use stelia_ledger::verdict::Verdict;
use stelia_settings::{Every, Sample};
use steliad_quiet::order::Target;
use tokio::sync::mpsc;

use super::*;
use crate::ledger::{
    self, AccountReader, CounterReader, LedgerBackend, OpenedRing, RingDirectory, RingOpener, RingWriter, Signal,
    Tracer,
};

/// The host is up for longer than the one that the tests run on, so VMs have settled.
const LONG_UP_US: u64 = 1_000_000_000_000_000;

/// What the kernel counts, and what the disk does.
#[derive(Default)]
struct Host {
    /// Readings that were begun.
    readings: AtomicU64,
    /// A disk that does not answer.
    hangs: Mutex<bool>,
    changed: Condvar,
    full: AtomicBool,
    /// The disk takes no entry with where VMs are.
    refuses_located: AtomicBool,
    /// Switch-ins of others since boot, on each CPU.
    others: AtomicU64,
    clock: AtomicU64,
    targets: Mutex<Vec<Target>>,
    /// Cgroups whose tasks were listed.
    listed: Mutex<BTreeSet<String>>,
    /// Nobody may trace.
    locked: AtomicBool,
    /// The clock is the one by which the engine says when a VM got its CPUs.
    settles: AtomicBool,
    /// How many VMs' parts were looked for, and how much of each VM's memory is near, in percent.
    located: AtomicU64,
    near: AtomicU64,
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
            up_us: LONG_UP_US + clock,
            seats: seats.iter().map(|seat| (seat.clone(), counters.clone())).collect(),
            ..CounterSample::default()
        })
    }

    fn clocks(&self) -> (u64, u64) {
        let clock = self.host.clock.load(Ordering::SeqCst) * 1_000_000;
        if self.host.settles.load(Ordering::SeqCst) {
            return (stelia_kernel::clock::now_us(), 5_000_000 + clock);
        }
        (1_793_000_000_000_000 + clock, LONG_UP_US + clock)
    }

    fn devices(&self, _: &CgroupPath) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn located(
        &mut self,
        view: &stelia_model::Node,
        pods: &BTreeSet<PodUid>,
        _: &BTreeMap<String, Vec<Located>>,
    ) -> BTreeMap<PodUid, Vec<Located>> {
        self.host.located.fetch_add(pods.len() as u64, Ordering::SeqCst);
        let near = u8::try_from(self.host.near.load(Ordering::SeqCst)).unwrap();
        let memory = Located {
            part: Part::Memory,
            nodes: vec![(0, near), (1, 100 - near)],
            near_percent: near,
            ..Located::default()
        };
        let live = pods.iter().filter(|pod| view.instances.contains_key(*pod));
        live.map(|pod| (pod.clone(), vec![memory.clone()])).collect()
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
        let is_located = |event: &Event| matches!(event, Event::Located { .. });
        let is_refused = self.host.refuses_located.load(Ordering::SeqCst) && entry.events.iter().any(is_located);
        if is_refused || self.host.full.load(Ordering::SeqCst) {
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
        if self.host.locked.load(Ordering::SeqCst) {
            Err("tracefs is locked".to_owned())
        } else {
            Ok(())
        }
    }

    fn tasks(&self, cgroup: &str) -> Option<BTreeSet<i32>> {
        self.host.listed.lock().unwrap().insert(cgroup.to_owned());
        Some([77].into())
    }

    fn finish(&self, _: &BTreeSet<i32>) -> Result<Attribution, String> {
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

/// A node with a ledger, and a VM on CPUs 2 and 3 whose counters are read.
async fn read_vm() -> (Node, Fake, RunningLedger, Pod) {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    let is_read = |_: &Node| opened(&fake.events()).len() == 2;
    node.until("its seats are opened", is_read).await;
    (node, fake, running, pod)
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
