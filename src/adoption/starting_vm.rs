//! When a container is looked at, and when what is seen there counts as a whole VM.

use std::time::{Duration, Instant};

use stelia_kubelet::ContainerCgroup;
use stelia_model as model;

use super::scan::{AdoptableVm, ScanOutcome};

/// The delay of the first look; it doubles before each further one. QEMU's vCPU threads exist some 10 ms after it made its VM.
const FIRST_SCAN_DELAY: Duration = Duration::from_millis(10);
/// How long a VM may take to have all its threads, and then how long these may change. After that it is not adopted until something
/// of it changes.
const MAX_STARTING_TIME: Duration = Duration::from_secs(30);
/// How long the threads must stay the same where the VMM's command line does not say how many vCPUs there are: they start one after the other.
const UNCOUNTED_SETTLE_TIME: Duration = Duration::from_millis(250);
/// How long the pins must stay the same: libvirt pins vCPUs once all their threads exist, after it has asked QEMU for them.
const PINNED_SETTLE_TIME: Duration = Duration::from_secs(2);
/// How often a container that makes VMs again and again counts as one that begins, at most.
const MIN_RESTART_INTERVAL: Duration = Duration::from_secs(1);

/// A container in which a VM begins, or may be.
#[derive(Debug)]
pub(super) struct StartingVm {
    pub(super) container: ContainerCgroup,
    began: Instant,
    /// `None` while a look or a call is under way.
    due: Option<Instant>,
    pause: Duration,
    /// What the last look saw, and when it was first seen like that.
    seen: Option<(AdoptableVm, Instant)>,
    /// When a look first saw all its threads.
    complete: Option<Instant>,
    /// Another VM was made there meanwhile.
    again: bool,
    cause: ScanCause,
}

/// Why a container is looked at; it decides for how long, where it has no whole VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanCause {
    /// KVM made a VM there: as long as that may take.
    VmMade,
    /// A sweep over all containers: as long, if a process in it looks like a VMM.
    Sweep,
    /// A known VM is looked at again: one look decides.
    Recheck,
}

/// What follows from a look.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    LookOn,
    /// There is no VM to adopt; `stranger`: no rule is of the container.
    Forget {
        stranger: bool,
    },
    Refuse(Box<model::Unadopted>),
    Adopt(Box<AdoptableVm>),
}

impl StartingVm {
    /// A VM was made, or may be there.
    pub(super) fn begun(container: ContainerCgroup, now: Instant) -> Self {
        Self {
            container,
            began: now,
            due: Some(now + FIRST_SCAN_DELAY),
            pause: FIRST_SCAN_DELAY,
            seen: None,
            complete: None,
            again: false,
            cause: ScanCause::VmMade,
        }
    }

    /// A container that a rule is of. Most have no VM.
    pub(super) fn swept(container: ContainerCgroup, now: Instant) -> Self {
        Self {
            cause: ScanCause::Sweep,
            due: Some(now),
            ..Self::begun(container, now)
        }
    }

    /// A VM that is known is looked at again.
    pub(super) fn known(container: ContainerCgroup, now: Instant) -> Self {
        Self {
            cause: ScanCause::Recheck,
            due: Some(now),
            ..Self::begun(container, now)
        }
    }

    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    /// When it is to be looked at.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A look begins.
    pub(super) fn look(&mut self) {
        self.due = None;
    }

    /// The rules are others: what was seen by the former ones does not make this one wait.
    pub(super) fn anew(&mut self, now: Instant) {
        self.began = now;
        self.complete = None;
        self.pause = FIRST_SCAN_DELAY;
        self.due = self.due.map(|_| now);
    }

    /// Another VM was made while this one is looked at. That may be the one that counts: libvirt has QEMU make some of its own
    /// before, to ask what it can do.
    pub(super) fn again(&mut self, now: Instant) {
        match self.due {
            Some(due) if self.began + MIN_RESTART_INTERVAL <= now => {
                *self = Self {
                    due: Some(due.min(now + FIRST_SCAN_DELAY)),
                    ..Self::begun(self.container.clone(), now)
                };
            }
            _ => self.again = true,
        }
    }

    pub(super) fn is_to_begin_again(&self) -> bool {
        self.again
    }

