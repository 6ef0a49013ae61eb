//! What to do when a helper has ended. Pure.

use std::time::Duration;

use stelia_cpus::rate::Backoff;

use super::spec::OnExit;

/// A helper that ran this long counts as stable: its next failure counts as the first.
pub(crate) const STABLE_RUN_TIME: Duration = Duration::from_secs(60);
const RESTART_DELAY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterExit {
    Restart(Duration),
    /// Shut the guest down and fail.
    ShutDown,
    StayEnded,
}

/// Decides for a helper that ran for `ran` and before that failed `failures` times soon after its start. Also returns
/// the new number of failures.
pub(crate) fn after_exit(on_exit: OnExit, ran: Duration, failures: u32) -> (AfterExit, u32) {
    match on_exit {
        OnExit::Fatal => (AfterExit::ShutDown, failures),
        OnExit::Ignore => (AfterExit::StayEnded, failures),
        OnExit::Restart => {
            let failures = if ran >= STABLE_RUN_TIME { 0 } else { failures };
            let pause = RESTART_DELAY.pause(failures);
            (AfterExit::Restart(pause), failures.saturating_add(1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_keeps_failing_is_tried_ever_more_seldom() {
        let mut failures = 0;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let (next, more) = after_exit(OnExit::Restart, Duration::from_secs(1), failures);
            let AfterExit::Restart(pause) = next else {
                panic!("{next:?}")
            };
            pauses.push(pause.as_millis());
            failures = more;
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
        assert_eq!(
            after_exit(OnExit::Restart, STABLE_RUN_TIME, failures),
            (AfterExit::Restart(Duration::from_millis(500)), 1)
        );
        assert_eq!(after_exit(OnExit::Restart, Duration::ZERO, u32::MAX).1, u32::MAX);
    }

    #[test]
    fn the_others_are_not_tried_again() {
        assert_eq!(after_exit(OnExit::Fatal, STABLE_RUN_TIME, 0).0, AfterExit::ShutDown);
        assert_eq!(after_exit(OnExit::Ignore, STABLE_RUN_TIME, 0).0, AfterExit::StayEnded);
    }
}
