//! The ledger's thread. Only this thread reads counters, decides what becomes an entry, and writes entries. It may block on the disk; no
//! other part of the daemon waits for it without a timeout.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stelia_api::ledger::LedgerSummary;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::PodUid;
use stelia_ledger::account::Account;
use stelia_ledger::entry::{Entry, Event};
use stelia_ledger::recorder::{Draft, EntryRecorder, RecordedVm};
use stelia_ledger::sample::CounterSample;
use stelia_model as model;
use stelia_settings::LedgerSettings;
use tokio::sync::{mpsc, watch};

use super::counter_reader::CounterReader;
use super::locator::Locator;
use super::open_ledger::OpenLedger;
use super::open_ring::RingOpener;
use super::queue::{ReadReason, Work, WorkQueue};
use super::status;
use super::target::{Targets, recorder_vms, settling};
use crate::lasting_problem::LastingProblem;

/// A message of the thread to the ledger's task.
#[derive(Debug)]
pub(crate) enum Update {
    Summary(LedgerSummary),
    /// The intrusions of one entry on the CPUs of one VM; each is an [`Event::Intruded`].
    Intruded(PodUid, Vec<Event>),
    /// A head that was written, an [`Event::Head`].
    Head(Event),
}

pub(super) struct LedgerThread {
    queue: Arc<WorkQueue>,
    reader: Box<dyn CounterReader>,
    opener: Box<dyn RingOpener>,
    updates: mpsc::UnboundedSender<Update>,
    settings: LedgerSettings,
    /// `None` until the ring could be opened.
    ledger: Option<OpenLedger>,
    summary: LedgerSummary,
    /// The summary that the task was last sent.
    sent_summary: Option<LedgerSummary>,
    problem: LastingProblem,
    /// The VFIO devices of each target's container, with the container's cgroup.
    devices: BTreeMap<PodUid, (CgroupPath, BTreeSet<String>)>,
    locator: Locator,
}

impl LedgerThread {
    pub(super) fn new(
        queue: Arc<WorkQueue>,
        reader: Box<dyn CounterReader>,
        opener: Box<dyn RingOpener>,
        settings: LedgerSettings,
        updates: mpsc::UnboundedSender<Update>,
        views: watch::Receiver<Arc<model::Node>>,
    ) -> Self {
        Self {
            queue,
            reader,
            opener,
            updates,
            settings,
            ledger: None,
            summary: LedgerSummary::default(),
            sent_summary: None,
            problem: LastingProblem::default(),
            devices: BTreeMap::new(),
            locator: Locator::new(views),
        }
    }

    /// Do the queued work until the queue is stopped.
    pub(super) fn run(mut self) {
        loop {
            let work = self.queue.take();
            let stop = work.stop;
            self.do_work(work);
            if stop {
                return self.write_last_entry();
            }
        }
    }

    fn do_work(&mut self, work: Work) {
        if let Some(settings) = work.settings {
            self.settings = settings;
            if let Some(ledger) = &mut self.ledger {
                ledger.writer.limit(self.settings.bytes);
                ledger.recorder.set_ring_bytes(self.settings.bytes);
                ledger.first_fills = false;
            }
        }
        if let Some((reason, targets)) = work.reading {
            // A node without VMs needs no ring, and no memory for one.
            if !targets.is_empty() || reason == ReadReason::Query {
                self.open(reason);
            }
            self.add_events(work.events, work.missed_audits);
            let mut reading = self.read(reason, &targets, !work.callers.is_empty());
            let last = work.callers.len().saturating_sub(1);
            for (index, caller) in work.callers.into_iter().enumerate() {
                let entry = if index == last { reading.take() } else { reading.clone() };
                let _ = caller.send(entry);
            }
        } else {
            self.add_events(work.events, work.missed_audits);
        }
        self.send_summary();
    }

    fn add_events(&mut self, events: impl IntoIterator<Item = Event>, missed_audits: u64) {
        let Some(ledger) = &mut self.ledger else { return };
        events.into_iter().for_each(|event| ledger.recorder.add_event(event));
        for _ in 0..missed_audits {
            ledger
                .recorder
                .missed("a look or the disk took longer than an audit's interval");
        }
    }

