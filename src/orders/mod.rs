//! What is done for the CPUs of VMs besides keeping tasks off them: device interrupts and the like. The daemon's sandbox forbids these
//! writes; it orders them of `steliad-quiet`, and works without it.
//!
//! An order is sent when it differs from the last one, at each audit as long as there are VMs, and when an administrator asks for a
//! reconciliation. It is always whole: a daemon that starts sends it, too, and needs to know nothing of what its predecessor ordered.

mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stelia_api::quiet::{Problem, Quiet, Report};
use stelia_kubelet::{ContainerCgroup, PodUid};
use stelia_node::vfio;
use stelia_quiet::files::System;
use stelia_quiet::kernel::{Directory, Kernel};
use stelia_quiet::order::{Order, SOCKET, STORE};
use stelia_quiet::{client, threads};
use stelia_settings::{Settings, VfioIrqs};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::engine::{Handle, View, now_us};
use crate::journal;
use wanted::{wanted, without_shared};

/// How soon an order that failed is sent again at first. It doubles, up to the audit's interval.
const AGAIN: Duration = Duration::from_secs(1);
/// The same of one that was not carried out for every VM: their records may be about to be written.
const SOON: Duration = Duration::from_millis(100);

/// Who carries out orders.
pub(crate) trait Orders: Send + Sync {
    /// Blocks.
    ///
    /// # Errors
    /// Why nothing was changed, or why that is not known.
    fn carry_out(&self, order: &Order) -> Result<Report, String>;

    /// Whether something may be in force of an order that an earlier daemon sent.
    fn may_be_in_force(&self) -> bool;
}

/// `steliad-quiet`, behind its socket; and the daemon itself, for kernel threads: to move these takes a capability that it has.
#[derive(Default)]
pub(crate) struct Programs {
    threads: Mutex<threads::Memory>,
}

impl Orders for Programs {
    fn carry_out(&self, order: &Order) -> Result<Report, String> {
        let mut moved = Report::default();
        self.move_threads(order, &mut moved);
        let report = client::order(Path::new(SOCKET), order, client::PATIENCE).map_err(|error| error.to_string())?;
        Ok(Report {
            threads_moved: moved.threads_moved,
            threads_remaining: moved.threads_remaining,
            problems: [report.problems, moved.problems].concat(),
            ..report
        })
    }

    fn may_be_in_force(&self) -> bool {
        Path::new(STORE).is_dir()
    }
}

impl Programs {
    fn move_threads(&self, order: &Order, report: &mut Report) {
        let store = match Directory::open(STORE) {
            Ok(store) => store,
            Err(cause) => {
                let text = format!("make {STORE}: {cause}");
                return report.problems.push(Problem {
                    pod: String::new(),
                    text,
                });
            }
        };
        let system = System {
            files: &Kernel::below("/"),
            store: &store,
        };
        // A panic leaves what is remembered as it was: it is changed by whole entries.
        let mut memory = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads::carry_out(system, order, &mut memory, report);
    }
}

/// Send orders until cancelled.
pub(crate) async fn run(engine: Handle, orders: Arc<dyn Orders>, cancel: CancellationToken) {
    let mut task = Task {
        views: engine.watch(),
        settings: engine.settings(),
        devices: BTreeMap::new(),
        sent: None,
        failed: None,
        rest: None,
        left_out: BTreeSet::new(),
        told: None,
        next: orders.may_be_in_force().then(Instant::now),
        engine: engine.clone(),
        orders,
    };
    let mut reconciled = engine.reconciled();
    loop {
        task.show_setting();
        let order = task.wanted();
        if task.is_due(&order, Instant::now()) {
            task.send(order).await;
            continue;
        }
        let next = task.next;
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = task.views.changed() => if changed.is_err() { return },
            changed = task.settings.changed() => if changed.is_err() { return },
            Ok(()) = reconciled.changed() => task.next = task.next.map(|_| Instant::now()),
            () = until(next) => {}
        }
    }
}

async fn until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

struct Task {
    engine: Handle,
    orders: Arc<dyn Orders>,
    views: watch::Receiver<Arc<View>>,
    settings: watch::Receiver<Arc<Settings>>,
    /// The VFIO devices of each pod's container; read once for each instance, and only where a setting asks for it.
    devices: BTreeMap<PodUid, BTreeSet<String>>,
    /// The last order that was carried out.
    sent: Option<Order>,
    /// The last order that was not.
    failed: Option<Order>,
    /// How long the rest is before the order is sent again that was not carried out, or not for every VM; `None` where it was.
    rest: Option<Duration>,
    /// The pods for whose VMs the last answer did nothing.
    left_out: BTreeSet<String>,
    /// The problem that the journal was last told.
    told: Option<String>,
    /// When the order is sent again although nothing changed; `None` while nothing is in force.
    next: Option<Instant>,
}

