//! The ledger's thread: it alone reads counters, decides what is worth an entry and writes it. It may wait for a disk as long as that
//! takes; nobody waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stelia_api::ledger::LedgerSummary;
use stelia_kubelet::PodUid;
use stelia_ledger::account::Account;
use stelia_ledger::day;
use stelia_ledger::entry::{Entry, Event};
use stelia_ledger::keeper::{Draft, Keeper};
use stelia_ledger::look::{Look, Seat};
use stelia_ledger::ring::Appended;
use stelia_ledger::standing::Standing;
use stelia_node::cgroup::CgroupPath;
use stelia_settings::LedgerSettings;
use tokio::sync::mpsc;

use super::desk::{Desk, Reason, Work};
use super::told::{self, Problems};
use super::wanted::{Vms, settling, wanted};

/// Reads the counters.
pub(crate) trait Meter: Send {
    /// # Errors
    /// What cannot be read, and why.
    fn look(&mut self, seats: &BTreeSet<Seat>) -> Result<Look, String>;

    /// The realtime clock and `CLOCK_BOOTTIME`, microseconds.
    fn clocks(&self) -> (u64, u64);

    /// PCI addresses of the VFIO devices of a container.
    fn devices(&self, origin: &CgroupPath) -> BTreeSet<String>;
}

/// Where entries are kept.
pub(crate) trait Pages: Send {
    /// # Errors
    /// The entry is not there then.
    fn append(&mut self, entry: &mut Entry) -> Result<Appended, String>;
    fn starts_segment(&self) -> bool;
    fn limit(&mut self, bytes: u64);
    /// The hash of entry `seq`, signed.
    fn sign(&self, day: &str, seq: u64, hash: &str) -> Event;
}

/// What opening found.
pub(crate) struct Opened {
    pub(crate) pages: Box<dyn Pages>,
    /// What a crash left and was cut off.
    pub(crate) cut: u64,
    /// What is not as it was written, in words.
    pub(crate) fault: Option<String>,
    /// Number and hash of the last entry.
    pub(crate) last: Option<(u64, String)>,
    /// What the last segment leaves to go on from.
    pub(crate) standing: Standing,
    /// The last signed head: [`Event::Head`].
    pub(crate) head: Option<Event>,
    pub(crate) boot_id: String,
    /// The public key, and a sentence where it is new.
    pub(crate) key: String,
    pub(crate) new_key: Option<String>,
}

/// Opens what entries are kept in, again and again where it fails.
pub(crate) trait Office: Send {
    /// # Errors
    /// Why nothing can be kept.
    fn open(&mut self, bytes: u64) -> Result<Opened, String>;

    /// How many bytes the files have.
    fn bytes(&self) -> u64;
}

/// What others are told.
#[derive(Debug)]
pub(crate) enum News {
    Shown(LedgerSummary),
    /// What ran on the CPUs of one VM: events of one entry, [`Event::Intruded`] all.
    Intruded(PodUid, Vec<Event>),
    /// [`Event::Head`].
    Head(Event),
}

/// What is open.
struct Book {
    keeper: Keeper,
    pages: Box<dyn Pages>,
    /// Of the last entry: its time, number and hash.
    last: Option<(u64, u64, String)>,
    /// The number of the last entry that a head was signed of, by this daemon.
    signed: u64,
    /// That is to be kept with the next entry, and is published then.
    head: Option<Event>,
}

pub(super) struct Clerk {
    pub(super) desk: Arc<Desk>,
    pub(super) meter: Box<dyn Meter>,
    pub(super) office: Box<dyn Office>,
    pub(super) news: mpsc::UnboundedSender<News>,
    pub(super) settings: LedgerSettings,
    book: Option<Book>,
    summary: LedgerSummary,
    shown: Option<LedgerSummary>,
    problems: Problems,
    devices: BTreeMap<PodUid, (CgroupPath, BTreeSet<String>)>,
}

impl Clerk {
    pub(super) fn new(
        desk: Arc<Desk>,
        meter: Box<dyn Meter>,
        office: Box<dyn Office>,
        settings: LedgerSettings,
        news: mpsc::UnboundedSender<News>,
    ) -> Self {
        Self {
            desk,
            meter,
            office,
            news,
            settings,
            book: None,
            summary: LedgerSummary::default(),
            shown: None,
            problems: Problems::default(),
            devices: BTreeMap::new(),
        }
    }