    /// A look ended at `now`.
    pub(super) fn saw(&mut self, looked: ScanOutcome, now: Instant) -> Next {
        match looked {
            ScanOutcome::NoRule => Next::Forget { stranger: true },
            ScanOutcome::Nothing => Next::Forget { stranger: false },
            ScanOutcome::Refused(refused) => Next::Refuse(refused),
            ScanOutcome::Waiting(waiting) => {
                self.seen = None;
                let more = match self.cause {
                    ScanCause::VmMade => true,
                    ScanCause::Sweep => waiting.is_some(),
                    ScanCause::Recheck => false,
                };
                if more && now < self.began + MAX_STARTING_TIME {
                    return self.look_in(self.pause.saturating_mul(2), now);
                }
                // Where nothing looks like a VMM there may be none.
                waiting.map_or(Next::Forget { stranger: false }, Next::Refuse)
            }
            ScanOutcome::Vm(vm) => {
                let first = match self.seen.take() {
                    Some((seen, first)) if seen.is_same(&vm) => first,
                    _ => now,
                };
                let whole = first + settling(&vm);
                if first < now && whole <= now {
                    return Next::Adopt(vm);
                }
                if *self.complete.get_or_insert(now) + MAX_STARTING_TIME <= now {
                    let text = "its vCPU threads, or where they are pinned, change from look to look".to_owned();
                    return Next::Refuse(Box::new(vm.refused("Changing", text)));
                }
                self.seen = Some((*vm, first));
                // There is something to adopt: it is looked at like one that begins.
                self.cause = ScanCause::VmMade;
                let rest = whole.saturating_duration_since(now).max(FIRST_SCAN_DELAY);
                self.look_in(rest.min(self.pause.saturating_mul(2)), now)
            }
        }
    }

    fn look_in(&mut self, pause: Duration, now: Instant) -> Next {
        self.pause = pause;
        self.due = Some(now + pause);
        Next::LookOn
    }
}

/// For how long a VM must be seen unchanged before it counts as whole.
fn settling(vm: &AdoptableVm) -> Duration {
    match vm {
        vm if vm.is_unpinned => PINNED_SETTLE_TIME,
        vm if vm.is_counted => Duration::ZERO,
        _ => UNCOUNTED_SETTLE_TIME,
    }
}

#[cfg(test)]
mod tests {
    use stelia_kubelet::PodUid;
    use stelia_node::proc::TaskId;
    use stelia_settings::{AdoptRule, ReadyMade};

    use super::*;

    const ORIGIN: &str =
        "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-a1.scope";

    fn container() -> ContainerCgroup {
        ContainerCgroup::parse(ORIGIN).unwrap()
    }

    fn vm(threads: i32, is_counted: bool, is_unpinned: bool) -> ScanOutcome {
        let task = |id: i32| TaskId { id, start: 1 };
        ScanOutcome::Vm(Box::new(AdoptableVm {
            pod: container().pod,
            pod_name: None,
            container: "compute".to_owned(),
            rule: AdoptRule::ready_made(ReadyMade::KubeVirt).unwrap(),
            process: task(20),
            threads: (0..threads)
                .map(|index| (index.unsigned_abs(), task(21 + index)))
                .collect(),
            guest: Vec::new(),
            wanted: Default::default(),
            is_unpinned,
            is_counted,
        }))
    }

    fn waiting() -> ScanOutcome {
        ScanOutcome::Waiting(Some(Box::new(refused())))
    }

    fn refused() -> model::Unadopted {
        model::Unadopted {
            pod: PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap(),
            pod_name: None,
            container: String::new(),
            rule: "kubevirt".to_owned(),
            reason: "NoVcpus".to_owned(),
            text: "no thread".to_owned(),
            since_us: 1,
        }
    }

    /// Looks whenever one is due, at what `at` says is there by then (milliseconds), until something follows; when that was, how
    /// many looks it took, and what.
    fn looks(mut starting_vm: StartingVm, began: Instant, at: impl Fn(u128) -> ScanOutcome) -> (u128, u32, Next) {
        for count in 1.. {
            let now = starting_vm.due().unwrap();
            starting_vm.look();
            let after = (now - began).as_millis();
            match starting_vm.saw(at(after), now) {
                Next::LookOn => {}
                next => return (after, count, next),
            }
        }
        unreachable!()
    }

    fn from_the_beginning(at: impl Fn(u128) -> ScanOutcome) -> (u128, u32, Next) {
        let began = Instant::now();
        looks(StartingVm::begun(container(), began), began, at)
    }

    #[test]
    fn a_vm_is_whole_when_two_looks_agree_and_longer_where_more_may_follow() {
        // QEMU's command line says how many vCPUs there are: two looks.
        let (after, count, next) = from_the_beginning(|_| vm(2, true, false));
        assert_eq!((after, count, matches!(next, Next::Adopt(_))), (20, 2, true));
        // Without it threads may still be starting.
        let (after, ..) = from_the_beginning(|after| vm(if after < 100 { 1 } else { 2 }, false, false));
        assert!((350..600).contains(&after), "{after}");
        // libvirt has not pinned the vCPUs yet, and then does.
        let (after, ..) = from_the_beginning(|after| vm(2, true, after < 400));
        assert!((400..1000).contains(&after), "{after}");
        let (after, count, next) = from_the_beginning(|_| vm(2, true, true));
        assert!((2000..2100).contains(&after) && count < 10, "{after} {count}");
        assert!(matches!(next, Next::Adopt(_)));
    }

