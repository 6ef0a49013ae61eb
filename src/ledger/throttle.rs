//! Limits how often one pod's changes become entries. A pod that registers, attaches and leaves again and again would otherwise push other
//! VMs' entries out of the ring.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stelia_cpus::rate::Backoff;
use stelia_kubelet::PodUid;

use super::target::{Targets, VmTarget};

/// Changes in a row that are all recorded: a VM's start makes about 3, and each vCPU that is plugged one.
const FREE_CHANGES: u32 = 32;
/// Each period of this length between two changes gives one free change back.
const FREE_CHANGE_PERIOD: Duration = Duration::from_secs(1200);
/// The pauses between two changes after that, and the longest. An hour without changes, after the pause, restores the free ones.
const PAUSE: Backoff = Backoff::new(Duration::from_secs(60), MAX_PAUSE);
const MAX_PAUSE: Duration = Duration::from_secs(3600);
/// Limit of the pods that are remembered; of others the one that changed first is forgotten.
const MAX_PODS: usize = 4096;

#[derive(Debug)]
struct Changes {
    count: u32,
    last: Instant,
}

impl Changes {
    /// The pause after the last change.
    fn pause(&self) -> Duration {
        let further = self.count.checked_sub(FREE_CHANGES);
        further.map_or(Duration::ZERO, |further| PAUSE.pause(further))
    }

    fn is_quiet(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= MAX_PAUSE + self.pause()
    }
}

/// What the ledger is told: the targets, but for pods that change too often.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    told: Targets,
    changes: BTreeMap<PodUid, Changes>,
    /// When the next target that is held back may be told.
    next: Option<Instant>,
}

impl Throttle {
    /// Follow the targets. A pod that has changed too often is told of as one whose counters are not read, until its pause is over: the
    /// time is a gap. Returns whether what is told has changed.
    pub(super) fn follow(&mut self, targets: &Targets, now: Instant) -> bool {
        self.changes.retain(|_, changes| !changes.is_quiet(now));
        self.next = None;
        let mut changed = false;
        let pods: BTreeSet<PodUid> = targets.keys().chain(self.told.keys()).cloned().collect();
        for pod in pods {
            let (target, told) = (targets.get(&pod), self.told.get(&pod));
            if target == told {
                continue;
            }
            let due = self.changes.get(&pod).map(|changes| changes.last + changes.pause());
            let next = match due.filter(|due| *due > now) {
                None => {
                    self.count(&pod, now);
                    target.cloned()
                }
                Some(due) => {
                    self.next = Some(self.next.map_or(due, |next| next.min(due)));
                    unread(told, target)
                }
            };
            if next.as_ref() != self.told.get(&pod) {
                changed = true;
                match next {
                    Some(next) => drop(self.told.insert(pod, next)),
                    None => drop(self.told.remove(&pod)),
                }
            }
        }
        changed
    }

    fn count(&mut self, pod: &PodUid, now: Instant) {
        let first = self.changes.iter().min_by_key(|(_, changes)| changes.last);
        if let Some(first) = first.filter(|_| self.changes.len() >= MAX_PODS) {
            let first = first.0.clone();
            self.changes.remove(&first);
        }
        let known = self.changes.entry(pod.clone());
        let changes = known.or_insert(Changes { count: 0, last: now });
        let passed = now.saturating_duration_since(changes.last).as_secs() / FREE_CHANGE_PERIOD.as_secs();
        let free_again = u32::try_from(passed).unwrap_or(u32::MAX);
        changes.count = changes.count.saturating_sub(free_again).saturating_add(1);
        changes.last = now;
    }

    pub(super) fn targets(&self) -> Targets {
        self.told.clone()
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }
}

/// What stays told of a pod that is held back. That its VM has CPUs of its own is told once, so that the account has the gap.
fn unread(told: Option<&Arc<VmTarget>>, target: Option<&Arc<VmTarget>>) -> Option<Arc<VmTarget>> {
    let has_cpus = |vm: &&Arc<VmTarget>| !vm.seats.is_empty();
    let kept = told.filter(has_cpus).or(target.filter(has_cpus)).or(told).or(target)?;
    if kept.is_throttled {
        Some(kept.clone())
    } else {
        Some(Arc::new(VmTarget {
            is_throttled: true,
            ..(**kept).clone()
        }))
    }
}

#[cfg(test)]
mod tests {
    use stelia_api::State;
    use stelia_kernel::cgroup::CgroupPath;
    use stelia_ledger::sample::Seat;

    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    fn vm(state: State) -> Arc<VmTarget> {
        let seat = Seat {
            cpus: "2".parse().unwrap(),
            threads: Vec::new(),
            cgroup: None,
        };
        Arc::new(VmTarget {
            name: String::new(),
            seats: (state == State::Isolated).then_some(seat).into_iter().collect(),
            state,
            origin: CgroupPath::root(),
            settled_us: 0,
            is_throttled: false,
        })
    }

    /// The pod registers, is isolated and leaves, again and again.
    fn churn(step: u32) -> Option<Arc<VmTarget>> {
        [Some(vm(State::Waiting)), Some(vm(State::Isolated)), None][step as usize % 3].clone()
    }

    #[test]
    fn a_pod_that_comes_and_goes_all_day_makes_few_changes_and_others_are_told_at_once() {
        let (mut held, began) = (Throttle::default(), Instant::now());
        let mut told = 0;
        for step in 0..24 * 3600 / 3 {
            let now = began + Duration::from_secs(3) * step;
            let targets: Targets = churn(step).map(|vm| (pod(1), vm)).into_iter().collect();
            told += u32::from(held.follow(&targets, now));
        }
        assert!(told < FREE_CHANGES + 3 * 40, "{told}");
        let now = began + Duration::from_secs(24 * 3600);
        let other: Targets = [(pod(2), vm(State::Isolated))].into();
        assert!(held.follow(&other, now));
        assert_eq!(held.targets().get(&pod(2)), other.get(&pod(2)));
    }

    #[test]
    fn a_vm_that_changes_every_fifty_minutes_is_always_told() {
        let (mut held, began) = (Throttle::default(), Instant::now());
        for step in 0..1000 {
            let targets: Targets = churn(step).map(|vm| (pod(1), vm)).into_iter().collect();
            assert!(
                held.follow(&targets, began + Duration::from_secs(50 * 60) * step),
                "{step}"
            );
        }
    }

    #[test]
    fn while_it_is_held_back_its_cpus_are_a_gap_and_then_it_is_told_again() {
        let (mut held, now) = (Throttle::default(), Instant::now());
        for step in 0..FREE_CHANGES {
            let targets: Targets = churn(step).map(|vm| (pod(1), vm)).into_iter().collect();
            assert!(held.follow(&targets, now));
        }
        let isolated: Targets = [(pod(1), vm(State::Isolated))].into();
        held.follow(&Targets::new(), now);
        let shown = held.targets()[&pod(1)].clone();
        assert!(shown.is_throttled && !shown.seats.is_empty());
        // Whatever it does meanwhile is not told.
        assert!(!held.follow(&isolated, now) && !held.follow(&Targets::new(), now) && !held.follow(&isolated, now));
        let due = held.next().unwrap();
        assert!(held.follow(&isolated, due));
        assert_eq!((held.targets(), held.next()), (isolated, None));
        assert!(held.follow(&Targets::new(), due + MAX_PAUSE) && held.targets().is_empty());
    }
}