impl Task {
    fn wanted(&mut self) -> Order {
        let view = self.views.borrow_and_update().clone();
        let settings = self.settings.borrow_and_update().clone();
        let own = match settings.quiet.vfio_irqs {
            VfioIrqs::Float => BTreeMap::new(),
            VfioIrqs::Own => {
                self.read_devices(&view);
                without_shared(self.devices.clone())
            }
        };
        wanted(&view, &settings.quiet, &own)
    }

    /// Read the devices of instances that are new.
    fn read_devices(&mut self, view: &View) {
        self.devices.retain(|pod, _| view.instances.contains_key(pod));
        let system = self.engine.system();
        for (pod, known) in &view.instances {
            if self.devices.contains_key(pod) {
                continue;
            }
            let container = ContainerCgroup::parse(known.origin.as_str());
            let found = container.map(|container| vfio::devices(&system.run, &system.sys, &container));
            self.devices.insert(pod.clone(), found.unwrap_or_default());
        }
    }

    /// Shows the setting before anything is ordered: without VMs nothing is, and nothing is known else.
    fn show_setting(&self) {
        let steering = self.settings.borrow().quiet.irq_steering.name();
        let shown = self.engine.view().quiet.clone();
        if shown.steering != steering {
            self.engine.show_quiet(Quiet {
                steering: steering.to_owned(),
                ..(*shown).clone()
            });
        }
    }

    /// Without VMs nothing is sent, unless something may be in force.
    fn is_due(&self, order: &Order, now: Instant) -> bool {
        let in_time = self.next.is_some_and(|next| next <= now);
        let is_known = match (&self.failed, &self.sent) {
            (Some(failed), _) => failed == order,
            (None, Some(sent)) => sent == order || sent.vms.is_empty() && order.vms.is_empty(),
            (None, None) => order.vms.is_empty(),
        };
        in_time || !is_known
    }

    async fn send(&mut self, order: Order) {
        // Another VM's rest, however long it is by now, is not that of one that begins.
        if self.failed.as_ref().or(self.sent.as_ref()) != Some(&order) {
            self.rest = None;
        }
        let (orders, sending) = (self.orders.clone(), order.clone());
        let answer = tokio::task::spawn_blocking(move || orders.carry_out(&sending)).await;
        let answer = answer.unwrap_or_else(|panicked| Err(panicked.to_string()));
        let interval = self.settings.borrow().audit_interval;
        let steering = self.settings.borrow().quiet.irq_steering.name().to_owned();
        let now = Instant::now();
        let quiet = match answer {
            Ok(mut report) => {
                self.tell_done(&order, &report);
                self.failed = None;
                let left_out = report.left_out.keys().cloned().collect();
                self.rest = match report.left_out.is_empty() {
                    true => None,
                    false => Some(self.rest.map_or(SOON, |rest| (rest * 2).min(interval))),
                };
                // Nothing is in force without VMs: nobody wakes for it.
                self.next = (!order.vms.is_empty()).then(|| now + self.rest.unwrap_or(interval));
                self.sent = Some(order);
                // One that begins or ends is left out once.
                let before = std::mem::replace(&mut self.left_out, left_out);
                report.left_out.retain(|pod, _| before.contains(pod));
                Quiet {
                    steering,
                    problem: None,
                    answered_us: now_us(),
                    report,
                }
            }
            Err(problem) => {
                let rest = self.rest.map_or(AGAIN, |rest| (rest * 2).min(interval));
                self.tell_failed(&problem);
                self.failed = Some(order);
                self.rest = Some(rest);
                self.next = Some(now + rest);
                Quiet {
                    steering,
                    problem: Some(problem),
                    ..(*self.engine.view().quiet).clone()
                }
            }
        };
        self.engine.show_quiet(quiet);
    }

    /// In the journal when what is in force changed, or when it works again.
    fn tell_done(&mut self, order: &Order, report: &Report) {
        let recovered = self.told.take().is_some();
        let is_news = report.writes > 0 && self.sent.as_ref() != Some(order);
        if order.vms.is_empty() || !(recovered || is_news) {
            return;
        }
        let cpus: stelia_cpus::CpuSet = order.vms.values().flat_map(|vm| vm.cpus.iter()).collect();
        tracing::info!(
            MESSAGE_ID = journal::STEERED,
            STELIA_CPUSET = %cpus,
            STELIA_MOVED = report.moved,
            STELIA_REMAINING = report.remaining.len(),
            "device interrupts are kept off the CPUs {:?}: {} of {} have other CPUs than before, {} remain",
            cpus.to_string(),
            report.moved,
            report.interrupts,
            report.remaining.len()
        );
    }

    /// In the journal once, as long as it is for the same reason.
    fn tell_failed(&mut self, problem: &str) {
        if self.told.as_deref() == Some(problem) {
            return;
        }
        tracing::warn!(
            MESSAGE_ID = journal::NOT_STEERED,
            STELIA_REASON = problem,
            "device interrupts are not kept off the CPUs of VMs: {problem}"
        );
        self.told = Some(problem.to_owned());
    }
}
