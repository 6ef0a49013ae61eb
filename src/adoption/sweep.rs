//! Lists all containers that match a rule, one listing at a time: a pod can overrun the queue of KVM's events as often as it likes.

use super::scan;
use super::task::{Adoption, TaskResult};

/// Whether the containers are being listed, and which listing follows.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    is_running: bool,
    /// Whether it lists only the containers that a rule adopts whole.
    next: Option<bool>,
}

impl Sweeps {
    /// Whether to begin. If one is running, another one follows.
    fn begin(&mut self, only_whole: bool) -> bool {
        if self.is_running {
            self.next = Some(only_whole && self.next.unwrap_or(true));
            return false;
        }
        self.is_running = true;
        true
    }

    /// One ended; which one to begin.
    fn finish(&mut self) -> Option<bool> {
        self.is_running = false;
        self.next.take()
    }
}

impl Adoption {
    /// List all containers that match a rule; `only_whole`: those that a rule adopts whole.
    pub(super) fn sweep(&mut self, only_whole: bool) {
        if !self.sweeps.begin(only_whole) {
            return;
        }
        let (system, settings) = (self.engine.system().clone(), self.settings.borrow().clone());
        self.tasks.spawn_blocking(move || {
            let found = scan::containers_with_rule(&system, &settings.policies.adopt, only_whole);
            TaskResult::Swept(found)
        });
    }

    /// A listing ended, or it is not known whether it did.
    pub(super) fn sweep_ended(&mut self) {
        if let Some(only_whole) = self.sweeps.finish() {
            self.sweep(only_whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_during_a_listing_are_one_more_listing_of_all_that_they_name() {
        let mut sweeps = Sweeps::default();
        assert!(sweeps.begin(true));
        assert!(!sweeps.begin(true) && !sweeps.begin(false) && !sweeps.begin(true));
        assert_eq!(sweeps.finish(), Some(false));
        assert!(sweeps.begin(false));
        assert!(!sweeps.begin(true));
        assert_eq!(sweeps.finish(), Some(true));
        assert!(sweeps.begin(true));
        assert_eq!(sweeps.finish(), None);
    }
}
