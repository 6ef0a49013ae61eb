//! The number of vCPUs of a VM whose number of exclusive CPUs changes. Pure.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How long a guest may take to give up vCPUs, or a VMM to start their threads, before that counts as a refusal. Linux takes well below a second.
pub(crate) const RESIZE_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of vCPUs for the container's new number of CPUs. It grows by as many as were added, so that CPUs which the VM was started
/// without, for example for I/O threads, remain; and it shrinks as far as it must. Without CPUs the VM was evicted, and keeps its vCPUs.
fn wanted_vcpus(vcpus: usize, cpus_before: usize, cpus: usize) -> usize {
    match cpus {
        0 => vcpus,
        // Before, it was evicted.
        _ if cpus_before > 0 && cpus > cpus_before => (vcpus + cpus - cpus_before).min(cpus),
        _ => vcpus.min(cpus),
    }
}

/// CPUs that an instance is about to lose: the daemon waits for its guest until the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingResize {
    /// How many it is to have.
    pub(crate) wanted: usize,
    /// In microseconds of CLOCK_MONOTONIC.
    deadline: u64,
}

impl PendingResize {
    /// `None` if the instance does not lose CPUs.
    pub(crate) fn new(now: u32, wanted: u32, deadline: u64) -> Option<PendingResize> {
        let wanted = usize::try_from(wanted).ok()?;
        (wanted < usize::try_from(now).ok()?).then_some(PendingResize { wanted, deadline })
    }

    /// How long the guest may take, at `now` microseconds of CLOCK_MONOTONIC.
    pub(crate) fn time_left(self, now: u64) -> Duration {
        Duration::from_micros(self.deadline.saturating_sub(now)).clamp(MIN_TIME, MAX_TIME)
    }
}

/// Limits of the time that the daemon's deadline leaves: one in the past, or that of another clock, gives the guest some time nevertheless.
const MIN_TIME: Duration = Duration::from_secs(1);
const MAX_TIME: Duration = Duration::from_secs(600);

/// What became of a change of the number of vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// The guest was asked to give up vCPUs, or the VMM to plug some.
    Requested,
    Done,
    /// The guest did not give up its vCPUs in time.
    Refused,
    /// The VMM has no more slots, or cannot plug.
    Impossible,
}

/// A change of the number of vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Resize {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) outcome: Outcome,
}

/// Follows the number of CPUs and of vCPUs, and says what to request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resizer {
    /// 0 before the first [`Resizer::cpus_are`].
    cpus: usize,
    /// The vCPUs that the VM has, and that it shall have.
    vcpus: usize,
    target: usize,
    /// A request, and when it counts as refused.
    pending: Option<(Resize, Instant)>,
    /// A target that is not requested again: it was refused, or is impossible.
    given_up: Option<usize>,
    /// A request for fewer vCPUs that the guest did not answer in time. It may still do so: the request cannot be taken back.
    unanswered: Option<Resize>,
}

impl Resizer {
    /// The container has so many exclusive CPUs.
    pub(crate) fn cpus_are(&mut self, cpus: usize) {
        if self.cpus > 0 && self.cpus != cpus {
            self.target = wanted_vcpus(self.target, self.cpus, cpus);
            self.given_up = None;
        }
        if cpus > 0 {
            self.cpus = cpus;
        }
    }

    /// The VM has so many vCPUs. Returns the request that ended by this, or by the time.
    pub(crate) fn vcpus_are(&mut self, vcpus: usize, now: Instant) -> Option<Resize> {
        let before = std::mem::replace(&mut self.vcpus, vcpus);
        let Some((resize, deadline)) = self.pending else {
            return if vcpus == before {
                None
            } else {
                self.changed_unasked(before)
            };
        };
        let is_done = match resize.to > resize.from {
            true => vcpus >= resize.to,
            false => vcpus <= resize.to,
        };
        let outcome = match (is_done, now >= deadline) {
            (true, _) => Outcome::Done,
            (false, true) => Outcome::Refused,
            (false, false) => return None,
        };
        self.pending = None;
        let ended = Resize { outcome, ..resize };
        if outcome == Outcome::Refused {
            self.given_up = Some(resize.to);
            self.unanswered = Some(ended).filter(|ended| ended.to < ended.from);
        } else {
            self.unanswered = None;
        }
        Some(ended)
    }

    /// The number of vCPUs changed without a request that waits for it.
    fn changed_unasked(&mut self, before: usize) -> Option<Resize> {
        let late = self
            .unanswered
            .filter(|late| self.vcpus < before && self.vcpus >= late.to);
        let Some(late) = late else {
            // Plugged or unplugged by another program.
            self.target = self.vcpus;
            self.unanswered = None;
            return None;
        };
        // The target stays. What the CPUs would allow by now is requested again.
        self.given_up = self.given_up.filter(|target| *target < self.vcpus);
        if self.vcpus > late.to {
            return None;
        }
        self.unanswered = None;
        Some(Resize {
            outcome: Outcome::Done,
            ..late
        })
    }

