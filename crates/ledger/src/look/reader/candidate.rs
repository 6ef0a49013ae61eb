//! What is believed of one seat after several tries. No I/O.

use std::collections::BTreeMap;

use stelia_node::counters::task::Task;

use super::super::{Bound, Counters, Seat, Thread};

/// Of the last look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) bound: BTreeMap<Thread, Bound>,
    /// Switches less those of the seat's threads and of the bound ones, when these were read last: while it is the same, no bound
    /// thread has run since. `None` where it was not known.
    pub(super) rest: Option<i128>,
}

/// The bound threads of a try.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BoundTried {
    pub(super) threads: BTreeMap<Thread, Bound>,
    /// One ended during the try: how often it ran is not known.
    pub(super) ended: bool,
}

/// What one try read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) switches: u64,
    /// The seat's threads before and after, summed.
    pub(super) own: (Task, Task),
    pub(super) bound: Option<BoundTried>,
}

impl Tried {
    /// Between which numbers [`Before::rest`] is, with these bound threads if none were read.
    fn rest(&self, known: Option<&Before>) -> (i128, i128) {
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

    /// Its doubts, fewest first.
    fn doubts(&self, before: Option<&Before>) -> Doubts {
        let (least, most) = self.rest(before);
        let stale = self.bound.is_none()
            && !before
                .and_then(|before| before.rest)
                .is_some_and(|rest| (least..=most).contains(&rest));
        Doubts {
            unknown: stale || self.bound.as_ref().is_some_and(|bound| bound.ended),
            width: most - least,
            not_read: self.bound.is_none(),
        }
    }
}

/// What is not known after a try; the order says what is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Doubts {
    /// Something ran that may have been a bound thread, and those were not read or ended.
    unknown: bool,
    /// Of the interval in which the number of other switches is.
    width: i128,
    not_read: bool,
}

/// A seat that is read.
pub(super) struct Candidate<'a> {
    pub(super) seat: &'a Seat,
    before: Option<&'a Before>,
    state: State,
    best: Option<(Doubts, Tried)>,
    needs_bound: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Settled,
    /// A CPU is offline, or a thread ended.
    Gone,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(seat: &'a Seat, before: Option<&'a Before>) -> Self {
        Self {
            seat,
            before,
            state: State::Open,
            best: None,
            needs_bound: before.is_none_or(|before| before.rest.is_none()),
        }
    }

    /// Whether another try is of use.
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether the next try has to read the bound threads.
    pub(super) fn needs_bound(&self) -> bool {
        self.is_open() && self.needs_bound
    }

    pub(super) fn gone(&mut self) {
        self.state = State::Gone;
    }

    /// Another try.
    pub(super) fn add(&mut self, tried: Tried) {
        let doubts = tried.doubts(self.before);
        // An interval may contain what there was before: the next try tells.
        self.needs_bound |= doubts.unknown;
        if !doubts.unknown && doubts.width == 0 {
            self.state = State::Settled;
        }
        if self.best.as_ref().is_none_or(|(best, _)| doubts < *best) {
            self.best = Some((doubts, tried));
        }
    }

    /// The try with the fewest doubts, and [`Before::rest`] for the next look; `None` where the seat is gone.
    pub(super) fn best(self) -> Option<(Counters, Option<i128>)> {
        let (doubts, tried) = self.best.filter(|_| self.state != State::Gone)?;
        let (rest, _) = tried.rest(self.before);
        let exact = !doubts.unknown && doubts.width == 0;
        let rest = match (exact, &tried.bound) {
            (true, _) => Some(rest),
            (false, Some(_)) => None,
            (false, None) => self.before.and_then(|before| before.rest),
        };
        let bound_read = tried.bound.is_some();
        let bound = match tried.bound {
            Some(bound) => bound.threads,
            None => self.before.map(|before| before.bound.clone()).unwrap_or_default(),
        };
        let (first, last) = tried.own;
        let counters = Counters {
            switches: tried.switches,
            own: (first.switches, last.switches),
            run_ns: last.run_ns,
            delay_ns: last.delay_ns,
            bound,
            bound_read,
            ..Counters::default()
        };
        Some((counters, rest))
    }
}
