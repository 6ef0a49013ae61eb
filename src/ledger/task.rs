//! The ledger's task: it follows the engine, queues readings, and starts accounts and attributions for callers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_api::attribution::Attribution;
use stelia_api::ledger::LedgerSummary;
use stelia_api::{Error, ErrorKind};
use stelia_kernel::clock::up_us;
use stelia_kubelet::PodUid;
use stelia_ledger::entry::{Class, Event};
use stelia_model as model;
use stelia_settings::{LedgerSettings, Settings};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::accounts::{AccountService, json};
use super::attribution::{self, AttributionSchedule, Attributor};
use super::queue::{ReadReason, WorkQueue};
use super::target::{self, Clocks, TargetTracker, Targets, VmTarget};
use super::thread::{LedgerThread, Update};
use super::throttle::Throttle;
use super::{LedgerBackend, Signal, status, visible_to_pods};
use crate::engine::{Handle, LedgerCall};
use crate::wait_until::wait_until;

/// The shortest time between two readings because of changes, so that many VMs that start together cause one.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(100);
/// How long a daemon that stops waits for the last entry.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The stack of the ledger's thread, in bytes. Its data is in the heap, and is freed after each reading.
const THREAD_STACK_BYTES: usize = 512 << 10;

/// Keep the ledger until cancelled.
pub(crate) async fn run(
    engine: Handle,
    backend: Arc<dyn LedgerBackend>,
    signals: mpsc::UnboundedSender<Signal>,
    cancel: CancellationToken,
) {
    let (sender, mut updates) = mpsc::unbounded_channel();
    let (mut calls, mut audits) = (engine.ledger_calls(), engine.audits());
    let mut task = Task {
        views: engine.watch(),
        settings: engine.settings(),
        accounts: AccountService::new(backend.account_reader()),
        attributor: Attributor::new(backend.tracer()),
        targets: TargetTracker::default(),
        throttle: Throttle::default(),
        schedule: AttributionSchedule::default(),
        thread: None,
        pending: false,
        next_reading: Instant::now(),
        next_settled: None,
        updates: sender,
        engine,
        backend,
        signals,
    };
    task.use_settings();
    task.attributor.end_former();
    task.use_view();
    loop {
        let pending = task.pending.then_some(task.next_reading);
        let later = task.next_settled.into_iter().chain(task.throttle.next());
        let next = pending.into_iter().chain(later).min();
        tokio::select! {
            () = cancel.cancelled() => break,
            changed = task.views.changed() => if changed.is_err() { break },
            changed = task.settings.changed() => match changed {
                Ok(()) => task.use_settings(),
                Err(_) => break,
            },
            Ok(()) = audits.changed() => task.audit(),
            Some(call) = calls.recv() => task.call(call),
            Some(update) = updates.recv() => task.use_update(update),
            () = wait_until(next) => {}
        }
        task.use_view();
    }
    task.stop().await;
}

/// The running ledger thread.
struct RunningThread {
    queue: Arc<WorkQueue>,
    /// Closed when the thread has ended.
    ended: oneshot::Receiver<()>,
}

/// The thread ends with the task, even if the task panics.
impl Drop for RunningThread {
    fn drop(&mut self) {
        self.queue.stop();
    }
}

struct Task {
    engine: Handle,
    backend: Arc<dyn LedgerBackend>,
    views: watch::Receiver<Arc<model::Node>>,
    settings: watch::Receiver<Arc<Settings>>,
    accounts: AccountService,
    attributor: Attributor,
    targets: TargetTracker,
    /// What of the targets is recorded.
    throttle: Throttle,
    schedule: AttributionSchedule,
    /// `None` while no ledger is kept.
    thread: Option<RunningThread>,
    /// Whether a target changed since the last reading was queued.
    pending: bool,
    /// When the next reading because of a change may be queued.
    next_reading: Instant,
    /// When the counters of a new VM may be read.
    next_settled: Option<Instant>,
    updates: mpsc::UnboundedSender<Update>,
    signals: mpsc::UnboundedSender<Signal>,
}

