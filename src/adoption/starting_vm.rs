//! Decides when a container is scanned, and when its VM counts as complete.

use std::time::{Duration, Instant};

use stelia_kubelet::ContainerCgroup;
use stelia_model as model;
use stelia_settings::Isolation;

use super::scan::{Adoptable, ScanOutcome};
use crate::engine::Adopting;

/// The delay of the first scan. It doubles before each further one. QEMU's vCPU threads exist some 10 ms after it created its VM.
const FIRST_SCAN_DELAY: Duration = Duration::from_millis(10);
/// How long a VM may take to have all its threads, and then how long these may change. After that it is only adopted once something
/// about it changes.
const MAX_STARTING_TIME: Duration = Duration::from_secs(30);
/// How long the threads must stay the same if the VMM's command line does not have the number of vCPUs: they start one after the other.
const UNCOUNTED_SETTLE_TIME: Duration = Duration::from_millis(250);
/// How long the pins must stay the same: libvirt pins vCPUs once all their threads exist, after it has asked QEMU for them.
const PINNED_SETTLE_TIME: Duration = Duration::from_secs(2);
/// How long a VM in a container that becomes a partition must stay the same. Until virt-handler has reported a VM as running, it pins KVM's
/// timer thread to a CPU of the VM (`affinePitThread`), which the kernel refuses once that is a partition's.
const OWNER_SETTLE_TIME: Duration = Duration::from_secs(5);
/// The shortest time after which a container that creates VMs repeatedly is treated as one with a new VM.
const MIN_RESTART_INTERVAL: Duration = Duration::from_secs(1);

/// A container in which a VM starts or may be running.
#[derive(Debug)]
pub(super) struct StartingVm {
    pub(super) container: ContainerCgroup,
    began: Instant,
    /// When the next scan is due; `None` while a scan or a call is under way.
    due: Option<Instant>,
    pause: Duration,
    /// The VM of the last scan, and when a scan first had it like that.
    last_scan: Option<(Adoptable, Instant)>,
    /// When a scan first had all its threads.
    complete_since: Option<Instant>,
    /// Whether another VM was created in it meanwhile.
    has_newer_vm: bool,
    cause: ScanCause,
}

/// Why a container is scanned. It decides for how long, if there is no complete VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanCause {
    /// KVM created a VM in it. It is scanned for as long as a start may take.
    VmCreated,
    /// All containers are scanned. It is scanned for as long, if a process in it looks like a VMM.
    Sweep,
    /// A known VM is checked again, by one scan.
    Recheck,
}

/// What to do after a scan.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    ScanAgain,
    /// There is no VM to adopt.
    Forget {
        matches_rule: bool,
    },
    Refuse(Box<model::Unadopted>),
    Adopt(Box<Adoptable>),
}

impl StartingVm {
    /// A VM was created in the container.
    pub(super) fn created(container: ContainerCgroup, now: Instant) -> Self {
        Self {
            container,
            began: now,
            due: Some(now + FIRST_SCAN_DELAY),
            pause: FIRST_SCAN_DELAY,
            last_scan: None,
            complete_since: None,
            has_newer_vm: false,
            cause: ScanCause::VmCreated,
        }
    }

    /// The container matches a rule. Most such containers have no VM.
    pub(super) fn sweep(container: ContainerCgroup, now: Instant) -> Self {
        Self {
            cause: ScanCause::Sweep,
            due: Some(now),
            ..Self::created(container, now)
        }
    }

    /// The container's VM is known and is checked again.
    pub(super) fn recheck(container: ContainerCgroup, now: Instant) -> Self {
        Self {
            cause: ScanCause::Recheck,
            due: Some(now),
            ..Self::created(container, now)
        }
    }

    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    /// When the next scan is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A scan begins.
    pub(super) fn scan(&mut self) {
        self.due = None;
    }

    /// The rules have changed: the pauses of scans by the former rules are ended.
    pub(super) fn restart(&mut self, now: Instant) {
        self.began = now;
        self.complete_since = None;
        self.pause = FIRST_SCAN_DELAY;
        self.due = self.due.map(|_| now);
    }

    /// Another VM was created while this one is scanned. It may be the actual one: libvirt first lets QEMU create VMs to query its
    /// features.
    pub(super) fn created_again(&mut self, now: Instant) {
        match self.due {
            Some(due) if self.began + MIN_RESTART_INTERVAL <= now => {
                *self = Self {
                    due: Some(due.min(now + FIRST_SCAN_DELAY)),
                    ..Self::created(self.container.clone(), now)
                };
            }
            _ => self.has_newer_vm = true,
        }
    }

    pub(super) fn has_newer_vm(&self) -> bool {
        self.has_newer_vm
    }

