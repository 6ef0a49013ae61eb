//! The memory of a VM whose memory limit changes. Pure.

use std::time::{Duration, Instant};

use crate::resize::{Resize, ResizeOutcome};

/// How long a guest may take to plug or give up memory, before that counts as a refusal. It may still do so later.
pub(crate) const MEMORY_TIMEOUT: Duration = Duration::from_secs(60);

/// A balloon leaves a guest at least this much: with less a kernel ends its programs, or itself.
pub(crate) const LEAST_BALLOONED: u64 = 64 << 20;

/// A balloon is changed in steps of so many bytes: a guest gives and takes whole pages of its own, which on arm64 have up to 64 KiB.
pub(crate) const BALLOON_STEP: u64 = if cfg!(target_arch = "aarch64") {
    64 << 10
} else {
    4 << 10
};

/// The memory of a guest, and what its VMM can make of it. In bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GuestMemory {
    /// What the guest has.
    pub(crate) now: u64,
    /// What it was requested to have last.
    pub(crate) requested: u64,
    /// What cannot be taken away.
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// It is changed by multiples of this, from `least` on.
    pub(crate) step: u64,
}

impl GuestMemory {
    /// As much as it can have and is not more than this.
    fn at_most(&self, wanted: u64) -> u64 {
        let above = wanted.min(self.most).saturating_sub(self.least);
        self.least + above / self.step.max(1) * self.step.max(1)
    }
}

/// What follows from a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryStep {
    Nothing,
    /// Request so much, which may be less of a change than the limit's.
    Request {
        to: u64,
        wanted: u64,
    },
    /// The VMM can make no part of the change.
    Impossible {
        wanted: u64,
    },
}

/// Follows the limit and the guest's memory, and says what to request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MemoryResizer {
    limit: Option<u64>,
    /// The limit for which nothing is left to be requested.
    settled: Option<u64>,
    /// The first limit, and the guest's memory then. What the VMM needs besides is part of the limit and does not change with it.
    first: Option<(u64, u64)>,
    /// A request, and when it counts as refused.
    pending: Option<(Resize<u64>, Instant)>,
    /// A request that the guest did not answer in time. The device upholds it.
    unanswered: Option<Resize<u64>>,
}