impl Task {
    fn use_settings(&mut self) {
        let settings = self.settings.borrow_and_update().ledger.clone();
        match (&self.thread, settings.kept) {
            (None, true) => self.start(settings),
            (None, false) => self.engine.show_ledger(LedgerSummary::default()),
            (Some(thread), true) => thread.queue.use_settings(settings),
            (Some(_), false) => {
                self.thread = None;
                self.engine.show_ledger(LedgerSummary::default());
            }
        }
    }

    fn start(&mut self, settings: LedgerSettings) {
        let queue = Arc::new(WorkQueue::default());
        let (reader, opener) = (self.backend.counter_reader(), self.backend.ring_opener());
        let ledger = LedgerThread::new(
            queue.clone(),
            reader,
            opener,
            settings,
            self.updates.clone(),
            self.views.clone(),
        );
        let (ends, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("ledger".into())
            .stack_size(THREAD_STACK_BYTES);
        let started = thread.spawn(move || {
            ledger.run();
            drop(ends);
        });
        match started {
            Ok(_) => {
                self.thread = Some(RunningThread { queue, ended });
                self.pending = true;
            }
            Err(cause) => {
                let problem = format!("start the ledger's thread: {cause}");
                tracing::error!("{problem}");
                self.engine.show_ledger(LedgerSummary {
                    enabled: true,
                    problem: Some(problem),
                    ..LedgerSummary::default()
                });
            }
        }
    }

    /// Follow the engine's view, and queue a reading if a target changed or a new VM has settled.
    fn use_view(&mut self) {
        let view = self.views.borrow_and_update().clone();
        let now = Instant::now();
        let settled = self.next_settled.is_some_and(|at| now >= at);
        let throttle = self.throttle.next().is_some_and(|at| now >= at);
        let changed = self.targets.update(&view, Clocks::now()) || throttle;
        let changed = changed && self.throttle.follow(&self.targets.all(), now);
        self.pending |= changed || settled;
        if changed || settled {
            let left_us = target::next_settled(&self.throttle.targets(), up_us()).filter(|_| self.thread.is_some());
            // This clock stops while the host is suspended, the other does not.
            self.next_settled = left_us.map(|left_us| now + Duration::from_micros(left_us) + MIN_READ_INTERVAL);
        }
        if self.pending && now >= self.next_reading {
            self.pending = false;
            self.next_reading = now + MIN_READ_INTERVAL;
            self.read(ReadReason::Change);
        }
    }

    fn read(&self, reason: ReadReason) {
        if let Some(thread) = &self.thread {
            thread.queue.read(reason, self.throttle.targets());
        }
    }

    fn audit(&mut self) {
        // Its thread could not be started.
        if self.thread.is_none() && self.settings.borrow().ledger.kept {
            self.use_settings();
        }
        self.read(ReadReason::Audit);
        let Some(sample) = self.settings.borrow().ledger.sample.filter(|_| self.thread.is_some()) else {
            return;
        };
        let targets = attribution::sampled(self.targets.all());
        let has_vms = !attribution::with_seats(&targets).is_empty();
        if has_vms && self.schedule.sample_is_due(sample.every.interval(), Instant::now()) {
            self.attribute_automatically(targets, sample.lasts(), false);
        }
    }

    /// Attribute these VMs' CPUs without a caller, and write the result to the ledger. `log`: to the journal too.
    fn attribute_automatically(&self, targets: Targets, duration: Duration, log: bool) {
        let Some(thread) = &self.thread else { return };
        let (attributor, queue) = (self.attributor.clone(), thread.queue.clone());
        tokio::spawn(async move {
            let trace = attribution::trace_target(targets.values());
            match attributor.automatic(trace, duration).await {
                Some(Ok(attribution)) => record(&queue, &targets, &attribution, log),
                // After an intrusion, the ledger gets the reason why no task is named.
                Some(Err(problem)) if log => record(&queue, &targets, &attribution::failed(problem), log),
                Some(Err(problem)) => tracing::info!("no sample of who runs on VMs' CPUs: {problem}"),
                None => {}
            }
        });
    }

    fn call(&self, call: LedgerCall) {
        match call {
            LedgerCall::Account(request, mut reply) => {
                let accounts = self.accounts.clone();
                let queue = self.thread.as_ref().map(|thread| thread.queue.clone());
                let targets = self.throttle.targets();
                tokio::spawn(async move {
                    let read = || queue.map(|queue| queue.read_for_caller(targets));
                    tokio::select! {
                        biased;
                        () = reply.closed() => {}
                        answer = accounts.account(request, read) => drop(reply.send(answer)),
                    }
                });
            }
            LedgerCall::Verify(mut reply) => {
                let accounts = self.accounts.clone();
                let key = self.views.borrow().ledger.key.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        biased;
                        () = reply.closed() => {}
                        verdict = accounts.verify(key) => drop(reply.send(verdict)),
                    }
                });
            }
            LedgerCall::Attribute(pod, seconds, reply) => self.attribute(pod, seconds, reply),
        }
    }

    fn attribute(&self, pod: PodUid, seconds: u32, mut reply: oneshot::Sender<Result<String, Error>>) {
        let targets = self.targets.of_pod(&pod);
        if attribution::with_seats(&targets).is_empty() {
            let text = format!("the VM of pod {pod} has no CPUs of its own now");
            return drop(reply.send(Err(ErrorKind::InvalidArgument.because(text))));
        }
        let attributor = self.attributor.clone();
        let queue = self.thread.as_ref().map(|thread| thread.queue.clone());
        let duration = Duration::from_secs(seconds.into());
        tokio::spawn(async move {
            let trace = attribution::trace_target(targets.values());
            let attributed = attributor.for_operator(trace, duration, reply.closed()).await;
            if let (Ok(attribution), Some(queue)) = (&attributed, &queue) {
                record(queue, &targets, attribution, false);
            }
            let _ = reply.send(attributed.and_then(|attribution| json(&attribution)));
        });
    }

    fn use_update(&mut self, update: Update) {
        match update {
            Update::Summary(summary) if self.thread.is_some() => self.engine.show_ledger(summary),
            Update::Summary(_) => {}
            Update::Head(head) => drop(self.signals.send(Signal::Head(head))),
            Update::Intruded(pod, events) => self.intruded(pod, events),
        }
    }

    fn intruded(&mut self, pod: PodUid, events: Vec<Event>) {
        if events.iter().any(is_of_a_task) && self.schedule.intrusion_is_due(&pod, Instant::now()) {
            let targets = self.targets.of_pod(&pod);
            if !attribution::with_seats(&targets).is_empty() {
                self.attribute_automatically(targets, attribution::INTRUSION_TRACE_DURATION, true);
            }
        }
        if let Some(message) = visible_to_pods::intrusions(&events) {
            self.engine.note(&pod, self.engine.pod_name(&pod), "Intruded", message);
        }
        let _ = self.signals.send(Signal::Intruded(pod, events));
    }

    /// Waits for the last entry, for a limited time: a disk may hang.
    async fn stop(self) {
        if let Some(mut thread) = self.thread {
            thread.queue.stop();
            let _ = tokio::time::timeout(STOP_TIMEOUT, &mut thread.ended).await;
        }
    }
}

/// Whether another task certainly ran.
fn is_of_a_task(event: &Event) -> bool {
    matches!(
        event,
        Event::Intruded {
            class: Class::OtherTasks,
            count: (1.., _),
            ..
        }
    )
}

/// Write each VM's part of an attribution with the next entry. `log`: to the journal too.
fn record(queue: &WorkQueue, targets: &Targets, attribution: &Attribution, log: bool) {
    for (pod, vm) in targets.iter().filter(|(_, vm)| !vm.seats.is_empty()) {
        let part = attribution::bounded(attribution::of_vm(attribution, vm));
        if log {
            log_attribution(pod, vm, &part);
        }
        queue.add_event(Event::Attributed {
            vm: pod.to_string(),
            attribution: part,
        });
    }
}

fn log_attribution(pod: &PodUid, vm: &VmTarget, attribution: &Attribution) {
    let names = attribution::most_frequent(attribution);
    let reason = match (names.is_empty(), attribution.problems.first()) {
        (false, _) => names,
        (true, Some(problem)) => format!("not known: {problem}"),
        (true, None) => "nobody else, while it was counted".to_owned(),
    };
    status::attributed(pod.as_str(), &vm.name, &attribution.cpus, &reason);
}