    /// Whether a VM was created in the container, and not only its known VM is checked again.
    pub(super) fn is_created(&self) -> bool {
        self.has_newer_vm || self.cause == ScanCause::VmCreated
    }

    /// Whether it is scanned because all containers are.
    pub(super) fn is_swept(&self) -> bool {
        self.cause == ScanCause::Sweep
    }

    /// A scan ended at `now`.
    pub(super) fn scanned(&mut self, outcome: ScanOutcome, now: Instant) -> Next {
        match outcome {
            ScanOutcome::NoRule => Next::Forget { matches_rule: false },
            ScanOutcome::Nothing => Next::Forget { matches_rule: true },
            ScanOutcome::Refused(refused) => Next::Refuse(refused),
            ScanOutcome::Waiting(waiting) => {
                self.last_scan = None;
                let continues = match self.cause {
                    ScanCause::VmCreated => true,
                    ScanCause::Sweep => waiting.is_some(),
                    ScanCause::Recheck => false,
                };
                if continues && now < self.began + MAX_STARTING_TIME {
                    return self.scan_in(self.pause.saturating_mul(2), now);
                }
                // Without a process that looks like a VMM there is nothing to report.
                waiting.map_or(Next::Forget { matches_rule: true }, Next::Refuse)
            }
            ScanOutcome::Adoptable(vm) => {
                let first = match self.last_scan.take() {
                    Some((last, first)) if last.is_same(&vm) => first,
                    _ => now,
                };
                let complete = first + settle_time(&vm.vm);
                if first < now && complete <= now {
                    return Next::Adopt(vm);
                }
                if *self.complete_since.get_or_insert(now) + MAX_STARTING_TIME <= now {
                    let text = "its vCPU threads, or where they are pinned, change between scans".to_owned();
                    return Next::Refuse(Box::new(vm.refused("Changing", text)));
                }
                self.last_scan = Some((*vm, first));
                // There is a VM to adopt, so it is scanned like one that starts.
                self.cause = ScanCause::VmCreated;
                let rest = complete.saturating_duration_since(now).max(FIRST_SCAN_DELAY);
                self.scan_in(rest.min(self.pause.saturating_mul(2)), now)
            }
        }
    }

    fn scan_in(&mut self, pause: Duration, now: Instant) -> Next {
        self.pause = pause;
        self.due = Some(now + pause);
        Next::ScanAgain
    }
}

