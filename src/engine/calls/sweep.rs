//! What Reconcile and Reload share: they are answered once each instance was looked at.

use stelia_decide::Whom;

use super::{Sweep, SweepAnswer};
use crate::engine::state::EngineState;

impl EngineState {
    /// Answer when each of the instances that are there now has been looked at.
    pub(super) fn sweep(&mut self, answer: SweepAnswer) {
        // The node first, so that new scopes are included.
        self.look_at_node();
        // Not instances whose scopes systemd is making.
        let starting = &self.picture.starting;
        let pods = self.picture.snapshot.instances.keys();
        let pods = pods.filter(|pod| !starting.contains(*pod)).cloned().map(Whom::Instance);
        self.calls.add_sweep(Sweep {
            pending: pods.chain([Whom::Node]).collect(),
            before: self.passes.total,
            answer,
        });
    }
}
