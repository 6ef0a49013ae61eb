//! The ledger: who ran on the CPUs of VMs, read from the kernel's counters and kept in files (`docs/ledger.md`).
//!
//! A task in the doors' runtime follows the engine and never blocks: it says what is to be looked at. A thread of its own reads, decides and
//! writes; between them is a desk on which only the newest wish lies. It has no timer: it looks when a VM's CPUs change, when somebody asks,
//! and beside each audit of the engine's.
//!
//! | file | its job |
//! |---|---|
//! | `wanted` | which CPUs and threads are looked at, from the engine's view |
//! | `desk`, `thread` | what is to be done; the thread that does it |
//! | `files` | `/proc`, the ring and the key, behind the thread's traits |
//! | `answers`, `restrict` | accounts and verdicts; what a pod may read of them |
//! | `closely` | who ran, by name: on demand, after an intrusion, or sampled |
//! | `told` | the journal's messages |

mod answers;
mod closely;
mod desk;
mod files;
mod restrict;
mod thread;
mod told;
mod wanted;

use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_api::attribution::Attribution;
use stelia_api::ledger::LedgerSummary;
use stelia_api::{Error, ErrorKind};
use stelia_kubelet::PodUid;
use stelia_ledger::entry::{Class, Event};
use stelia_settings::{LedgerSettings, Settings};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::engine::{Handle, LedgerCall, View, now_us};
use answers::{Answers, json};
use closely::{Closely, Occasions};
use desk::{Desk, Reason};
use thread::{Clerk, News};
use wanted::{Known, Vm, Vms};

pub(crate) use answers::Shelf;
pub(crate) use closely::Tracer;
#[cfg(test)]
pub(crate) use files::Files;
pub(crate) use files::Kernel;
pub(crate) use thread::{Meter, Office};
#[cfg(test)]
pub(crate) use thread::{Opened, Pages};

/// After a look for a change the next one is this much later, at the earliest: many VMs that start are one change.
const REST: Duration = Duration::from_millis(100);
/// How long the daemon's end waits for the last entry.
const LAST: Duration = Duration::from_secs(2);
/// What the thread needs is in the heap, and given back after each look.
const STACK: usize = 512 << 10;

/// What the ledger is made of.
pub(crate) trait House: Send + Sync {
    fn meter(&self) -> Box<dyn Meter>;
    fn office(&self) -> Box<dyn Office>;
    fn shelf(&self) -> Arc<dyn Shelf>;
    fn tracer(&self) -> Arc<dyn Tracer>;
}

/// For whoever listens on the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Events of one entry, [`Event::Intruded`] all.
    Intruded(PodUid, Vec<Event>),
    /// [`Event::Head`].
    Head(Event),
}

/// Keep the ledger until cancelled.
pub(crate) async fn run(
    engine: Handle,
    house: Arc<dyn House>,
    signals: mpsc::UnboundedSender<Signal>,
    cancel: CancellationToken,
) {
    let (sender, mut news) = mpsc::unbounded_channel();
    let (mut calls, mut audits) = (engine.ledger_calls(), engine.audits());
    let mut task = Task {
        views: engine.watch(),
        settings: engine.settings(),
        answers: Answers::new(house.shelf()),
        closely: Closely::new(house.tracer()),
        known: Known::default(),
        occasions: Occasions::default(),
        running: None,
        pending: false,
        rests: Instant::now(),
        settled: None,
        news: sender,
        engine,
        house,
        signals,
    };
    task.use_settings();
    task.closely.clear();
    task.seen();
    loop {
        let rests = task.pending.then_some(task.rests).into_iter().chain(task.settled).min();
        tokio::select! {
            () = cancel.cancelled() => break,
            changed = task.views.changed() => if changed.is_err() { break },
            changed = task.settings.changed() => match changed {
                Ok(()) => task.use_settings(),
                Err(_) => break,
            },
            Ok(()) = audits.changed() => task.audit(),
            Some(call) = calls.recv() => task.call(call),
            Some(news) = news.recv() => task.tell(news),
            () = until(rests) => {}
        }
        task.seen();
    }
    task.end().await;
}