    /// Until it is told to stop.
    pub(super) fn run(mut self) {
        loop {
            let work = self.desk.take();
            let stop = work.stop;
            self.work(work);
            if stop {
                return self.end();
            }
        }
    }

    fn work(&mut self, work: Work) {
        if let Some(settings) = work.settings {
            self.settings = settings;
            if let Some(book) = &mut self.book {
                book.pages.limit(self.settings.bytes);
                book.keeper.use_room(self.settings.bytes);
            }
        }
        if let Some((reason, vms)) = work.look {
            // A node that has no VM yet books nothing, and needs no memory for it.
            if !vms.is_empty() || reason == Reason::Query {
                self.open(reason);
            }
            self.note(work.notes, work.missed);
            let mut seen = self.look(reason, &vms, !work.waiting.is_empty());
            let last = work.waiting.len().saturating_sub(1);
            for (place, waiting) in work.waiting.into_iter().enumerate() {
                let entry = if place == last { seen.take() } else { seen.clone() };
                let _ = waiting.send(entry);
            }
        } else {
            self.note(work.notes, work.missed);
        }
        self.show();
    }

    fn note(&mut self, notes: impl IntoIterator<Item = Event>, missed: u64) {
        let Some(book) = &mut self.book else { return };
        notes.into_iter().for_each(|event| book.keeper.note(event));
        for _ in 0..missed {
            book.keeper
                .missed("a look or the disk took longer than an audit's interval");
        }
    }

    /// What could not be opened is tried again at each audit.
    fn open(&mut self, reason: Reason) {
        if self.book.is_some() || self.summary.problem.is_some() && reason != Reason::Audit {
            return;
        }
        let opened = match self.office.open(self.settings.bytes) {
            Ok(opened) => opened,
            Err(problem) => return self.failed(problem),
        };
        let last_us = opened.standing.at;
        let mut keeper = Keeper::resume(opened.standing, &opened.boot_id, env!("CARGO_PKG_VERSION"));
        keeper.use_key(&opened.key);
        keeper.use_room(self.settings.bytes);
        if opened.cut > 0 {
            told::cut(opened.cut);
            keeper.note(Event::Cut { bytes: opened.cut });
        }
        if let Some(fault) = &opened.fault {
            tracing::warn!("the ledger is not as it was written: {fault}");
        }
        if let Some(reason) = &opened.new_key {
            told::key(&opened.key, reason);
        }
        self.summary.key = opened.key;
        self.summary.problem = None;
        self.book = Some(Book {
            keeper,
            pages: opened.pages,
            last: opened.last.map(|(seq, hash)| (last_us, seq, hash)),
            signed: 0,
            head: None,
        });
        opened.head.iter().for_each(|head| self.show_head(head));
    }

    /// What was seen, as an entry, for who waits.
    fn look(&mut self, reason: Reason, vms: &Vms, asked: bool) -> Option<Entry> {
        self.find_devices(vms);
        let wanted = wanted(vms, &self.devices);
        let settling = settling(vms, self.meter.clocks().0);
        let book = self.book.as_mut()?;
        book.keeper.settle(settling);
        let look = match self.meter.look(&book.keeper.wants(&wanted)) {
            Ok(look) => look,
            Err(problem) => {
                book.keeper.missed(&problem);
                self.failed(problem);
                return None;
            }
        };
        if reason != Reason::Query {
            book.sign(look.at_us);
            match book.keeper.looked(&look, &wanted, book.pages.starts_segment()) {
                Some(draft) => self.keep(draft, vms),
                None => self.works(),
            }
        }
        let book = self.book.as_mut().filter(|_| asked)?;
        Some(book.keeper.provisional(&look, &wanted))
    }

    fn keep(&mut self, mut draft: Draft, vms: &Vms) {
        let Some(book) = &mut self.book else { return };
        let appended = match book.pages.append(&mut draft.entry) {
            Ok(appended) => appended,
            Err(problem) => {
                book.keeper.missed(&problem);
                return self.failed(problem);
            }
        };
        book.last = Some((draft.entry.at, appended.seq, appended.hash));
        let (head, intrusions) = (book.head.take(), std::mem::take(&mut draft.intrusions));
        let sums = book.keeper.kept(draft, appended.bytes);
        self.add(sums, &intrusions, vms);
        if let Some(head) = head {
            self.publish(head);
        }
        self.works();
        self.tell(intrusions, vms);
    }

