//! Chooses the counters of one seat from several attempts. No I/O.

use std::collections::BTreeMap;

use stelia_kernel::counters::task::Task;

use super::super::{Bound, Counters, Seat, TaskId};
use super::container::{ContainerAttempt, ContainerState, MAX_TASK_FILES, NotRead};

/// A seat in the last sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PreviousSample {
    pub(super) bound: BTreeMap<TaskId, Bound>,
    /// Switches minus those of the seat's threads and of the bound threads, when the latter were last read. While it is unchanged, no
    /// bound thread has run since. `None` if it was not exact.
    pub(super) rest: Option<i128>,
    /// The tasks of a container.
    pub(super) container: Option<ContainerState>,
}

/// The bound threads, as one attempt read them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BoundAttempt {
    pub(super) threads: BTreeMap<TaskId, Bound>,
    /// Whether a thread ended during the attempt, so that its switch-ins are not known.
    pub(super) ended: bool,
}

/// A seat in one attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) switches: u64,
    /// The seat's threads before and after, summed.
    pub(super) own: (Task, Task),
    pub(super) bound: Option<BoundAttempt>,
    /// The tasks of a container, whose sums are [`own`](Self::own).
    pub(super) container: Option<ContainerAttempt>,
}

impl Attempt {
    /// Bounds of [`PreviousSample::rest`]; `known` has the bound threads if none were read.
    fn rest(&self, known: Option<&PreviousSample>) -> (i128, i128) {
        let threads = match (&self.bound, known) {
            (Some(bound), _) => Some(&bound.threads),
            (None, known) => known.map(|known| &known.bound),
        };
        let bound = threads
            .into_iter()
            .flat_map(BTreeMap::values)
            .map(|bound| bound.switches);
        let all = bound.chain([(self.own.0.switches, self.own.1.switches)]);
        let (least, most) = all.fold((0, 0), |sum, (first, last)| {
            (sum.0 + i128::from(first), sum.1 + i128::from(last))
        });
        let switches = i128::from(self.switches);
        (switches - most, switches - least)
    }

    /// How uncertain this attempt is.
    fn uncertainty(&self, before: Option<&PreviousSample>) -> Uncertainty {
        let (least, most) = self.rest(before);
        let stale = self.bound.is_none()
            && !before
                .and_then(|before| before.rest)
                .is_some_and(|rest| (least..=most).contains(&rest));
        Uncertainty {
            unknown: stale || self.bound.as_ref().is_some_and(|bound| bound.ended),
            width: most - least,
            not_read: self.bound.is_none(),
            not_still: self.container.as_ref().is_some_and(|container| !container.is_still),
        }
    }
}

/// How uncertain an attempt is; the greater value is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Uncertainty {
    /// Something ran that may have been a bound thread, and those were not read or ended.
    unknown: bool,
    /// The width of the interval that contains the number of other switches.
    width: i128,
    not_read: bool,
    /// Tasks of a container ran, so that those that ended unseen do not show.
    not_still: bool,
}

/// A seat that is being read, and its best attempt so far.
pub(super) struct Candidate<'a> {
    pub(super) seat: &'a Seat,
    before: Option<&'a PreviousSample>,
    state: State,
    best: Option<(Uncertainty, Attempt)>,
    needs_bound: bool,
    /// Files of a container's tasks that were read.
    task_files: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Settled,
    /// A CPU is offline, a thread ended, or a container was not read.
    NotRead(NotRead),
}

impl<'a> Candidate<'a> {
    pub(super) fn new(seat: &'a Seat, before: Option<&'a PreviousSample>) -> Self {
        Self {
            seat,
            before,
            state: State::Open,
            best: None,
            needs_bound: before.is_none_or(|before| before.rest.is_none()),
            task_files: 0,
        }
    }

    /// Whether another attempt may be better.
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether the next attempt has to read the bound threads.
    pub(super) fn needs_bound(&self) -> bool {
        self.is_open() && self.needs_bound
    }

    /// The container's tasks in the last sample.
    pub(super) fn known_container(&self) -> Option<&'a ContainerState> {
        self.before.and_then(|before| before.container.as_ref())
    }

    pub(super) fn set_not_read(&mut self, why: NotRead) {
        self.state = State::NotRead(why);
    }

    pub(super) fn has_too_many_tasks(&self) -> bool {
        self.state == State::NotRead(NotRead::TooMany)
    }

    pub(super) fn add(&mut self, attempt: Attempt) {
        let uncertainty = attempt.uncertainty(self.before);
        // The interval may contain the previous value; the next attempt decides.
        self.needs_bound |= uncertainty.unknown;
        self.task_files += attempt.container.as_ref().map_or(0, |container| container.files);
        let is_certain = !uncertainty.unknown && uncertainty.width == 0 && !uncertainty.not_still;
        if is_certain || self.task_files >= MAX_TASK_FILES {
            self.state = State::Settled;
        }
        if self.best.as_ref().is_none_or(|(best, _)| uncertainty < *best) {
            self.best = Some((uncertainty, attempt));
        }
    }

    /// The most certain attempt, and for the next sample [`PreviousSample::rest`] and the container's tasks; `None` if the seat was not read.
    pub(super) fn best(self) -> Option<(Counters, Option<i128>, Option<ContainerState>)> {
        let is_read = !matches!(self.state, State::NotRead(_));
        let (uncertainty, attempt) = self.best.filter(|_| is_read)?;
        let (rest, _) = attempt.rest(self.before);
        let exact = !uncertainty.unknown && uncertainty.width == 0;
        let rest = match (exact, &attempt.bound) {
            (true, _) => Some(rest),
            (false, Some(_)) => None,
            (false, None) => self.before.and_then(|before| before.rest),
        };
        let bound_read = attempt.bound.is_some();
        let bound = match attempt.bound {
            Some(bound) => bound.threads,
            None => self.before.map(|before| before.bound.clone()).unwrap_or_default(),
        };
        let (first, last) = attempt.own;
        let counters = Counters {
            switches: attempt.switches,
            own: (first.switches, last.switches),
            own_incomplete: attempt
                .container
                .as_ref()
                .is_some_and(|container| container.is_incomplete),
            run_ns: last.run_ns,
            delay_ns: last.delay_ns,
            bound,
            bound_read,
            ..Counters::default()
        };
        Some((counters, rest, attempt.container.map(|container| container.state)))
    }
}