async fn until(rests: Option<Instant>) {
    match rests {
        Some(rests) => tokio::time::sleep_until(rests.into()).await,
        None => std::future::pending().await,
    }
}

/// The thread.
struct Running {
    desk: Arc<Desk>,
    /// Ends with the thread.
    ended: oneshot::Receiver<()>,
}

/// However the task ended.
impl Drop for Running {
    fn drop(&mut self) {
        self.desk.stop();
    }
}

struct Task {
    engine: Handle,
    house: Arc<dyn House>,
    views: watch::Receiver<Arc<View>>,
    settings: watch::Receiver<Arc<Settings>>,
    answers: Answers,
    closely: Closely,
    known: Known,
    occasions: Occasions,
    /// `None` where none is kept.
    running: Option<Running>,
    /// Something changed at which was not looked yet.
    pending: bool,
    /// Until when.
    rests: Instant,
    /// When counters of a VM that is new can be read.
    settled: Option<Instant>,
    news: mpsc::UnboundedSender<News>,
    signals: mpsc::UnboundedSender<Signal>,
}

impl Task {
    fn use_settings(&mut self) {
        let settings = self.settings.borrow_and_update().ledger.clone();
        match (&self.running, settings.kept) {
            (None, true) => self.start(settings),
            (None, false) => self.engine.show_ledger(LedgerSummary::default()),
            (Some(running), true) => running.desk.use_settings(settings),
            (Some(_), false) => {
                self.running = None;
                self.engine.show_ledger(LedgerSummary::default());
            }
        }
    }

