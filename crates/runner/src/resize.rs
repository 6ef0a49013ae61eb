//! The number of vCPUs of a VM whose number of exclusive CPUs changes. Pure.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How long a guest may take to give up vCPUs, or a VMM to start their threads, before that counts as a refusal. Linux takes well below a second.
pub(crate) const RESIZE_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of vCPUs for the container's new number of CPUs. It grows with the CPUs except for `extra` CPUs that the VM was started with
/// beyond its vCPUs, for example for I/O threads; and it shrinks as far as it must. Without CPUs the VM was evicted, and keeps its vCPUs.
fn wanted_vcpus(vcpus: usize, extra: usize, cpus_before: usize, cpus: usize) -> usize {
    match cpus {
        0 => vcpus,
        // Before, it was evicted.
        _ if cpus_before > 0 && cpus > cpus_before => vcpus.max(cpus.saturating_sub(extra)).min(cpus),
        _ => vcpus.min(cpus),
    }
}

/// CPUs that an instance is about to lose: the daemon waits for its guest until the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuLoss {
    /// How many it is to have.
    pub(crate) remaining: usize,
    /// In microseconds of CLOCK_MONOTONIC.
    deadline: u64,
}

impl CpuLoss {
    /// `None` if the instance does not lose CPUs.
    pub(crate) fn new(now: u32, remaining: u32, deadline: u64) -> Option<CpuLoss> {
        let remaining = usize::try_from(remaining).ok()?;
        (remaining < usize::try_from(now).ok()?).then_some(CpuLoss { remaining, deadline })
    }

    /// How long the guest may take, at `now` microseconds of CLOCK_MONOTONIC.
    pub(crate) fn time_left(self, now: u64) -> Duration {
        Duration::from_micros(self.deadline.saturating_sub(now)).clamp(MIN_UNPLUG_TIME, MAX_UNPLUG_TIME)
    }
}

/// Limits of the time that the daemon's deadline leaves: one in the past, or that of another clock, gives the guest some time nevertheless.
const MIN_UNPLUG_TIME: Duration = Duration::from_secs(1);
const MAX_UNPLUG_TIME: Duration = Duration::from_secs(600);

/// What became of a change of the number of vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ResizeOutcome {
    /// The guest was asked to give up vCPUs, or the VMM to plug some.
    Requested,
    Done,
    /// The guest did not give up its vCPUs in time.
    Refused,
    /// The VMM has no more slots, or cannot plug.
    Impossible,
}

/// A change of the number of vCPUs, or of the bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Resize<T = usize> {
    pub(crate) from: T,
    pub(crate) to: T,
    pub(crate) outcome: ResizeOutcome,
}

impl<T: PartialOrd> Resize<T> {
    pub(crate) fn is_done(&self, now: T) -> bool {
        if self.to > self.from {
            now >= self.to
        } else {
            now <= self.to
        }
    }
}

/// Follows the number of CPUs and of vCPUs, and says what to request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resizer {
    /// The CPUs that the VM has, or will have when those that it is about to lose are gone. 0 before the first [`Resizer::set_cpus`].
    cpus: usize,
    /// The CPUs that it has now.
    cpus_now: usize,
    /// The CPUs that it was started with beyond its vCPUs.
    extra: usize,
    /// The vCPUs that the VM has, and that it shall have.
    vcpus: usize,
    target: usize,
    /// A request, and when it counts as refused.
    pending: Option<(Resize, Instant)>,
    /// A target that is not requested again: it was refused, or is impossible.
    given_up: Option<(usize, ResizeOutcome)>,
    /// A request for fewer vCPUs that the guest did not answer in time. It may still do so: the request cannot be taken back.
    unanswered: Option<Resize>,
}

impl Resizer {
    /// The container has so many exclusive CPUs, of which `remaining` remain if it is about to lose some.
    pub(crate) fn set_cpus(&mut self, cpus_now: usize, remaining: usize) {
        let cpus = cpus_now.min(remaining);
        self.cpus_now = cpus_now;
        if self.cpus == 0 {
            self.extra = cpus_now.saturating_sub(self.vcpus);
        }
        if self.cpus > 0 && self.cpus != cpus {
            self.target = wanted_vcpus(self.target, self.extra, self.cpus, cpus);
            self.given_up = None;
        }
        if cpus > 0 {
            self.cpus = cpus;
        }
    }

