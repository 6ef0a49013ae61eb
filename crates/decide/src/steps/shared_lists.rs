//! The exclusive lists above all instances: of stelia.slice, and of kubepods, which is kubelet's. They must have the CPUs of the
//! partitions below.

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::CgroupPath;

use super::{Step, set_exclusive};
use crate::home::Above;
use crate::totals::Total;
use crate::{Level, Snapshot, Totals};

/// The lists as they are and as they are to be. The kernel gives an exclusive CPU to one of two siblings only: instances in stelia.slice
/// and in pods may have each other's CPUs now, so each list gives up what it needs no more before the other one gets it, and gets
/// nothing that the other one still has. Where both are to have a CPU, the list that has it now keeps it until it is given up below.
pub(super) struct SharedLists<'a> {
    snapshot: &'a Snapshot,
    slice: CpuSet,
    of_slice: Wanted,
    of_kubepods: Wanted,
}

/// What a list is to have.
struct Wanted {
    /// The CPUs that it has now and keeps.
    remaining: CpuSet,
    /// The CPUs of partitions below it, which it must have before they are made.
    for_partitions: CpuSet,
    /// Everything that is in use below it.
    all: CpuSet,
}

impl<'a> SharedLists<'a> {
    /// Where both lists are to have a CPU, it is for the one that has it now: first for the slice's, then for kubepods'.
    pub(super) fn of(snapshot: &'a Snapshot, totals: &Totals) -> Self {
        let slice = snapshot.slice.exclusive.clone().unwrap_or_default();
        // While a scope still has its list the slice's must cover it.
        let held = totals.cpus(Total::HeldInSlice).union(&snapshot.left_alone);
        let slice_remains = slice.intersection(&held.union(totals.cpus(Total::PartitionsInSlice)));
        let for_partitions = totals.cpus(Total::PartitionsInPlace).difference(&slice_remains);
        let all = for_partitions
            .union(totals.cpus(Total::HeldInPlace))
            .union(&snapshot.left_in_place);
        let level = snapshot.kubepods.as_ref();
        let of_kubepods = Wanted {
            remaining: level.map(|level| level.added().intersection(&all)).unwrap_or_default(),
            for_partitions,
            all,
        };
        let for_partitions = totals.cpus(Total::PartitionsInSlice).difference(&of_kubepods.remaining);
        let of_slice = Wanted {
            remaining: slice_remains,
            all: held.union(&for_partitions),
            for_partitions,
        };
        Self {
            snapshot,
            slice,
            of_slice,
            of_kubepods,
        }
    }

    /// The CPUs that a list has now and keeps.
    pub(super) fn remaining(&self, above: Above) -> &CpuSet {
        match above {
            Above::Slice => &self.of_slice.remaining,
            Above::Kubepods => &self.of_kubepods.remaining,
        }
    }

    /// Whether a list lacks CPUs, so that no partition can be made yet of those that lack.
    pub(super) fn must_widen(&self, above: Above) -> bool {
        let wanted = &self.of_kubepods.for_partitions;
        let covers = |level: &Level| level.has(wanted);
        match above {
            Above::Slice => !self.of_slice.for_partitions.is_subset(&self.slice),
            Above::Kubepods => !wanted.is_empty() && !self.snapshot.kubepods.as_ref().is_some_and(covers),
        }
    }

    fn grows(&self) -> bool {
        self.must_widen(Above::Slice) || self.must_widen(Above::Kubepods)
    }

    /// Before lists grow: pods whose instances ended give their CPUs up, and where a list is to have others both give up those that they
    /// need no more.
    pub(super) fn give_up(&self) -> Vec<Step> {
        let grows = self.grows();
        let slice = Some(&self.of_slice.remaining).filter(|remaining| grows && **remaining != self.slice);
        let mut steps: Vec<Step> = slice
            .map(|cpus| set_exclusive(&CgroupPath::slice(), cpus))
            .into_iter()
            .collect();
        let pods = self.snapshot.with_ours_left.iter();
        steps.extend(pods.map(|pod| Step::SetOurs(pod.clone(), CpuSet::new())));
        let remaining = &self.of_kubepods.remaining;
        let kubepods = self.snapshot.kubepods.as_ref();
        let kubepods = kubepods.filter(|level| grows && *remaining != level.ours);
        steps.extend(kubepods.map(|level| Step::SetOurs(level.path.clone(), remaining.clone())));
        steps
    }

    /// Once the lists below are seen to have shrunk. A scope or a container that ended takes its own list with it, but not its share of
    /// those above.
    pub(super) fn narrow(&self) -> Vec<Step> {
        // A CPU that the list lost, and that an instance is about to leave, may be another program's now. A scope that is left alone keeps its CPUs.
        let narrower = self.slice.intersection(&self.of_slice.all);
        let narrower = narrower.union(&self.snapshot.left_alone);
        // The steps before gave up the rest of the list.
        let is_given_up = self.grows() && narrower == self.of_slice.remaining;
        let is_wide = !self.must_widen(Above::Slice) && self.slice != narrower && !is_given_up;
        let slice = is_wide.then(|| set_exclusive(&CgroupPath::slice(), &narrower));
        let mut steps: Vec<Step> = slice.into_iter().collect();
        steps.extend(self.snapshot.half_registered.iter().cloned().map(Step::Unregister));
        let kubepods = self.snapshot.kubepods.as_ref();
        let kubepods = kubepods.filter(|level| !self.must_widen(Above::Kubepods) && level.ours != self.of_kubepods.all);
        steps.extend(kubepods.map(|level| self.set_kubepods_list(level)));
        steps
    }

    fn set_kubepods_list(&self, level: &Level) -> Step {
        Step::SetOurs(level.path.clone(), self.of_kubepods.all.clone())
    }
}