    #[test]
    fn a_vm_that_follows_another_is_looked_at_as_soon_but_not_one_after_the_other_without_end() {
        let began = Instant::now();
        let mut starting_vm = StartingVm::begun(container(), began);
        let mut count = 0;
        let mut now = began;
        // What libvirt asks QEMU takes a while, and then the VM begins.
        while now < began + Duration::from_secs(7) {
            now = starting_vm.due().unwrap();
            starting_vm.look();
            count += 1;
            assert_eq!(starting_vm.saw(waiting(), now), Next::LookOn);
        }
        assert!(
            count < 12 && starting_vm.due().unwrap() > now + Duration::from_secs(5),
            "{count}"
        );
        starting_vm.again(now);
        assert_eq!(starting_vm.due(), Some(now + FIRST_SCAN_DELAY));
        let (after, ..) = looks(starting_vm, now, |_| vm(2, true, false));
        assert_eq!(after, 20);
        let mut starting_vm = StartingVm::begun(container(), began);
        let mut count = 0;
        for now in (0..10_000).map(|ms| began + Duration::from_millis(ms)) {
            starting_vm.again(now);
            if starting_vm.due().unwrap() <= now {
                starting_vm.look();
                count += 1;
                assert_eq!(starting_vm.saw(waiting(), now), Next::LookOn);
            }
        }
        assert!(count < 80, "{count} looks in 10 s");
    }

    #[test]
    fn with_other_rules_one_that_is_looked_at_rarely_is_looked_at_at_once() {
        let began = Instant::now();
        let mut starting_vm = StartingVm::begun(container(), began);
        let mut now = began;
        while now < began + Duration::from_secs(10) {
            now = starting_vm.due().unwrap();
            starting_vm.look();
            assert_eq!(starting_vm.saw(waiting(), now), Next::LookOn);
        }
        starting_vm.anew(now);
        assert_eq!((starting_vm.due(), starting_vm.age(now)), (Some(now), Duration::ZERO));
        let (after, ..) = looks(starting_vm, now, |_| vm(2, true, false));
        assert!(after <= 20, "{after} ms");
    }

    #[test]
    fn looks_become_rare_and_end() {
        let (after, count, next) = from_the_beginning(|_| waiting());
        assert!((30_000..60_000).contains(&after) && count < 14, "{after} {count}");
        assert_eq!(next, Next::Refuse(Box::new(refused())));
        let (_, _, next) = from_the_beginning(|_| ScanOutcome::Waiting(None));
        assert_eq!(next, Next::Forget { stranger: false });
        // Threads that come and go are no VM.
        let flips = std::cell::Cell::new(1);
        let (after, _, next) = from_the_beginning(|_| {
            flips.set(3 - flips.get());
            vm(flips.get(), false, false)
        });
        let Next::Refuse(refused) = next else {
            panic!("{next:?}")
        };
        assert_eq!((after >= 30_000, refused.reason.as_str()), (true, "Changing"));
    }

    #[test]
    fn a_vm_that_takes_longer_than_most_to_have_its_threads_is_adopted_once_they_stay_the_same() {
        // A large VM allocates its memory first.
        let late = |after: u128| if after < 25_000 { waiting() } else { vm(2, true, false) };
        let (after, _, next) = from_the_beginning(late);
        assert!(after > 30_000 && matches!(next, Next::Adopt(_)), "{after} {next:?}");
        // A guest that has and has not all threads in turn is not looked at for ever.
        let looked = std::cell::Cell::new(0);
        let (after, _, next) = from_the_beginning(|_| {
            looked.set(looked.get() + 1);
            if looked.get() % 2 == 0 {
                waiting()
            } else {
                vm(2, true, false)
            }
        });
        assert!(after < 90_000 && matches!(next, Next::Refuse(_)), "{after} {next:?}");
    }

    #[test]
    fn a_known_vm_is_looked_at_once_unless_it_is_another_now() {
        let began = Instant::now();
        let once = || StartingVm::known(container(), began);
        assert_eq!(
            looks(once(), began, |_| ScanOutcome::Nothing),
            (0, 1, Next::Forget { stranger: false })
        );
        assert_eq!(
            looks(once(), began, |_| waiting()),
            (0, 1, Next::Refuse(Box::new(refused())))
        );
        let (_, count, next) = looks(once(), began, |_| vm(2, true, false));
        assert_eq!((count, matches!(next, Next::Adopt(_))), (2, true));
    }

    #[test]
    fn of_all_containers_at_a_start_only_those_with_a_vmm_are_looked_at_twice() {
        let began = Instant::now();
        let swept = || StartingVm::swept(container(), began);
        let nothing = (0, 1, Next::Forget { stranger: false });
        assert_eq!(looks(swept(), began, |_| ScanOutcome::Waiting(None)), nothing);
        let (after, count, _) = looks(swept(), began, |_| waiting());
        assert!(after >= 30_000 && count > 5, "{after} {count}");
    }
}