    /// The VM has so many vCPUs. Returns the request that ended by this, or by the time.
    pub(crate) fn set_vcpus(&mut self, vcpus: usize, now: Instant) -> Option<Resize> {
        let before = std::mem::replace(&mut self.vcpus, vcpus);
        let Some((resize, deadline)) = self.pending else {
            return if vcpus == before {
                None
            } else {
                self.changed_unasked(before)
            };
        };
        let outcome = match (resize.is_done(vcpus), now >= deadline) {
            (true, _) => ResizeOutcome::Done,
            (false, true) => ResizeOutcome::Refused,
            (false, false) => return None,
        };
        self.pending = None;
        let ended = Resize { outcome, ..resize };
        if outcome == ResizeOutcome::Refused {
            self.given_up = Some((resize.to, outcome));
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
            // The first number, or plugged or unplugged by another program.
            self.extra = self.cpus_now.saturating_sub(self.vcpus);
            self.target = if self.cpus < self.cpus_now {
                self.vcpus.min(self.cpus)
            } else {
                self.vcpus
            };
            self.unanswered = None;
            return None;
        };
        // The target stays. What the CPUs would allow by now is requested again.
        self.given_up = self
            .given_up
            .filter(|(target, outcome)| *target < self.vcpus && *outcome == ResizeOutcome::Refused);
        if self.vcpus > late.to {
            return None;
        }
        self.unanswered = None;
        Some(Resize {
            outcome: ResizeOutcome::Done,
            ..late
        })
    }

    /// The change to request: from this number of vCPUs to that.
    pub(crate) fn step(&self) -> Option<(usize, usize)> {
        let is_due = self.pending.is_none()
            && self.target != self.vcpus
            && self.given_up.map(|(target, _)| target) != Some(self.target);
        is_due.then_some((self.vcpus, self.target))
    }

    /// The change was requested; `to` may be less of a change than the step. After `deadline` it counts as refused.
    pub(crate) fn requested(&mut self, to: usize, deadline: Instant) -> Resize {
        let resize = Resize {
            from: self.vcpus,
            to,
            outcome: ResizeOutcome::Requested,
        };
        self.pending = Some((resize, deadline));
        resize
    }

    /// The VMM cannot make the change.
    pub(crate) fn impossible(&mut self) -> Resize {
        self.given_up = Some((self.target, ResizeOutcome::Impossible));
        Resize {
            from: self.vcpus,
            to: self.target,
            outcome: ResizeOutcome::Impossible,
        }
    }

    /// How many vCPUs the guest was asked for and has not given up, as far as they are still superfluous.
    pub(crate) fn not_given_up(&self) -> Option<usize> {
        let (resize, _) = self.pending.filter(|(resize, _)| resize.to < resize.from)?;
        let count = self.vcpus.checked_sub(resize.to.max(self.target))?;
        (count > 0).then_some(count)
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
        let extra = before.saturating_sub(vcpus);
        assert_eq!(wanted_vcpus(vcpus, extra, before, now), wanted, "{why}");
    }

    /// What follows from each event of a VM's life: the request that ended, the change to request, and `keeps` with the vCPUs that the guest
    /// was asked for and has. `late` are the vCPUs at the deadline; of `cpus 4-2` two remain.
    fn life(events: &str) -> String {
        let (mut vm, now) = (Resizer::default(), Instant::now());
        let mut told = Vec::new();
        for event in events.split(", ").map(|event| event.split(" =>").next().unwrap()) {
            let (what, numbers) = event.split_once(' ').unwrap_or((event, "0"));
            let (first, second) = numbers.split_once('-').unwrap_or((numbers, numbers));
            let (number, remaining): (usize, usize) = (first.parse().unwrap(), second.parse().unwrap());
            let mut ended = None;
            match what {
                "cpus" => vm.set_cpus(number, remaining),
                "vcpus" => ended = vm.set_vcpus(number, now),
                "late" => ended = vm.set_vcpus(number, now + RESIZE_TIMEOUT),
                "ask" => _ = vm.requested(number, now + RESIZE_TIMEOUT),
                "impossible" => ended = Some(vm.impossible()),
                other => panic!("{other}"),
            }
            let ended = ended.map(|ended| format!(" {:?} {}-{}", ended.outcome, ended.from, ended.to));
            let due = vm.step().map(|(from, to)| format!(" {from}-{to}"));
            let kept = vm.not_given_up().map(|count| format!(" keeps {count}"));
            let follows: String = [ended, due, kept].into_iter().flatten().collect();
            let follows = if follows.is_empty() {
                follows
            } else {
                format!(" =>{follows}")
            };
            told.push(format!("{event}{follows}"));
        }
        told.join(", ")
    }