impl MemoryResizer {
    /// The VM's limit is this; `None`: it has none, and its memory stays as it is.
    pub(crate) fn limit_is(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    pub(crate) fn is_due(&self) -> bool {
        self.limit.is_some() && self.limit != self.settled
    }

    /// What to request of a guest with this memory. The first limit changes nothing.
    pub(crate) fn step(&mut self, memory: &GuestMemory) -> MemoryStep {
        let Some(limit) = self.limit else {
            return MemoryStep::Nothing;
        };
        // A device that was plugged later changes what it has from the limit of that time on.
        let before = self.settled.unwrap_or(limit);
        let (first_limit, first_memory) = *self.first.get_or_insert((before, memory.requested));
        let wanted = first_memory.saturating_add(limit).saturating_sub(first_limit);
        let to = memory.at_most(wanted);
        if to != memory.requested {
            MemoryStep::Request { to, wanted }
        } else if wanted.abs_diff(to) < memory.step.max(1) {
            // Less than a step of the device is no change.
            self.settled = Some(limit);
            MemoryStep::Nothing
        } else {
            self.settled = Some(limit);
            MemoryStep::Impossible { wanted }
        }
    }

    /// The VMM cannot change the guest's memory at all. Returns whether that matters: the limit has changed.
    pub(crate) fn fixed(&mut self) -> bool {
        let is_changed = self.settled.is_some();
        self.settled = self.limit;
        is_changed
    }

    /// The VMM took the request. After `deadline` it counts as refused.
    pub(crate) fn requested(&mut self, memory: &GuestMemory, to: u64, deadline: Instant) -> Resize<u64> {
        let resize = Resize {
            from: memory.now,
            to,
            outcome: ResizeOutcome::Requested,
        };
        self.settled = self.limit;
        self.unanswered = None;
        self.pending = Some((resize, deadline));
        resize
    }

    /// The VMM refused the request.
    pub(crate) fn refused(&mut self, memory: &GuestMemory, to: u64) -> Resize<u64> {
        self.settled = self.limit;
        Resize {
            from: memory.now,
            to,
            outcome: ResizeOutcome::Impossible,
        }
    }

    /// The guest has so much memory. Returns the request that ended by this, or by the time.
    pub(crate) fn memory_is(&mut self, now: u64, at: Instant) -> Option<Resize<u64>> {
        if let Some(late) = self.unanswered.filter(|late| late.is_done(now)) {
            self.unanswered = None;
            let outcome = ResizeOutcome::Done;
            return Some(Resize { outcome, ..late });
        }
        let (resize, deadline) = self.pending?;
        let outcome = match (resize.is_done(now), at >= deadline) {
            (true, _) => ResizeOutcome::Done,
            (false, true) => ResizeOutcome::Refused,
            (false, false) => return None,
        };
        self.pending = None;
        let ended = Resize { outcome, ..resize };
        self.unanswered = Some(ended).filter(|ended| ended.outcome == ResizeOutcome::Refused);
        Some(ended)
    }

    /// Whether a request may still be answered in time.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether a request may still be answered, in time or later.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.pending.is_some() || self.unanswered.is_some()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    /// 4 GiB and a virtio-mem of up to 4 GiB, of which it has 1.
    const MEMORY: GuestMemory = GuestMemory {
        now: 5 * GIB,
        requested: 5 * GIB,
        least: 4 * GIB,
        most: 8 * GIB,
        step: 2 * MIB,
    };

    fn vm() -> MemoryResizer {
        let mut vm = MemoryResizer::default();
        vm.limit_is(Some(6 * GIB));
        assert!(vm.is_due());
        assert_eq!((vm.step(&MEMORY), vm.is_due()), (MemoryStep::Nothing, false));
        vm
    }

    fn request(to: u64, wanted: u64) -> MemoryStep {
        MemoryStep::Request { to, wanted }
    }

    fn has(bytes: u64) -> GuestMemory {
        GuestMemory {
            now: bytes,
            requested: bytes,
            ..MEMORY
        }
    }

    #[rstest]
    #[case("as much as was added", 7 * GIB, request(6 * GIB, 6 * GIB))]
    #[case("as much as was taken", 6 * GIB - 512 * MIB, request(5 * GIB - 512 * MIB, 5 * GIB - 512 * MIB))]
    #[case("not beyond the limit", 6 * GIB + 3 * MIB, request(5 * GIB + 2 * MIB, 5 * GIB + 3 * MIB))]
    #[case("not beyond the limit when it falls", 6 * GIB - MIB, request(5 * GIB - 2 * MIB, 5 * GIB - MIB))]
    #[case("less than a step", 6 * GIB + MIB, MemoryStep::Nothing)]
    #[case("as much as the device has", 12 * GIB, request(8 * GIB, 11 * GIB))]
    #[case("not what it was booted with", 2 * GIB, request(4 * GIB, GIB))]
    #[case("less than what the VMM needs", 0, request(4 * GIB, 0))]
    fn the_memory_follows_the_limit(#[case] why: &str, #[case] limit: u64, #[case] step: MemoryStep) {
        let mut vm = vm();
        vm.limit_is(Some(limit));
        assert!(vm.is_due(), "{why}");
        assert_eq!(vm.step(&MEMORY), step, "{why}");
    }

    #[test]
    fn it_grows_and_shrinks_by_what_the_limit_was_at_its_start() {
        let (mut vm, now) = (vm(), Instant::now());
        vm.limit_is(Some(7 * GIB));
        assert_eq!(
            vm.requested(&MEMORY, 6 * GIB, now + MEMORY_TIMEOUT).outcome,
            ResizeOutcome::Requested
        );
        assert_eq!((vm.is_due(), vm.memory_is(5 * GIB + 4, now)), (false, None));
        let done = |from, to| {
            Some(Resize {
                from,
                to,
                outcome: ResizeOutcome::Done,
            })
        };
        assert_eq!(vm.memory_is(6 * GIB, now), done(5 * GIB, 6 * GIB));
        vm.limit_is(Some(6 * GIB));
        let step = request(5 * GIB, 5 * GIB);
        assert_eq!(vm.step(&has(6 * GIB)), step);
        vm.requested(&has(6 * GIB), 5 * GIB, now + MEMORY_TIMEOUT);
        assert_eq!(vm.memory_is(5 * GIB, now), done(6 * GIB, 5 * GIB));
        assert!(!vm.is_unanswered());
    }

    #[test]
    fn a_guest_that_keeps_its_memory_is_asked_once_and_believed_later() {
        let (mut vm, now) = (vm(), Instant::now());
        vm.limit_is(Some(5 * GIB));
        vm.requested(&MEMORY, 4 * GIB, now + MEMORY_TIMEOUT);
        let refused = vm.memory_is(5 * GIB, now + MEMORY_TIMEOUT).unwrap();
        assert_eq!((refused.to, refused.outcome), (4 * GIB, ResizeOutcome::Refused));
        assert!(!vm.is_due() && vm.is_unanswered() && !vm.is_pending());
        assert_eq!(vm.memory_is(4 * GIB + 2 * MIB, now + MEMORY_TIMEOUT), None);
        let late = vm.memory_is(4 * GIB, now + MEMORY_TIMEOUT).unwrap();
        assert_eq!((late.outcome, vm.is_unanswered()), (ResizeOutcome::Done, false));
    }

    #[test]
    fn a_limit_that_changes_again_replaces_the_request() {
        let (mut vm, now) = (vm(), Instant::now());
        vm.limit_is(Some(5 * GIB));
        vm.requested(&MEMORY, 4 * GIB, now + MEMORY_TIMEOUT);
        vm.limit_is(Some(6 * GIB));
        assert!(vm.is_due());
        let asked = GuestMemory {
            requested: 4 * GIB,
            ..MEMORY
        };
        assert_eq!(vm.step(&asked), request(5 * GIB, 5 * GIB));
        vm.requested(&asked, 5 * GIB, now + MEMORY_TIMEOUT);
        assert_eq!(vm.memory_is(5 * GIB, now).unwrap().outcome, ResizeOutcome::Done);
    }

    #[test]
    fn what_no_device_can_do_is_said_once() {
        let mut vm = vm();
        let full = GuestMemory {
            most: 5 * GIB,
            ..MEMORY
        };
        vm.limit_is(Some(7 * GIB));
        assert_eq!(vm.step(&full), MemoryStep::Impossible { wanted: 6 * GIB });
        assert!(!vm.is_due());
        let mut fixed = MemoryResizer::default();
        fixed.limit_is(Some(6 * GIB));
        assert_eq!((fixed.fixed(), fixed.is_due()), (false, false));
        fixed.limit_is(Some(7 * GIB));
        assert_eq!((fixed.is_due(), fixed.fixed(), fixed.is_due()), (true, true, false));
        // A device is plugged.
        fixed.limit_is(Some(8 * GIB));
        let step = request(6 * GIB, 6 * GIB);
        assert_eq!(fixed.step(&MEMORY), step);
    }

    #[test]
    fn without_a_limit_nothing_changes() {
        let mut vm = vm();
        vm.limit_is(None);
        assert_eq!((vm.is_due(), vm.step(&MEMORY)), (false, MemoryStep::Nothing));
        vm.limit_is(Some(6 * GIB));
        assert!(!vm.is_due());
    }

    proptest::proptest! {
        /// Whatever the limits are, a request is within the device, in steps of it, and never above what the limit allows unless the guest
        /// was started with that.
        #[test]
        fn no_request_is_beyond_the_limit(
            first in 1u64..1 << 40, limits: Vec<u64>, least in 1u64..1 << 38, plugged in 0u64..64, size in 0u64..64,
        ) {
            let step = 2 * MIB;
            let requested = least + plugged.min(size) * step;
            let mut memory = GuestMemory { now: requested, requested, least, most: least + size * step, step };
            let mut vm = MemoryResizer::default();
            vm.limit_is(Some(first));
            assert_eq!(vm.step(&memory), MemoryStep::Nothing);
            for limit in limits {
                vm.limit_is(Some(limit));
                if let MemoryStep::Request { to, .. } = vm.step(&memory) {
                    assert!(to >= memory.least && to <= memory.most && (to - memory.least).is_multiple_of(step));
                    let allowed = requested.saturating_add(limit).saturating_sub(first);
                    assert!(to == memory.least || to <= allowed, "{to} of {allowed}");
                    vm.requested(&memory, to, Instant::now());
                    memory.requested = to;
                }
            }
        }
    }
}