    /// Open the ring. After a failure, the next attempt is at the next audit.
    fn open(&mut self, reason: ReadReason) {
        if self.ledger.is_some() || self.summary.problem.is_some() && reason != ReadReason::Audit {
            return;
        }
        let opened = match self.opener.open(self.settings.bytes) {
            Ok(opened) => opened,
            Err(problem) => return self.failed(problem),
        };
        let last_us = opened.replay.at;
        let mut recorder = EntryRecorder::resume(opened.replay, &opened.boot_id, env!("CARGO_PKG_VERSION"));
        recorder.set_key(&opened.key);
        recorder.set_ring_bytes(self.settings.bytes);
        if opened.cut_bytes > 0 {
            status::cut(opened.cut_bytes);
            recorder.add_event(Event::Cut {
                bytes: opened.cut_bytes,
            });
        }
        if let Some(fault) = &opened.fault {
            tracing::warn!("the ledger is not as it was written: {fault}");
        }
        if let Some(reason) = &opened.new_key {
            status::key(&opened.key, reason);
        }
        self.summary.located.clone_from(recorder.located());
        self.summary.key = opened.key;
        self.summary.problem = None;
        self.ledger = Some(OpenLedger {
            recorder,
            writer: opened.writer,
            last: opened.last.map(|(seq, hash)| (last_us, seq, hash)),
            signed: 0,
            head: None,
            located_due: false,
            first_fills: false,
        });
        opened.head.iter().for_each(|head| self.summarize_head(head));
    }

    /// Read the counters, and write an entry if one is due. Returns the reading as an entry if a caller waits for it (`for_caller`).
    fn read(&mut self, reason: ReadReason, targets: &Targets, for_caller: bool) -> Option<Entry> {
        self.read_devices(targets);
        let mut vms = recorder_vms(targets, &self.devices);
        let settling = settling(targets, self.reader.clocks().1);
        let ledger = self.ledger.as_mut()?;
        ledger.recorder.set_settling(settling.clone());
        let sample = match self.reader.read(&ledger.recorder.seats_to_read(&vms)) {
            Ok(sample) => sample,
            Err(problem) => {
                ledger.recorder.missed(&problem);
                self.failed(problem);
                return None;
            }
        };
        if reason != ReadReason::Query {
            let starts_segment = ledger.writer.starts_segment();
            let all = starts_segment || ledger.recorder.is_heartbeat(&sample);
            // It could not be written after an entry that fills its segment.
            if !(starts_segment && ledger.first_fills) {
                self.locator.locate(
                    (reason, all),
                    targets,
                    &settling,
                    (&mut *self.reader, ledger.recorder.located()),
                    &mut vms,
                );
            }
            ledger.sign(sample.at_us);
            let draft = ledger.recorder.take_sample(&sample, &vms, starts_segment);
            let begins = starts_segment && draft.is_some();
            if self.write_sample(draft, targets) {
                self.write_located(&sample, &vms, begins, targets);
            }
        }
        if reason != ReadReason::Query && !for_caller {
            return None;
        }
        // Also where a query has no caller any more: the recorder must see each sample.
        let entry = self.ledger.as_mut()?.recorder.provisional(&sample, &vms);
        for_caller.then_some(entry)
    }

    /// Write the sample's entry, if one is due. Returns whether it could be written.
    fn write_sample(&mut self, draft: Option<Draft>, targets: &Targets) -> bool {
        let written = draft.map_or(Ok(()), |draft| self.append(draft, targets));
        if let (Err(problem), Some(ledger)) = (&written, &mut self.ledger) {
            ledger.recorder.missed(problem);
        }
        self.note_written(written)
    }

    /// Write where the parts of VMs are, after the sample's entry, unless it would begin a segment: the next sample's entry does. `begins`: the
    /// sample's entry began a segment, so that where all VMs are is due.
    fn write_located(
        &mut self,
        sample: &CounterSample,
        vms: &BTreeMap<String, RecordedVm>,
        begins: bool,
        targets: &Targets,
    ) {
        let Some(ledger) = &mut self.ledger else { return };
        if begins {
            ledger.located_due = true;
            ledger.first_fills = ledger.writer.starts_segment();
        }
        let all = ledger.located_due;
        match ledger.recorder.take_located(sample, vms, all) {
            Some(_) if ledger.writer.starts_segment() => self.locator.forget(),
            Some(draft) => {
                let written = self.append(draft, targets);
                if let (Ok(()), Some(ledger)) = (&written, &mut self.ledger) {
                    ledger.located_due = false;
                }
                self.note_written(written);
            }
            None => {}
        }
    }