    #[test]
    fn what_is_requested_follows_cpus_vcpus_and_answers() {
        for events in [
            // It grows and shrinks with its CPUs.
            "vcpus 2, cpus 2, cpus 4 => 2-4, ask 4, vcpus 3, vcpus 4 => Done 2-4, cpus 2 => 4-2, ask 2 => keeps 2, vcpus 2 => Done 4-2",
            // A guest that refuses is asked once for each number.
            "vcpus 4, cpus 4, cpus 2 => 4-2, ask 2 => keeps 2, vcpus 4 => keeps 2, late 4 => Refused 4-2, cpus 2, cpus 3 => 4-3, cpus 4",
            // CPUs come back while the guest gives up its vCPUs: those are plugged when it has.
            "vcpus 4, cpus 4, cpus 2 => 4-2, ask 2 => keeps 2, cpus 4, vcpus 2 => Done 4-2 2-4",
            // What another program plugs stays.
            "vcpus 1, cpus 2, vcpus 2, vcpus 1",
            // It had one slot, and is left as it is.
            "vcpus 2, cpus 2, cpus 5 => 2-5, ask 3, vcpus 3 => Done 2-3 3-5, impossible => Impossible 3-5",
            // Two of its CPUs are for I/O threads, or for nothing: it has no more vCPUs after a resize there and back.
            "vcpus 2, cpus 4, cpus 3, cpus 4",
            "vcpus 2, cpus 4, cpus 2, cpus 4",
            "vcpus 2, cpus 4, cpus 4-1 => 2-1, ask 1 => keeps 1, late 2 => Refused 2-1, cpus 4, cpus 6 => 2-4",
            // A loss of CPUs was announced before the first look.
            "cpus 4-2, vcpus 4 => 4-2, ask 2 => keeps 2, vcpus 2 => Done 4-2, cpus 2",
            // A guest is not asked again for vCPUs whose CPUs came back.
            "vcpus 4, cpus 4, cpus 4-2 => 4-2, ask 2 => keeps 2, cpus 3 => keeps 1, cpus 4",
            // Cloud Hypervisor takes no request before the guest has answered the last one: what was impossible is tried again.
            "vcpus 4, cpus 4, cpus 3 => 4-3, ask 3 => keeps 1, late 4 => Refused 4-3, cpus 2 => 4-2, impossible => Impossible 4-2, \
             vcpus 3 => Done 4-3 3-2",
            // An evicted VM keeps its vCPUs.
            "vcpus 2, cpus 2, cpus 0, cpus 2",
            // A guest that answers late is believed.
            "vcpus 4, cpus 4, cpus 2 => 4-2, ask 2 => keeps 2, late 4 => Refused 4-2, late 3, late 2 => Done 4-2",
            // vCPUs that go after their CPUs came back are plugged again.
            "vcpus 4, cpus 4, cpus 2 => 4-2, ask 2 => keeps 2, late 4 => Refused 4-2, cpus 4, vcpus 2 => Done 4-2 2-4",
            // CPUs that change again while a request waits are the next request, and if it is refused.
            "vcpus 4, cpus 4, cpus 3 => 4-3, ask 3 => keeps 1, cpus 2 => keeps 1, vcpus 3 => Done 4-3 3-2, ask 2 => keeps 1, \
             cpus 1 => keeps 1, late 3 => Refused 3-2 3-1",
        ] {
            assert_eq!(life(events), events);
        }
    }

    #[test]
    fn a_deadline_of_the_daemons_leaves_some_time_and_not_for_ever() {
        let at = |deadline: u64| CpuLoss::new(4, 2, deadline).unwrap();
        assert_eq!(at(35_000_000).time_left(5_000_000), Duration::from_secs(30));
        assert_eq!(at(35_000_000).time_left(34_999_999), MIN_UNPLUG_TIME);
        assert_eq!(at(0).time_left(5), MIN_UNPLUG_TIME);
        assert_eq!(at(u64::MAX).time_left(5), MAX_UNPLUG_TIME);
        for none in [(0, 0, 0), (2, 2, 9), (2, 4, 9)] {
            assert_eq!(CpuLoss::new(none.0, none.1, none.2), None);
        }
    }

    #[test]
    fn a_request_ends_at_its_own_deadline() {
        let (mut vm, now) = (Resizer::default(), Instant::now());
        vm.set_vcpus(2, now);
        vm.set_cpus(2, 2);
        vm.set_cpus(1, 1);
        let deadline = now + Duration::from_secs(90);
        vm.requested(1, deadline);
        assert_eq!(
            (vm.deadline(), vm.set_vcpus(2, now + RESIZE_TIMEOUT)),
            (Some(deadline), None)
        );
        let (from, to, outcome) = (2, 1, ResizeOutcome::Refused);
        assert_eq!(vm.set_vcpus(2, deadline), Some(Resize { from, to, outcome }));
        assert_eq!(vm.deadline(), None);
    }

    proptest::proptest! {
        /// Whatever happens, a VM is never asked for no vCPU, and for more vCPUs than CPUs only where it has them already.
        #[test]
        fn no_request_is_beyond_the_cpus(events: Vec<(bool, u8, bool)>, vcpus in 1usize..8, cpus in 1usize..8) {
            let (mut vm, now) = (Resizer::default(), Instant::now());
            let (mut has, mut given) = (vcpus, cpus);
            vm.set_vcpus(has, now);
            vm.set_cpus(given, given);
            for (of_cpus, number, obeys) in events {
                let number = usize::from(number % 9);
                if of_cpus {
                        vm.set_cpus(number, number);
                        given = if number > 0 { number } else { given };
                    } else {
                        vm.set_vcpus(number.max(1), now);
                        has = number.max(1);
                    }
                if let Some((from, to)) = vm.step() {
                    assert!(from == has && to > 0 && (to <= given.max(has)), "{from} to {to} on {given}");
                    vm.requested(to, now);
                    has = if obeys { to } else { has };
                    let ended = vm.set_vcpus(has, now);
                    assert!(ended.is_some_and(|ended| (ended.outcome == ResizeOutcome::Done) == obeys), "{ended:?}");
                }
            }
        }
    }
}