    /// The change to request: from this number of vCPUs to that.
    pub(crate) fn step(&self) -> Option<(usize, usize)> {
        let is_due = self.pending.is_none() && self.target != self.vcpus && self.given_up != Some(self.target);
        is_due.then_some((self.vcpus, self.target))
    }

    /// The change was requested; `to` may be less of a change than the step. After `deadline` it counts as refused.
    pub(crate) fn requested(&mut self, to: usize, deadline: Instant) -> Resize {
        let resize = Resize {
            from: self.vcpus,
            to,
            outcome: Outcome::Requested,
        };
        self.pending = Some((resize, deadline));
        resize
    }

    /// The VMM cannot make the change.
    pub(crate) fn impossible(&mut self) -> Resize {
        self.given_up = Some(self.target);
        Resize {
            from: self.vcpus,
            to: self.target,
            outcome: Outcome::Impossible,
        }
    }

    /// How many vCPUs the guest was asked for and has not given up.
    pub(crate) fn owed(&self) -> Option<usize> {
        let (resize, _) = self.pending.filter(|(resize, _)| resize.to < resize.from)?;
        self.vcpus.checked_sub(resize.to).filter(|owed| *owed > 0)
    }

    /// When the pending request counts as refused.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.pending.map(|(_, deadline)| deadline)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("as many as were added", 2, 2, 4, 4)]
    #[case("what it was started without remains", 2, 3, 5, 4)]
    #[case("never more vCPUs than CPUs", 4, 2, 4, 4)]
    #[case("the guest gave up none before", 4, 2, 3, 3)]
    #[case("as few as there are CPUs", 4, 4, 2, 2)]
    #[case("a CPU less that no vCPU had", 2, 4, 3, 2)]
    #[case("other CPUs", 2, 2, 2, 2)]
    #[case("evicted", 2, 2, 0, 2)]
    #[case("back after an eviction", 2, 0, 3, 2)]
    fn the_number_of_vcpus_follows_the_number_of_cpus(
        #[case] why: &str,
        #[case] vcpus: usize,
        #[case] before: usize,
        #[case] now: usize,
        #[case] wanted: usize,
    ) {
        assert_eq!(wanted_vcpus(vcpus, before, now), wanted, "{why}");
    }

    fn vm(cpus: usize, vcpus: usize) -> (Resizer, Instant) {
        let (mut vm, now) = (Resizer::default(), Instant::now());
        vm.vcpus_are(vcpus, now);
        vm.cpus_are(cpus);
        assert_eq!(vm.step(), None);
        (vm, now)
    }

    fn resize(from: usize, to: usize, outcome: Outcome) -> Resize {
        Resize { from, to, outcome }
    }

    #[test]
    fn it_grows_and_shrinks_with_its_cpus() {
        let (mut vm, now) = vm(2, 2);
        vm.cpus_are(4);
        assert_eq!(vm.step(), Some((2, 4)));
        vm.requested(4, now + RESIZE_TIMEOUT);
        assert_eq!((vm.step(), vm.vcpus_are(3, now)), (None, None));
        assert_eq!(vm.vcpus_are(4, now), Some(resize(2, 4, Outcome::Done)));
        vm.cpus_are(2);
        assert_eq!((vm.step(), vm.owed()), (Some((4, 2)), None));
        vm.requested(2, now + RESIZE_TIMEOUT);
        assert_eq!(vm.vcpus_are(2, now), Some(resize(4, 2, Outcome::Done)));
        assert_eq!(vm.step(), None);
    }

    #[test]
    fn a_guest_that_refuses_is_asked_once_for_each_number() {
        let (mut vm, now) = vm(4, 4);
        vm.cpus_are(2);
        vm.requested(2, now + RESIZE_TIMEOUT);
        assert_eq!(vm.vcpus_are(4, now), None);
        let late = now + RESIZE_TIMEOUT;
        assert_eq!(vm.vcpus_are(4, late), Some(resize(4, 2, Outcome::Refused)));
        vm.cpus_are(2);
        assert_eq!(vm.step(), None);
        vm.cpus_are(3);
        assert_eq!(vm.step(), Some((4, 3)));
        vm.cpus_are(4);
        assert_eq!(vm.step(), None);
    }

    #[test]
    fn cpus_that_come_back_while_the_guest_gives_up_its_vcpus_are_plugged_when_it_has() {
        let (mut vm, now) = vm(4, 4);
        vm.cpus_are(2);
        vm.requested(2, now + RESIZE_TIMEOUT);
        vm.cpus_are(4);
        assert_eq!(vm.step(), None);
        assert_eq!(vm.vcpus_are(2, now), Some(resize(4, 2, Outcome::Done)));
        assert_eq!(vm.step(), Some((2, 4)));
    }

    #[test]
    fn what_another_program_plugs_stays() {
        let (mut vm, now) = vm(2, 1);
        vm.vcpus_are(2, now);
        assert_eq!(vm.step(), None);
        vm.vcpus_are(1, now);
        assert_eq!(vm.step(), None);
    }