/// How long a VM must be unchanged before it counts as complete.
fn settle_time(vm: &Adopting) -> Duration {
    match vm {
        vm if vm.vmm.is_some() && vm.rule.isolation == Isolation::Container => OWNER_SETTLE_TIME,
        vm if vm.is_unpinned() => PINNED_SETTLE_TIME,
        vm if vm.is_counted() => Duration::ZERO,
        _ => UNCOUNTED_SETTLE_TIME,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stelia_decide::AdoptedPlacement;
    use stelia_kernel::proc::TaskId;
    use stelia_kubelet::PodUid;
    use stelia_model::record::Vcpu;
    use stelia_settings::{AdoptRule, ReadyMade};

    use super::*;

    const ORIGIN: &str =
        "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-a1.scope";

    fn container() -> ContainerCgroup {
        ContainerCgroup::parse(ORIGIN).unwrap()
    }

    fn vm(threads: i32, is_counted: bool, is_unpinned: bool) -> ScanOutcome {
        let task = |id: i32| TaskId { id, start: 1 };
        let indices = || (0..threads).map(i32::unsigned_abs);
        let props: BTreeMap<String, i64> = is_counted.then(|| ("core-id".to_owned(), 0)).into_iter().collect();
        let vcpu = |index| Vcpu {
            index,
            props: props.clone(),
        };
        let pins = || indices().map(|index| (index, index)).collect();
        ScanOutcome::Adoptable(Box::new(Adoptable {
            pod: container().pod,
            pod_name: None,
            container: "compute".to_owned(),
            vm: Adopting {
                rule: AdoptRule::ready_made(ReadyMade::Libvirt).unwrap(),
                vmm: Some(task(20)),
                threads: indices().zip((0..threads).map(|index| task(21 + index))).collect(),
                guest: indices().map(vcpu).collect(),
                wanted: AdoptedPlacement {
                    pinned_cpus: (!is_unpinned).then(pins),
                    policy: None,
                },
            },
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

    /// Scans whenever one is due, with the outcome that `at` returns for the time in milliseconds, until the container needs no more
    /// scans. Returns when that was, the number of scans, and what to do.
    fn scans(mut starting_vm: StartingVm, began: Instant, at: impl Fn(u128) -> ScanOutcome) -> (u128, u32, Next) {
        for count in 1.. {
            let now = starting_vm.due().unwrap();
            starting_vm.scan();
            let after = (now - began).as_millis();
            match starting_vm.scanned(at(after), now) {
                Next::ScanAgain => {}
                next => return (after, count, next),
            }
        }
        unreachable!()
    }

    fn from_the_beginning(at: impl Fn(u128) -> ScanOutcome) -> (u128, u32, Next) {
        let began = Instant::now();
        scans(StartingVm::created(container(), began), began, at)
    }

    #[test]
    fn a_vm_is_complete_when_two_scans_agree_and_later_where_more_threads_may_follow() {
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
    fn a_vm_that_follows_another_is_scanned_as_soon_but_not_one_after_the_other_without_end() {
        let began = Instant::now();
        let mut starting_vm = StartingVm::created(container(), began);
        let mut count = 0;
        let mut now = began;
        // What libvirt asks QEMU takes a while, and then the VM begins.
        while now < began + Duration::from_secs(7) {
            now = starting_vm.due().unwrap();
            starting_vm.scan();
            count += 1;
            assert_eq!(starting_vm.scanned(waiting(), now), Next::ScanAgain);
        }
        assert!(
            count < 12 && starting_vm.due().unwrap() > now + Duration::from_secs(5),
            "{count}"
        );
        starting_vm.created_again(now);
        assert_eq!(starting_vm.due(), Some(now + FIRST_SCAN_DELAY));
        let (after, ..) = scans(starting_vm, now, |_| vm(2, true, false));
        assert_eq!(after, 20);
        let mut starting_vm = StartingVm::created(container(), began);
        let mut count = 0;
        for now in (0..10_000).map(|ms| began + Duration::from_millis(ms)) {
            starting_vm.created_again(now);
            if starting_vm.due().unwrap() <= now {
                starting_vm.scan();
                count += 1;
                assert_eq!(starting_vm.scanned(waiting(), now), Next::ScanAgain);
            }
        }
        assert!(count < 80, "{count} looks in 10 s");
    }

    #[test]
    fn with_other_rules_one_that_is_scanned_rarely_is_scanned_at_once() {
        let began = Instant::now();
        let mut starting_vm = StartingVm::created(container(), began);
        let mut now = began;
        while now < began + Duration::from_secs(10) {
            now = starting_vm.due().unwrap();
            starting_vm.scan();
            assert_eq!(starting_vm.scanned(waiting(), now), Next::ScanAgain);
        }
        starting_vm.restart(now);
        assert_eq!((starting_vm.due(), starting_vm.age(now)), (Some(now), Duration::ZERO));
        let (after, ..) = scans(starting_vm, now, |_| vm(2, true, false));
        assert!(after <= 20, "{after} ms");
    }

    #[test]
    fn scans_become_rare_and_end() {
        let (after, count, next) = from_the_beginning(|_| waiting());
        assert!((30_000..60_000).contains(&after) && count < 14, "{after} {count}");
        assert_eq!(next, Next::Refuse(Box::new(refused())));
        let (_, _, next) = from_the_beginning(|_| ScanOutcome::Waiting(None));
        assert_eq!(next, Next::Forget { matches_rule: true });
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
        let recheck = || StartingVm::recheck(container(), began);
        assert_eq!(
            scans(recheck(), began, |_| ScanOutcome::Nothing),
            (0, 1, Next::Forget { matches_rule: true })
        );
        assert_eq!(
            scans(recheck(), began, |_| waiting()),
            (0, 1, Next::Refuse(Box::new(refused())))
        );
        let (_, count, next) = scans(recheck(), began, |_| vm(2, true, false));
        assert_eq!((count, matches!(next, Next::Adopt(_))), (2, true));
    }

    #[test]
    fn of_all_containers_at_a_start_only_those_with_a_vmm_are_looked_at_twice() {
        let began = Instant::now();
        let sweep = || StartingVm::sweep(container(), began);
        let nothing = (0, 1, Next::Forget { matches_rule: true });
        assert_eq!(scans(sweep(), began, |_| ScanOutcome::Waiting(None)), nothing);
        let (after, count, _) = scans(sweep(), began, |_| waiting());
        assert!(after >= 30_000 && count > 5, "{after} {count}");
    }

    #[test]
    fn a_known_vm_that_is_checked_again_is_no_created_one_until_another_is_created() {
        let now = Instant::now();
        assert!(StartingVm::created(container(), now).is_created());
        for mut known in [
            StartingVm::recheck(container(), now),
            StartingVm::sweep(container(), now),
        ] {
            assert!(!known.is_created());
            known.created_again(now);
            assert!(known.is_created());
        }
    }
}
