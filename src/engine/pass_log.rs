//! The journal's messages about passes, and the last pass in the view.

use stelia_decide::Whom;
use stelia_kernel::clock;
use stelia_model as model;

use super::state::EngineState;
use crate::journal::{self, about};

impl EngineState {
    pub(super) fn log_failure(&self, whom: &Whom, failure: &str) {
        let trigger = self.passes.current.as_ref().map_or("event", |pass| pass.trigger.name());
        let pod = whom.pod().map(|pod| self.named(pod));
        about!(
            warn,
            journal::PASS_FAILED,
            pod,
            STELIA_REASON = failure,
            STELIA_TRIGGER = trigger,
            "{}{failure}",
            journal::of(pod)
        );
    }

    /// Log and count a pass in which nothing is due any more.
    pub(super) fn end_pass(&mut self) {
        let Some(pass) = self.passes.current.take() else { return };
        let did = self.passes.total.since(pass.before);
        let failures = self.retries.failures().count() + self.picture.problems.len();
        if did.steps > 0 {
            tracing::info!(
                MESSAGE_ID = journal::PASS,
                STELIA_TRIGGER = pass.trigger.name(),
                "pass {}: {} steps, {} writes, {} moves, {failures} failures",
                self.passes.count,
                did.steps,
                did.writes,
                did.moves,
            );
        }
        let took = pass.began.elapsed();
        self.view_writer.show_pass(model::LastPass {
            number: self.passes.count,
            trigger: pass.trigger,
            ended_us: clock::now_us(),
            duration_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            steps: did.steps,
            writes: did.writes,
            moves: did.moves,
            failures: failures as u32,
        });
        self.metrics.passed(pass.trigger, did, took);
        if failures == 0 && did.steps > 0 {
            pass.follows_us
                .into_iter()
                .for_each(|us| self.metrics.followed_kubelet(us));
        }
    }
}
