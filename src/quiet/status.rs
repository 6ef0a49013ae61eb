//! Logs the results of orders to the journal, and shows the setting in the view.

use stelia_api::quiet::{Quiet, Report};
use stelia_quiet::order::Order;

use crate::engine::Handle;
use crate::journal;

/// Logs whether orders are carried out.
#[derive(Debug, Default)]
pub(super) struct OrderLog {
    /// The last logged problem, while it lasts.
    problem: Option<String>,
}

impl OrderLog {
    /// Log that an order was carried out, if it ended a problem, or if it wrote something and differs from the order before (`differs`).
    pub(super) fn carried_out(&mut self, order: &Order, differs: bool, report: &Report) {
        let has_recovered = self.problem.take().is_some();
        let has_changed = report.writes > 0 && differs;
        if order.vms.is_empty() || !(has_recovered || has_changed) {
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

    /// Log why an order failed. A reason is logged once, until it changes.
    pub(super) fn failed(&mut self, problem: &str) {
        if self.problem.as_deref() == Some(problem) {
            return;
        }
        tracing::warn!(
            MESSAGE_ID = journal::NOT_STEERED,
            STELIA_REASON = problem,
            "device interrupts are not kept off the CPUs of VMs: {problem}"
        );
        self.problem = Some(problem.to_owned());
    }
}

/// Show the setting before the first order, because none is sent without VMs.
pub(super) fn show_setting(engine: &Handle, steering: &str) {
    let shown = engine.view().quiet.clone();
    if shown.steering != steering {
        engine.show_quiet(Quiet {
            steering: steering.to_owned(),
            ..(*shown).clone()
        });
    }
}
