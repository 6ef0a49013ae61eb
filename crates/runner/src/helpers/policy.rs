//! What to do when a helper has ended. Pure.

use std::time::Duration;

use super::spec::OnExit;

/// A helper that ran this long counts as one that works: its next failure is its first.
pub const SETTLED: Duration = Duration::from_secs(60);
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Start it again after this time.
    Again(Duration),
    /// Shut the guest down.
    Fatal,
    /// Leave it.
    Leave,
}

/// A helper ended after it had run for `ran`; `failures` ends came before it, each soon after its start. Answers what follows
/// and how many failures that makes.
pub fn next(on_exit: OnExit, ran: Duration, failures: u32) -> (Next, u32) {
    match on_exit {
        OnExit::Fatal => (Next::Fatal, failures),
        OnExit::Ignore => (Next::Leave, failures),
        OnExit::Restart => {
            let failures = if ran >= SETTLED { 0 } else { failures };
            let pause = FIRST.saturating_mul(1 << failures.min(16)).min(LONGEST);
            (Next::Again(pause), failures.saturating_add(1))
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
            let (next, more) = next(OnExit::Restart, Duration::from_secs(1), failures);
            let Next::Again(pause) = next else { panic!("{next:?}") };
            pauses.push(pause.as_millis());
            failures = more;
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
        assert_eq!(next(OnExit::Restart, SETTLED, failures), (Next::Again(FIRST), 1));
        assert_eq!(next(OnExit::Restart, Duration::ZERO, u32::MAX).1, u32::MAX);
    }

    #[test]
    fn the_others_are_not_tried_again() {
        assert_eq!(next(OnExit::Fatal, SETTLED, 0).0, Next::Fatal);
        assert_eq!(next(OnExit::Ignore, SETTLED, 0).0, Next::Leave);
    }
}
