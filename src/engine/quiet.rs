//! What is known of interrupts and the like: shown, and taken into the instances' reasons of degradation.

use stelia_api::quiet::Quiet;

use super::task::Engine;
use crate::decide::quiet::Disturbances;

impl Engine {
    /// Only the instances whose reasons change are planned for.
    pub(super) fn show_quiet(&mut self, quiet: Quiet) {
        self.firing.saw(&quiet);
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
