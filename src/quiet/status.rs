//! Logs the results of orders to the journal, and shows the setting in the view.

use stelia_api::quiet::{Quiet, Report};
use steliad_quiet::order::Order;

use crate::journal;
use crate::lasting_problem::LastingProblem;

/// Logs whether orders are carried out.
#[derive(Debug, Default)]
pub(super) struct OrderLog {
    problem: LastingProblem,
}

impl OrderLog {
    /// Log that an order was carried out, if it ended a problem, or if it wrote something and differs from the order before (`differs`).
    pub(super) fn carried_out(&mut self, order: &Order, differs: bool, report: &Report) {
        let has_recovered = self.problem.ends();
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
        if self.problem.begins(problem) {
            tracing::warn!(
                MESSAGE_ID = journal::NOT_STEERED,
                STELIA_REASON = problem,
                "device interrupts are not kept off the CPUs of VMs: {problem}"
            );
        }
    }
}

/// What the view shows of orders. The task keeps it itself: the view is changed by the engine in a later turn, so what is read from it may be
/// older than what the task has shown last.
#[derive(Debug, Default)]
pub(super) struct ShownOrders(Quiet);

impl ShownOrders {
    /// The state to show if the setting is another one than the state has. Needed before the first order, because none is sent without VMs.
    pub(super) fn set_steering(&mut self, steering: &str) -> Option<Quiet> {
        if self.0.steering == steering {
            return None;
        }
        steering.clone_into(&mut self.0.steering);
        Some(self.0.clone())
    }

    /// The state to show after an order that was carried out at `answered_us`.
    pub(super) fn carried_out(&mut self, report: Report, answered_us: u64) -> Quiet {
        self.0.problem = None;
        self.0.answered_us = answered_us;
        self.0.report = report;
        self.0.clone()
    }

    /// The state to show after an order that failed. The last report stays.
    pub(super) fn failed(&mut self, problem: String) -> Quiet {
        self.0.problem = Some(problem);
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_that_is_shown_again_takes_no_report_away() {
        let mut shown = ShownOrders::default();
        assert_eq!(shown.set_steering("off").unwrap().steering, "off");
        assert_eq!(shown.set_steering("shared").unwrap().report.moved, 0);
        let report = Report {
            moved: 11,
            ..Report::default()
        };
        assert_eq!(shown.carried_out(report, 5).steering, "shared");
        // Whatever the engine has shown by now.
        assert_eq!(shown.set_steering("shared"), None);
        let failed = shown.failed("no answer".to_owned());
        assert_eq!((failed.report.moved, failed.answered_us), (11, 5));
        let off = shown.set_steering("off").unwrap();
        assert_eq!((off.report.moved, off.problem.as_deref()), (11, Some("no answer")));
    }
}
