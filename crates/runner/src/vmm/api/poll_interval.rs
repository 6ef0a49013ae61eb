//! Decides how often a VMM is queried. Pure.
//!
//! Firecracker logs every request to the container's output: one a second would be 86,000 lines a day for each VM. Whether it has vCPU
//! threads, and whether they run, is read from the kernel instead.

use std::time::Duration;

/// The interval of queries to a VMM whose VM is not booted yet.
const FIRST_UNBOOTED_INTERVAL: Duration = Duration::from_millis(100);
const MAX_UNBOOTED_INTERVAL: Duration = Duration::from_secs(60);

/// The shortest interval of queries about a run state that the vCPU threads contradict.
const FIRST_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// After this many polls without run time of any vCPU the run state is queried: even an idle guest has timers.
const MAX_IDLE_POLLS: u32 = 5;

/// The pause before the next query of a VMM whose VM is not booted yet: a tenth of the time that has passed.
pub(super) fn unbooted(waited: Duration) -> Duration {
    (waited / 10).clamp(FIRST_UNBOOTED_INTERVAL, MAX_UNBOOTED_INTERVAL)
}

/// When to query the run state of a booted VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QuerySchedule {
    /// The longest interval of queries.
    max_interval: Duration,
    /// The interval of queries while the threads contradict the run state. A query that shows no change doubles it.
    check_interval: Duration,
    /// The time since the last query.
    since: Duration,
    /// The run time of the vCPU threads at the last poll.
    ran: Option<Duration>,
    /// Polls in a row without run time.
    idle_polls: u32,
    is_running: bool,
}

impl QuerySchedule {
    pub(super) fn new(max_interval: Duration) -> QuerySchedule {
        QuerySchedule {
            max_interval,
            check_interval: FIRST_CHECK_INTERVAL.min(max_interval),
            since: Duration::ZERO,
            ran: None,
            idle_polls: 0,
            is_running: false,
        }
    }

    /// Notes a poll of the vCPU threads, this long after the one before, with their total run time.
    pub(super) fn observe(&mut self, passed: Duration, ran: Option<Duration>) {
        self.since += passed;
        // It does not grow if the kernel does not count it, or if threads ended.
        let grown = ran.zip(self.ran).is_some_and(|(now, before)| now > before);
        self.idle_polls = if grown { 0 } else { self.idle_polls.saturating_add(1) };
        self.is_running = grown;
        self.ran = ran;
    }

    /// Whether the threads contradict the run state of the last query.
    fn is_contradicted(&self, running: bool) -> bool {
        match (self.ran, running) {
            // The run time is not known.
            (None, _) => true,
            (Some(_), true) => self.idle_polls >= MAX_IDLE_POLLS,
            (Some(_), false) => self.is_running,
        }
    }

    /// Whether to query now, if the guest was `running` or not at the last query.
    pub(super) fn is_due(&self, running: bool) -> bool {
        self.since >= self.max_interval || (self.is_contradicted(running) && self.since >= self.check_interval)
    }

    /// Notes a query, and whether the run state had changed.
    pub(super) fn queried(&mut self, running: bool, changed: bool) {
        let interval = if self.is_contradicted(running) && !changed {
            self.check_interval.saturating_mul(2)
        } else {
            FIRST_CHECK_INTERVAL
        };
        self.check_interval = interval.min(self.max_interval);
        self.since = Duration::ZERO;
        self.idle_polls = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMIT: Duration = Duration::from_secs(60);

    /// The seconds at which it is queried, if the vCPUs run at the seconds of `runs` and the VMM always answers `running`.
    fn queries(seconds: u64, running: bool, runs: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut schedule = QuerySchedule::new(LIMIT);
        let mut ran = Duration::ZERO;
        let mut asked = Vec::new();
        for second in 1..=seconds {
            ran += if runs(second) { SECOND / 100 } else { Duration::ZERO };
            schedule.observe(SECOND, Some(ran));
            if schedule.is_due(running) {
                schedule.queried(running, false);
                asked.push(second);
            }
        }
        asked
    }

    #[test]
    fn one_whose_threads_say_what_it_said_is_asked_once_a_minute() {
        assert_eq!(queries(200, true, |_| true), [60, 120, 180]);
        assert_eq!(queries(200, false, |_| false), [60, 120, 180]);
    }

    #[test]
    fn one_whose_threads_stop_or_begin_is_asked_soon_and_then_seldom() {
        let stops = queries(400, true, |second| second < 100);
        assert_eq!(stops[..3], [60, 104, 114]);
        let begins = queries(400, false, |second| second >= 100);
        assert_eq!(begins[..3], [60, 100, 110]);
        let minute_by_then = |asked: &[u64]| asked.windows(2).skip(6).all(|pair| pair[1] - pair[0] == 60);
        assert!(
            minute_by_then(&stops) && minute_by_then(&begins),
            "{stops:?} {begins:?}"
        );
    }

    #[test]
    fn where_the_kernel_counts_no_run_time_needless_questions_grow_rare_too() {
        let mut schedule = QuerySchedule::new(LIMIT);
        let mut asked = 0;
        for _ in 0..600 {
            schedule.observe(SECOND, None);
            if schedule.is_due(true) {
                schedule.queried(true, false);
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
            let asked = queries(1200, running, |second| runs[second as usize - 1]);
            prop_assert!(asked.windows(2).all(|pair| pair[1] - pair[0] <= 60));
            prop_assert!(asked.windows(2).all(|pair| pair[1] - pair[0] >= 5));
        }
    }
}
