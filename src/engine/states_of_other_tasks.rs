//! What other tasks have in the view. Disturbed CPUs also degrade the instances that have them.

use stelia_api::quiet::Quiet;
use stelia_decide::disturbances::Disturbances;

use super::state::EngineState;

impl EngineState {
    /// Only the instances whose reasons change are planned for.
    pub(super) fn show_quiet(&mut self, quiet: Quiet) {
        self.firing.record(&quiet);
        let now = Disturbances::new(&quiet, &self.firing);
        self.view_writer.show_quiet(quiet);
        let before = std::mem::replace(&mut self.picture.snapshot.disturbances, now);
        let now = &self.picture.snapshot.disturbances;
        if before == *now {
            return;
        }
        for (pod, instance) in &self.picture.snapshot.instances {
            let exclusive = &instance.record.exclusive;
            if before.of(pod, exclusive) != now.of(pod, exclusive) {
                self.dirty.plan.insert(pod.clone());
            }
        }
    }
}
