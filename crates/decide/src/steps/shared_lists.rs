//! The exclusive lists above all instances: of stelia.slice, and of kubepods, which is kubelet's. They must have the CPUs of the
//! partitions below.

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::CgroupPath;

use super::{Step, set_exclusive};
use crate::home::Above;
use crate::totals::Of;
use crate::{Level, Snapshot, Totals};

/// The lists as they are and as they are to be. The kernel gives an exclusive CPU to one of two siblings only: instances in stelia.slice
/// and in pods may have each other's CPUs now, so each list gives up what it needs no more before the other one takes it, and takes
/// nothing that the other one still has. Where both are to have a CPU, the list that has it now keeps it until it is given up below.
pub(super) struct SharedLists<'a> {
    snapshot: &'a Snapshot,
    slice: CpuSet,
    of_slice: Wanted,
    of_kubepods: Wanted,
}

/// What a list is to have.
struct Wanted {
    /// The part of it that the list has now.
    remaining: CpuSet,
    /// CPUs that the list must have before a partition is made.
    growing: CpuSet,
    /// Everything that is in use below.
    all: CpuSet,
}

impl<'a> SharedLists<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, totals: &Totals) -> Self {
        let slice = snapshot.slice.exclusive.clone().unwrap_or_default();
        // While a scope still holds its list the slice must cover it.
        let held = totals.cpus(Of::Held).union(&snapshot.left_alone);
        let slice_remains = slice.intersection(&held.union(totals.cpus(Of::Growing)));
        let growing = totals.cpus(Of::GrowingInPlace).difference(&slice_remains);
        let all = growing
            .union(totals.cpus(Of::HeldInPlace))
            .union(&snapshot.left_in_place);
        let level = snapshot.kubepods.as_ref();
        let of_kubepods = Wanted {
            remaining: level.map(|level| level.added().intersection(&all)).unwrap_or_default(),
            growing,
            all,
        };
        let growing = totals.cpus(Of::Growing).difference(&of_kubepods.remaining);
        let of_slice = Wanted {
            remaining: slice_remains,
            all: held.union(&growing),
            growing,
        };
        Self {
            snapshot,
            slice,
            of_slice,
            of_kubepods,
        }
    }

    /// What a list has of what it is to have.
    pub(super) fn remaining(&self, above: Above) -> &CpuSet {
        match above {
            Above::Slice => &self.of_slice.remaining,
            Above::Kubepods => &self.of_kubepods.remaining,
        }
    }

    /// Whether a list lacks CPUs, so that no partition can be made yet of those that lack.
    pub(super) fn must_widen(&self, above: Above) -> bool {
        let growing = &self.of_kubepods.growing;
        let covers = |level: &Level| level.has(growing);
        match above {
            Above::Slice => !self.of_slice.growing.is_subset(&self.slice),
            Above::Kubepods => !growing.is_empty() && !self.snapshot.kubepods.as_ref().is_some_and(covers),
        }
    }

    /// Before lists grow: pods whose instances ended give their CPUs up, and where a list is to have others both give up those that they
    /// need no more.
    pub(super) fn give_up(&self) -> Vec<Step> {
        let grows = self.must_widen(Above::Slice) || self.must_widen(Above::Kubepods);
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

    /// Once the lists below are seen to have shrunk. A scope or a container that ended takes its own list along, but not its share of
    /// those above.
    pub(super) fn narrow(&self) -> Vec<Step> {
        // A CPU that the list lost, and that an instance is about to leave, may be another program's now. A scope that is left alone keeps its CPUs.
        let narrower = self.slice.intersection(&self.of_slice.all);
        let narrower = narrower.union(&self.snapshot.left_alone);
        let is_wide = !self.must_widen(Above::Slice) && self.slice != narrower;
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