    /// What an entry booked, for the metrics: of VMs that are there.
    fn add(&mut self, booked: BTreeMap<String, Account>, intrusions: &[Event], vms: &Vms) {
        let sums = &mut self.summary.vms;
        for (vm, account) in booked {
            let sum = sums.entry(vm).or_default();
            let totals = account.totals;
            sum.other_tasks_least = sum.other_tasks_least.saturating_add(totals.other_tasks.least);
            sum.other_tasks_most = sum.other_tasks_most.saturating_add(totals.other_tasks.most);
            sum.devices = totals
                .devices
                .values()
                .fold(sum.devices, |sum, count| sum.saturating_add(*count));
            sum.delay_ns = sum.delay_ns.saturating_add(totals.delay_ns);
            sum.promised_us = sum.promised_us.saturating_add(account.promised_us);
            sum.covered_us = sum.covered_us.saturating_add(account.covered_us);
        }
        for event in intrusions {
            if let Event::Intruded { vm, .. } = event {
                let sum = sums.entry(vm.clone()).or_default();
                sum.intruded = sum.intruded.saturating_add(1);
            }
        }
        let has_cpus = |vm: &str| {
            let known = vms.iter().find(|(pod, _)| pod.as_str() == vm);
            known.is_some_and(|(_, vm)| !vm.seats.is_empty())
        };
        sums.retain(|vm, _| has_cpus(vm));
    }

    /// The VFIO devices of instances that are new. One that two containers have is nobody's own.
    fn find_devices(&mut self, vms: &Vms) {
        self.devices
            .retain(|pod, (origin, _)| vms.get(pod).is_some_and(|vm| vm.origin == *origin));
        for (pod, vm) in vms {
            if !vm.seats.is_empty() && !self.devices.contains_key(pod) {
                let found = self.meter.devices(&vm.origin);
                self.devices.insert(pod.clone(), (vm.origin.clone(), found));
            }
        }
    }

    fn works(&mut self) {
        self.summary.problem = None;
        self.problems.works();
    }

    /// Said in the journal once, shown, and tried again.
    fn failed(&mut self, problem: String) {
        self.problems.failed(&problem);
        self.summary.problem = Some(problem);
    }

    fn publish(&mut self, head: Event) {
        told::head(&head);
        self.show_head(&head);
        let _ = self.news.send(News::Head(head));
    }

    fn show_head(&mut self, head: &Event) {
        if let Event::Head { day, seq, hash, .. } = head {
            self.summary.day.clone_from(day);
            self.summary.hash.clone_from(hash);
            self.summary.seq = *seq;
        }
    }

    /// The intrusions of one entry, VM by VM.
    fn tell(&self, intrusions: Vec<Event>, vms: &Vms) {
        let mut of: BTreeMap<PodUid, Vec<Event>> = BTreeMap::new();
        for event in intrusions {
            if let Event::Intruded { vm, .. } = &event
                && let Ok(pod) = PodUid::parse(vm)
            {
                of.entry(pod).or_default().push(event);
            }
        }
        for (pod, events) in of {
            let name = vms.get(&pod).map(|vm| vm.name.as_str()).unwrap_or_default();
            told::intruded(pod.as_str(), name, &events);
            let _ = self.news.send(News::Intruded(pod, events));
        }
    }

    fn show(&mut self) {
        self.summary.enabled = true;
        self.summary.bytes = self.office.bytes();
        if self.shown.as_ref() != Some(&self.summary) {
            self.shown = Some(self.summary.clone());
            let _ = self.news.send(News::Shown(self.summary.clone()));
        }
    }

    /// The last entry says that the daemon was told to end.
    fn end(mut self) {
        let Some(book) = &mut self.book else { return };
        let (at_us, up_us) = self.meter.clocks();
        book.sign(at_us);
        let last = book.keeper.stopped(at_us, up_us, book.pages.starts_segment());
        if let Some(Err(problem)) = last.map(|mut entry| book.pages.append(&mut entry)) {
            self.failed(problem);
        }
    }
}

impl Book {
    /// Where another day has begun, the head of the one before is kept with the next entry.
    fn sign(&mut self, now_us: u64) {
        // A head that could not be kept yet waits among the keeper's notes: an entry is signed once.
        let Some((last_us, seq, hash)) = self.last.as_ref().filter(|(_, seq, _)| *seq > self.signed) else {
            return;
        };
        let Some(day) = day::ended(*last_us, now_us) else {
            return;
        };
        let head = self.pages.sign(&day, *seq, hash);
        self.keeper.note(head.clone());
        self.signed = *seq;
        self.head = Some(head);
    }
}