    fn note_written(&mut self, written: Result<(), String>) -> bool {
        match written {
            Ok(()) => self.works(),
            Err(problem) => {
                self.locator.forget();
                self.failed(problem);
                return false;
            }
        }
        true
    }

    fn append(&mut self, mut draft: Draft, targets: &Targets) -> Result<(), String> {
        let Some(ledger) = &mut self.ledger else {
            return Ok(());
        };
        let appended = ledger.writer.append(&mut draft.entry)?;
        ledger.last = Some((draft.entry.at, appended.seq, appended.hash));
        let (head, intrusions) = (ledger.head.take(), std::mem::take(&mut draft.intrusions));
        let accounts = ledger.recorder.committed(draft, appended.bytes);
        if self.summary.located != *ledger.recorder.located() {
            self.summary.located.clone_from(ledger.recorder.located());
        }
        self.add_to_summary(accounts, &intrusions, targets);
        if let Some(head) = head {
            self.publish(head);
        }
        self.send_intrusions(intrusions, targets);
        Ok(())
    }

    /// Add the counts of a written entry to the summary for the metrics. VMs without CPUs of their own are removed from it.
    fn add_to_summary(&mut self, accounts: BTreeMap<String, Account>, intrusions: &[Event], targets: &Targets) {
        let sums = &mut self.summary.vms;
        for (vm, account) in accounts {
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
            let target = targets.iter().find(|(pod, _)| pod.as_str() == vm);
            target.is_some_and(|(_, vm)| !vm.seats.is_empty())
        };
        sums.retain(|vm, _| has_cpus(vm));
    }

    /// Read the VFIO devices of targets that are new.
    fn read_devices(&mut self, targets: &Targets) {
        self.devices
            .retain(|pod, (origin, _)| targets.get(pod).is_some_and(|vm| vm.origin == *origin));
        for (pod, vm) in targets {
            if !vm.seats.is_empty() && !self.devices.contains_key(pod) {
                let devices = self.reader.devices(&vm.origin);
                self.devices.insert(pod.clone(), (vm.origin.clone(), devices));
            }
        }
    }

    fn works(&mut self) {
        self.summary.problem = None;
        status::works(&mut self.problem);
    }

    /// Log and show the problem.
    fn failed(&mut self, problem: String) {
        status::failed(&mut self.problem, &problem);
        self.summary.problem = Some(problem);
    }

    fn publish(&mut self, head: Event) {
        status::head(&head);
        self.summarize_head(&head);
        let _ = self.updates.send(Update::Head(head));
    }

    fn summarize_head(&mut self, head: &Event) {
        if let Event::Head { day, seq, hash, .. } = head {
            self.summary.day.clone_from(day);
            self.summary.hash.clone_from(hash);
            self.summary.seq = *seq;
        }
    }

    /// Log the intrusions of one entry, and send those of each VM to the task.
    fn send_intrusions(&self, intrusions: Vec<Event>, targets: &Targets) {
        let mut by_pod: BTreeMap<PodUid, Vec<Event>> = BTreeMap::new();
        for event in intrusions {
            if let Event::Intruded { vm, .. } = &event
                && let Ok(pod) = PodUid::parse(vm)
            {
                by_pod.entry(pod).or_default().push(event);
            }
        }
        for (pod, events) in by_pod {
            let name = targets.get(&pod).map(|vm| vm.name.as_str()).unwrap_or_default();
            status::intruded(pod.as_str(), name, &events);
            let _ = self.updates.send(Update::Intruded(pod, events));
        }
    }

    fn send_summary(&mut self) {
        self.summary.enabled = true;
        self.summary.bytes = self.opener.bytes();
        if self.sent_summary.as_ref() != Some(&self.summary) {
            self.sent_summary = Some(self.summary.clone());
            let _ = self.updates.send(Update::Summary(self.summary.clone()));
        }
    }

    /// Write the last entry, which records that the daemon was stopped.
    fn write_last_entry(mut self) {
        let Some(ledger) = &mut self.ledger else { return };
        let (at_us, up_us) = self.reader.clocks();
        ledger.sign(at_us);
        let last = ledger.recorder.stop(at_us, up_us, ledger.writer.starts_segment());
        if let Some(Err(problem)) = last.map(|mut entry| ledger.writer.append(&mut entry)) {
            self.failed(problem);
        }
    }
}
