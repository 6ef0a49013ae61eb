//! The levels above instances in place: cgroups of kubelet's, whose `cpuset.cpus.exclusive` must hold the CPUs of the
//! partitions below (kernel: `Documentation/admin-guide/cgroup-v2.rst`, "remote partition").

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::File;

use super::Step;
use crate::totals::Of;
use crate::{Instance, InstanceCgroup, Level, Snapshot, Totals};

/// `kubepods`, which all instances in place share, and pods whose instances ended.
pub(super) struct Levels<'a> {
    snapshot: &'a Snapshot,
    /// CPUs that must be claimed before a partition is made.
    growing: CpuSet,
    /// Everything that is in use below.
    all: CpuSet,
}

impl<'a> Levels<'a> {
    /// `of_slice`: the CPUs that stelia.slice still has. The kernel gives an exclusive CPU to one of two siblings only.
    pub(super) fn of(snapshot: &'a Snapshot, totals: &Totals, of_slice: &CpuSet) -> Self {
        let growing = totals.cpus(Of::GrowingInPlace).difference(of_slice);
        Self {
            snapshot,
            all: growing
                .union(totals.cpus(Of::HeldInPlace))
                .union(&snapshot.left_in_place),
            growing,
        }
    }

    /// What `kubepods` has of this and still needs.
    pub(super) fn remaining(&self) -> CpuSet {
        let level = self.snapshot.kubepods.as_ref();
        level
            .map(|level| level.ours.intersection(&self.all))
            .unwrap_or_default()
    }

    /// Whether a partition cannot be made yet.
    pub(super) fn uncovered(&self) -> bool {
        let covers = |level: &Level| level.has(&self.growing);
        !self.growing.is_empty() && !self.snapshot.kubepods.as_ref().is_some_and(covers)
    }

    /// Before lists grow: pods whose instances ended give their CPUs up, and where a list is to have others `kubepods` gives up those that
    /// it needs no more.
    pub(super) fn give_up(&self, grows: bool) -> Vec<Step> {
        let pods = self.snapshot.unclaimed.iter();
        let mut steps: Vec<Step> = pods.map(|pod| Step::Claim(pod.clone(), CpuSet::new())).collect();
        if let Some(level) = self.snapshot.kubepods.as_ref().filter(|_| grows) {
            let remaining = self.remaining();
            if remaining != level.ours {
                steps.push(Step::Claim(level.path.clone(), remaining));
            }
        }
        steps
    }

    /// Before partitions are made below.
    pub(super) fn widen(&self) -> Vec<Step> {
        let level = self.snapshot.kubepods.as_ref().filter(|_| self.uncovered());
        level
            .map(|level| Step::Claim(level.path.clone(), self.all.clone()))
            .into_iter()
            .collect()
    }

    /// Once the lists below are seen to have shrunk. A container that ended takes its own list along, but not its share of those above.
    pub(super) fn narrow(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = self
            .snapshot
            .half_registered
            .iter()
            .cloned()
            .map(Step::Unregister)
            .collect();
        let level = self.snapshot.kubepods.as_ref();
        let level = level.filter(|level| !self.uncovered() && level.ours != self.all);
        steps.extend(level.map(|level| Step::Claim(level.path.clone(), self.all.clone())));
        steps
    }
}

/// The pod's list before the container's grows.
pub(super) fn widen_pod(instance: &Instance, want: &CpuSet) -> Option<Step> {
    let level = instance.pod_level.as_ref()?;
    (!level.has(want)).then(|| Step::Claim(level.path.clone(), level.ours.union(want)))
}

/// The pod's list after the container's has shrunk.
pub(super) fn narrow_pod(instance: &Instance, want: &CpuSet) -> Option<Step> {
    let level = instance.pod_level.as_ref()?;
    let wider = level.ours != *want && want.is_subset(&level.ours);
    wider.then(|| Step::Claim(level.path.clone(), want.clone()))
}

/// Threads beside `float` and `vcpu`, moved to float: what is exec'd into the container is there, and would run on every CPU
/// that is in no partition, another pod's exclusive ones included. So would threads in cgroups that the container made.
///
/// At registration whole processes are moved. Later a process may have threads in `vcpu` that must stay.
pub(super) fn gather(instance: &Instance) -> Vec<Step> {
    let float = instance.tree.float();
    let mut steps = Vec::new();
    if instance.record.vcpus.is_empty() {
        let mut processes: Vec<i32> = instance.strays.iter().map(|stray| stray.process).collect();
        processes.sort_unstable();
        processes.dedup();
        for process in processes {
            steps.push(Step::ResetProcess(process));
            steps.push(Step::MoveProcess(process, float.clone()));
        }
        return steps;
    }
    let pinned = |thread: i32| instance.record.vcpus.iter().any(|vcpu| vcpu.task.id == thread);
    for stray in instance.strays.iter().filter(|stray| !pinned(stray.thread)) {
        steps.push(Step::ResetThread(stray.thread));
        steps.push(Step::MoveThread(stray.thread, float.clone()));
    }
    steps
}

/// The container's own cgroup as it was, once nothing is below it; the record is the last to go.
pub(super) fn restore(instance: &Instance, inner: &InstanceCgroup) -> Vec<Step> {
    let ours = super::tree::CONTROLLERS
        .iter()
        .filter(|name| inner.controllers.contains(**name));
    let controllers: Vec<String> = ours.map(|name| format!("-{name}")).collect();
    let mut steps = Vec::new();
    if !controllers.is_empty() {
        let domain = instance.tree.inner().clone();
        steps.push(Step::Write(domain, File::SubtreeControl, controllers.join(" ")));
    }
    steps.push(Step::Unregister(instance.tree.outer().clone()));
    steps
}