    #[test]
    fn a_vm_without_slots_is_left_as_it_is() {
        let (mut vm, now) = vm(2, 2);
        vm.cpus_are(5);
        // It had one slot.
        vm.requested(3, now + RESIZE_TIMEOUT);
        assert_eq!(vm.vcpus_are(3, now), Some(resize(2, 3, Outcome::Done)));
        assert_eq!(vm.step(), Some((3, 5)));
        assert_eq!(vm.impossible(), resize(3, 5, Outcome::Impossible));
        assert_eq!(vm.step(), None);
    }

    #[test]
    fn an_evicted_vm_keeps_its_vcpus() {
        let (mut vm, _) = vm(2, 2);
        vm.cpus_are(0);
        vm.cpus_are(2);
        assert_eq!(vm.step(), None);
    }

    #[test]
    fn a_guest_that_answers_late_is_believed() {
        let (mut vm, now) = vm(4, 4);
        vm.cpus_are(2);
        vm.requested(2, now + RESIZE_TIMEOUT);
        let late = now + RESIZE_TIMEOUT;
        assert_eq!(vm.vcpus_are(4, late), Some(resize(4, 2, Outcome::Refused)));
        assert_eq!((vm.vcpus_are(3, late), vm.step()), (None, None));
        assert_eq!(vm.vcpus_are(2, late), Some(resize(4, 2, Outcome::Done)));
        assert_eq!(vm.step(), None);
    }

    #[test]
    fn vcpus_that_go_after_their_cpus_came_back_are_plugged_again() {
        let (mut vm, now) = vm(4, 4);
        vm.cpus_are(2);
        vm.requested(2, now + RESIZE_TIMEOUT);
        vm.vcpus_are(4, now + RESIZE_TIMEOUT);
        vm.cpus_are(4);
        assert_eq!(vm.step(), None);
        assert_eq!(vm.vcpus_are(2, now), Some(resize(4, 2, Outcome::Done)));
        assert_eq!(vm.step(), Some((2, 4)));
    }

    #[test]
    fn cpus_that_change_again_while_a_request_waits_are_the_next_request() {
        let (mut vm, now) = vm(4, 4);
        vm.cpus_are(3);
        vm.requested(3, now + RESIZE_TIMEOUT);
        vm.cpus_are(2);
        assert_eq!(vm.step(), None);
        assert_eq!(vm.vcpus_are(3, now), Some(resize(4, 3, Outcome::Done)));
        assert_eq!(vm.step(), Some((3, 2)));
        // And if it is refused.
        vm.requested(2, now + RESIZE_TIMEOUT);
        vm.cpus_are(1);
        assert_eq!(
            vm.vcpus_are(3, now + RESIZE_TIMEOUT),
            Some(resize(3, 2, Outcome::Refused))
        );
        assert_eq!(vm.step(), Some((3, 1)));
    }

    #[test]
    fn a_deadline_of_the_daemons_leaves_some_time_and_not_for_ever() {
        let at = |deadline: u64| PendingResize::new(4, 2, deadline).unwrap();
        assert_eq!(at(35_000_000).time_left(5_000_000), Duration::from_secs(30));
        assert_eq!(at(35_000_000).time_left(34_999_999), MIN_TIME);
        assert_eq!(at(0).time_left(5), MIN_TIME);
        assert_eq!(at(u64::MAX).time_left(5), MAX_TIME);
        for none in [(0, 0, 0), (2, 2, 9), (2, 4, 9)] {
            assert_eq!(PendingResize::new(none.0, none.1, none.2), None);
        }
    }

    #[test]
    fn a_request_ends_at_its_own_deadline() {
        let (mut vm, now) = vm(2, 2);
        vm.cpus_are(1);
        let deadline = now + Duration::from_secs(90);
        vm.requested(1, deadline);
        assert_eq!(
            (vm.deadline(), vm.vcpus_are(2, now + RESIZE_TIMEOUT)),
            (Some(deadline), None)
        );
        assert_eq!(vm.vcpus_are(2, deadline), Some(resize(2, 1, Outcome::Refused)));
        assert_eq!(vm.deadline(), None);
    }

    proptest::proptest! {
        /// Whatever happens, a VM is never asked for no vCPU, and for more vCPUs than CPUs only where it has them already.
        #[test]
        fn no_request_is_beyond_the_cpus(events: Vec<(bool, u8, bool)>, vcpus in 1usize..8, cpus in 1usize..8) {
            let (mut vm, now) = (Resizer::default(), Instant::now());
            let (mut has, mut given) = (vcpus, cpus);
            vm.vcpus_are(has, now);
            vm.cpus_are(given);
            for (of_cpus, number, obeys) in events {
                let number = usize::from(number % 9);
                match of_cpus {
                    true => {
                        vm.cpus_are(number);
                        given = if number > 0 { number } else { given };
                    }
                    false => {
                        vm.vcpus_are(number.max(1), now);
                        has = number.max(1);
                    }
                }
                if let Some((from, to)) = vm.step() {
                    assert!(from == has && to > 0 && (to <= given.max(has)), "{from} to {to} on {given}");
                    vm.requested(to, now);
                    has = if obeys { to } else { has };
                    let ended = vm.vcpus_are(has, now);
                    assert!(ended.is_some_and(|ended| (ended.outcome == Outcome::Done) == obeys), "{ended:?}");
                }
            }
        }
    }
}
