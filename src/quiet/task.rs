//! The task that sends orders. It decides when one is due, and plans the next one by the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_api::quiet::Report;
use stelia_kernel::clock::now_us;
use stelia_kernel::vfio;
use stelia_kubelet::PodUid;
use stelia_model as model;
use stelia_settings::{Settings, VfioIrqs};
use steliad_quiet::order::Order;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::executor::OrderExecutor;
use super::order_from_view::order_for;
use super::status::{OrderLog, ShownOrders};
use crate::engine::Handle;
use crate::wait_until::wait_until;

/// The first retry interval of an order that failed. It doubles, up to the audit's interval.
const FAILED_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The first retry interval of an order that skipped a VM, whose record may be about to be written. It doubles likewise.
const SKIPPED_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Send orders until cancelled.
pub(crate) async fn run(engine: Handle, executor: Arc<dyn OrderExecutor>, cancel: CancellationToken) {
    let mut task = Task {
        views: engine.watch(),
        settings: engine.settings(),
        devices: BTreeMap::new(),
        carried_out: None,
        failed: None,
        retry_interval: None,
        skipped: BTreeSet::new(),
        log: OrderLog::default(),
        shown: ShownOrders::default(),
        next: executor.may_be_in_force().then(Instant::now),
        engine: engine.clone(),
        executor,
    };
    let mut reconciled = engine.reconciled();
    loop {
        let steering = task.settings.borrow().quiet.irq_steering.name();
        if let Some(quiet) = task.shown.set_steering(steering) {
            task.engine.show_quiet(quiet);
        }
        let order = task.order();
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
            () = wait_until(next) => {}
        }
    }
}

struct Task {
    engine: Handle,
    executor: Arc<dyn OrderExecutor>,
    views: watch::Receiver<Arc<model::Node>>,
    settings: watch::Receiver<Arc<Settings>>,
    /// The VFIO devices of each pod's container. They are read once for each instance, and only if a setting needs them.
    devices: BTreeMap<PodUid, BTreeSet<String>>,
    /// The last order that was carried out.
    carried_out: Option<Order>,
    /// The last order, if it failed.
    failed: Option<Order>,
    /// The last order's retry interval; `None` if it was carried out for every VM.
    retry_interval: Option<Duration>,
    /// The pods whose VMs the last order skipped.
    skipped: BTreeSet<String>,
    log: OrderLog,
    shown: ShownOrders,
    /// When the order is sent again although nothing changed; `None` while nothing is in force.
    next: Option<Instant>,
}

impl Task {
    /// The order for the engine's view as it is now.
    fn order(&mut self) -> Order {
        let view = self.views.borrow_and_update().clone();
        let settings = self.settings.borrow_and_update().clone();
        let own = match settings.quiet.vfio_irqs {
            VfioIrqs::Float => BTreeMap::new(),
            VfioIrqs::Own => {
                self.read_devices(&view);
                vfio::without_shared(self.devices.clone())
            }
        };
        order_for(&view, &settings.quiet, &own)
    }

    /// Read the devices of instances that are new.
    fn read_devices(&mut self, view: &model::Node) {
        self.devices.retain(|pod, _| view.instances.contains_key(pod));
        let system = self.engine.system();
        for (pod, instance) in &view.instances {
            if !self.devices.contains_key(pod) {
                let devices = vfio::devices(&system.run, &system.sys, &instance.origin);
                self.devices.insert(pod.clone(), devices);
            }
        }
    }

    /// Whether the order differs from the last one, or is to be repeated now. Without VMs none is sent, unless an earlier one may be in
    /// force.
    fn is_due(&self, order: &Order, now: Instant) -> bool {
        let is_time = self.next.is_some_and(|next| next <= now);
        let is_unchanged = match (&self.failed, &self.carried_out) {
            (Some(failed), _) => failed == order,
            (None, Some(last)) => last == order || last.vms.is_empty() && order.vms.is_empty(),
            (None, None) => order.vms.is_empty(),
        };
        is_time || !is_unchanged
    }

    async fn send(&mut self, order: Order) {
        // The retry interval may have become long, and must not delay the order of a new VM.
        if self.failed.as_ref().or(self.carried_out.as_ref()) != Some(&order) {
            self.retry_interval = None;
        }
        let (executor, sending) = (self.executor.clone(), order.clone());
        let answer = tokio::task::spawn_blocking(move || executor.carry_out(&sending)).await;
        let answer = answer.unwrap_or_else(|panicked| Err(panicked.to_string()));
        let quiet = match answer {
            Ok(report) => {
                let report = self.carried_out(order, report);
                self.shown.carried_out(report, now_us())
            }
            Err(problem) => {
                self.failed(order, &problem);
                self.shown.failed(problem)
            }
        };
        self.engine.show_quiet(quiet);
    }

    /// Plan the next order after one that was carried out. Returns the report to show.
    fn carried_out(&mut self, order: Order, mut report: Report) -> Report {
        let (now, interval) = (Instant::now(), self.settings.borrow().audit_interval);
        let differs = self.carried_out.as_ref() != Some(&order);
        self.log.carried_out(&order, differs, &report);
        self.failed = None;
        let skipped = report.left_out.keys().cloned().collect();
        self.retry_interval = (!report.left_out.is_empty()).then(|| self.retry_after(SKIPPED_RETRY_INTERVAL, interval));
        // Without VMs nothing is in force, and no timer is needed.
        self.next = (!order.vms.is_empty()).then(|| now + self.retry_interval.unwrap_or(interval));
        self.carried_out = Some(order);
        // A VM that starts or ends may be skipped once; only a repeated skip is shown.
        let before = std::mem::replace(&mut self.skipped, skipped);
        report.left_out.retain(|pod, _| before.contains(pod));
        report
    }

    /// Plan the next attempt after an order that failed.
    fn failed(&mut self, order: Order, problem: &str) {
        let interval = self.settings.borrow().audit_interval;
        let retry = self.retry_after(FAILED_RETRY_INTERVAL, interval);
        self.log.failed(problem);
        self.failed = Some(order);
        self.retry_interval = Some(retry);
        self.next = Some(Instant::now() + retry);
    }

    /// Twice the last retry interval, at most `max`; without one, `first`.
    fn retry_after(&self, first: Duration, max: Duration) -> Duration {
        self.retry_interval.map_or(first, |interval| (interval * 2).min(max))
    }
}
