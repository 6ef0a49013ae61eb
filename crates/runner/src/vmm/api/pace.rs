//! How often a VMM is asked. Pure.
//!
//! Firecracker logs every request, into the container's output: once a second would be 86,000 lines a day for each VM. Whether it
//! has vCPU threads, and whether they run, is read from the kernel instead, which costs nobody a line.

use std::time::Duration;

/// The interval of queries to a VMM whose VM is not booted yet.
const FIRST_UNBOOTED_INTERVAL: Duration = Duration::from_millis(100);
const MAX_UNBOOTED_INTERVAL: Duration = Duration::from_secs(60);

/// The shortest interval of queries about a run state that the vCPU threads contradict.
const FIRST_DOUBT_INTERVAL: Duration = Duration::from_secs(5);
/// After this many polls without run time of any vCPU the run state is queried: even an idle guest has timers.
const MAX_IDLE_POLLS: u32 = 5;

/// The pause before the next question to a VMM that answers, and whose VM is not booted: a tenth of the time that this took so
/// far.
pub(super) fn unbooted(waited: Duration) -> Duration {
    (waited / 10).clamp(FIRST_UNBOOTED_INTERVAL, MAX_UNBOOTED_INTERVAL)
}

/// When to ask for the run state of a booted VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pace {
    /// It is asked no later than this after the last question.
    limit: Duration,
    /// The pause before a question out of doubt; doubled by each that was needless.
    doubt: Duration,
    since: Duration,
    ran: Option<Duration>,
    quiet: u32,
    runs: bool,
}

impl Pace {
    pub(super) fn new(limit: Duration) -> Pace {
        Pace {
            limit,
            doubt: FIRST_DOUBT_INTERVAL.min(limit),
            since: Duration::ZERO,
            ran: None,
            quiet: 0,
            runs: false,
        }
    }

    /// Counts a look at the vCPU threads, this long after the one before: how long they ran on CPUs so far.
    pub(super) fn observe(&mut self, passed: Duration, ran: Option<Duration>) {
        self.since += passed;
        // Not counted by this kernel, or threads ended.
        let grown = ran.zip(self.ran).is_some_and(|(now, before)| now > before);
        self.quiet = if grown { 0 } else { self.quiet.saturating_add(1) };
        self.runs = grown;
        self.ran = ran;
    }

    fn doubts(&self, running: bool) -> bool {
        match (self.ran, running) {
            // Nothing is known by the threads.
            (None, _) => true,
            (Some(_), true) => self.quiet >= MAX_IDLE_POLLS,
            (Some(_), false) => self.runs,
        }
    }

    /// Whether to ask now, where the guest was `running` at the last question.
    pub(super) fn is_due(&self, running: bool) -> bool {
        self.since >= self.limit || (self.doubts(running) && self.since >= self.doubt)
    }

    /// Counts a question, and whether the run state was another one.
    pub(super) fn asked(&mut self, running: bool, changed: bool) {
        self.doubt = match self.doubts(running) && !changed {
            true => self.doubt.saturating_mul(2).min(self.limit),
            false => FIRST_DOUBT_INTERVAL.min(self.limit),
        };
        self.since = Duration::ZERO;
        self.quiet = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMIT: Duration = Duration::from_secs(60);

    /// The seconds at which it is asked, when the vCPUs run by `runs` and the VMM always answers `running`.
    fn asked(seconds: u64, running: bool, runs: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut pace = Pace::new(LIMIT);
        let mut ran = Duration::ZERO;
        let mut asked = Vec::new();
        for second in 1..=seconds {
            ran += if runs(second) { SECOND / 100 } else { Duration::ZERO };
            pace.observe(SECOND, Some(ran));
            if pace.is_due(running) {
                pace.asked(running, false);
                asked.push(second);
            }
        }
        asked
    }

    #[test]
    fn one_whose_threads_say_what_it_said_is_asked_once_a_minute() {
        assert_eq!(asked(200, true, |_| true), [60, 120, 180]);
        assert_eq!(asked(200, false, |_| false), [60, 120, 180]);
    }

    #[test]
    fn one_whose_threads_stop_or_begin_is_asked_soon_and_then_seldom() {
        let stops = asked(400, true, |second| second < 100);
        assert_eq!(stops[..3], [60, 104, 114]);
        let begins = asked(400, false, |second| second >= 100);
        assert_eq!(begins[..3], [60, 100, 110]);
        let minute_by_then = |asked: &[u64]| asked.windows(2).skip(6).all(|pair| pair[1] - pair[0] == 60);
        assert!(
            minute_by_then(&stops) && minute_by_then(&begins),
            "{stops:?} {begins:?}"
        );
    }

    #[test]
    fn where_the_kernel_counts_no_run_time_needless_questions_grow_rare_too() {
        let mut pace = Pace::new(LIMIT);
        let mut asked = 0;
        for _ in 0..600 {
            pace.observe(SECOND, None);
            if pace.is_due(true) {
                pace.asked(true, false);
                asked += 1;
            }
        }
        assert!(asked <= 14, "{asked}");
    }

    #[test]
    fn a_vm_that_nobody_boots_is_asked_ever_more_seldom() {
        let (mut at, mut asked) = (Duration::ZERO, 0);
        while at < Duration::from_secs(3600) {
            at += unbooted(at);
            asked += 1;
            assert!(at > SECOND || asked <= 11, "{asked} questions in the first second");
        }
        assert!(asked < 150, "{asked}");
    }

    proptest! {
        #[test]
        fn whatever_the_threads_do_it_is_asked_at_least_once_and_few_times_a_minute(
            running: bool, runs in proptest::collection::vec(any::<bool>(), 1200),
        ) {
            let asked = asked(1200, running, |second| runs[second as usize - 1]);
            prop_assert!(asked.windows(2).all(|pair| pair[1] - pair[0] <= 60));
            prop_assert!(asked.windows(2).all(|pair| pair[1] - pair[0] >= 5));
        }
    }
}