    fn start(&mut self, settings: LedgerSettings) {
        let desk = Arc::new(Desk::default());
        let (meter, office) = (self.house.meter(), self.house.office());
        let clerk = Clerk::new(desk.clone(), meter, office, settings, self.news.clone());
        let (ends, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("ledger".into()).stack_size(STACK);
        let started = thread.spawn(move || {
            clerk.run();
            drop(ends);
        });
        match started {
            Ok(_) => {
                self.running = Some(Running { desk, ended });
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

    /// Have a look taken where something that matters changed.
    fn seen(&mut self) {
        let view = self.views.borrow_and_update().clone();
        let now = Instant::now();
        let settled = self.settled.is_some_and(|at| now >= at);
        let changed = self.known.update(&view);
        self.pending |= changed || settled;
        if changed || settled {
            // The clock that says when they got their CPUs may differ a little from this one.
            let left = wanted::next_settled(&self.known.vms(), now_us()).filter(|_| self.running.is_some());
            self.settled = left.map(|left| now + Duration::from_micros(left) + REST);
        }
        if self.pending && now >= self.rests {
            self.pending = false;
            self.rests = now + REST;
            self.look(Reason::Change);
        }
    }

    fn look(&self, reason: Reason) {
        if let Some(running) = &self.running {
            running.desk.look(reason, self.known.vms());
        }
    }

    fn audit(&mut self) {
        self.look(Reason::Audit);
        let Some(sample) = self.settings.borrow().ledger.sample.filter(|_| self.running.is_some()) else {
            return;
        };
        let vms = self.known.vms();
        let with = closely::with_seats(&vms).len();
        if with > 0 && self.occasions.is_due(sample.every.interval(), Instant::now()) {
            self.look_closely(vms, sample.lasts(), false);
        }
    }

    /// At these VMs, by itself; what is found is kept. `say`: in the journal too.
    fn look_closely(&self, vms: Vms, lasts: Duration, say: bool) {
        let Some(running) = &self.running else { return };
        let (closely, desk) = (self.closely.clone(), running.desk.clone());
        tokio::spawn(async move {
            match closely.by_itself(closely::target(vms.values()), lasts).await {
                Some(Ok(attribution)) => keep(&desk, &vms, &attribution, say),
                // The entry of the intrusion is to say that nobody is named, and why.
                Some(Err(problem)) if say => keep(&desk, &vms, &closely::failed(problem), say),
                Some(Err(problem)) => tracing::info!("no sample of who runs on VMs' CPUs: {problem}"),
                None => {}
            }
        });
    }

    fn call(&self, call: LedgerCall) {
        let answers = self.answers.clone();
        match call {
            LedgerCall::Account(request, mut reply) => {
                let running = self.running.as_ref().map(|running| running.desk.clone());
                let vms = self.known.vms();
                tokio::spawn(async move {
                    let look = || running.map(|desk| desk.look_for(vms));
                    tokio::select! {
                        biased;
                        () = reply.closed() => {}
                        answer = answers.account(request, look) => drop(reply.send(answer)),
                    }
                });
            }
            LedgerCall::Verify(mut reply) => {
                let key = self.views.borrow().ledger.key.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        biased;
                        () = reply.closed() => {}
                        verdict = answers.verify(key) => drop(reply.send(verdict)),
                    }
                });
            }
            LedgerCall::Attribute(pod, seconds, reply) => self.attribute(pod, seconds, reply),
        }
    }

    fn attribute(&self, pod: PodUid, seconds: u32, mut reply: oneshot::Sender<Result<String, Error>>) {
        let vms: Vms = self
            .known
            .vms()
            .into_iter()
            .filter(|(known, _)| *known == pod)
            .collect();
        if closely::with_seats(&vms).is_empty() {
            let text = format!("the VM of pod {pod} has no CPUs of its own now");
            return drop(reply.send(Err(ErrorKind::InvalidArgument.because(text))));
        }
        let (closely, desk) = (
            self.closely.clone(),
            self.running.as_ref().map(|running| running.desk.clone()),
        );
        let lasts = Duration::from_secs(seconds.into());
        tokio::spawn(async move {
            let target = closely::target(vms.values());
            let looked = closely.for_operator(target, lasts, reply.closed()).await;
            if let (Ok(attribution), Some(desk)) = (&looked, &desk) {
                keep(desk, &vms, attribution, false);
            }
            let _ = reply.send(looked.and_then(|attribution| json(&attribution)));
        });
    }

    fn tell(&mut self, news: News) {
        match news {
            News::Shown(summary) if self.running.is_some() => self.engine.show_ledger(summary),
            News::Shown(_) => {}
            News::Head(head) => drop(self.signals.send(Signal::Head(head))),
            News::Intruded(pod, events) => {
                let by_task = |event: &Event| {
                    matches!(
                        event,
                        Event::Intruded {
                            class: Class::OtherTasks,
                            count: (1.., _),
                            ..
                        }
                    )
                };
                if events.iter().any(by_task) && self.occasions.intruded(&pod, Instant::now()) {
                    let vms: Vms = self
                        .known
                        .vms()
                        .into_iter()
                        .filter(|(known, _)| *known == pod)
                        .collect();
                    if !closely::with_seats(&vms).is_empty() {
                        self.look_closely(vms, closely::SHORT, true);
                    }
                }
                if let Some(told) = restrict::intrusions(&events) {
                    self.engine.note(&pod, self.engine.pod_name(&pod), "Intruded", told);
                }
                let _ = self.signals.send(Signal::Intruded(pod, events));
            }
        }
    }

    /// The last entry is waited for, but not for ever: a disk may hang.
    async fn end(self) {
        if let Some(mut running) = self.running {
            running.desk.stop();
            let _ = tokio::time::timeout(LAST, &mut running.ended).await;
        }
    }
}

/// Each VM's part of what was found.
fn keep(desk: &Desk, vms: &Vms, attribution: &Attribution, say: bool) {
    for (pod, vm) in vms.iter().filter(|(_, vm)| !vm.seats.is_empty()) {
        let part = closely::of_vm(attribution, vm);
        if say {
            say_who(pod, vm, &part);
        }
        desk.note(Event::Attributed {
            vm: pod.to_string(),
            attribution: part,
        });
    }
}

fn say_who(pod: &PodUid, vm: &Vm, attribution: &Attribution) {
    let named = closely::named(attribution);
    let reason = match (named.is_empty(), attribution.problems.first()) {
        (false, _) => named,
        (true, Some(problem)) => format!("not known: {problem}"),
        (true, None) => "nobody else, while it was counted".to_owned(),
    };
    told::attributed(pod.as_str(), &vm.name, &attribution.cpus, &reason);
}
