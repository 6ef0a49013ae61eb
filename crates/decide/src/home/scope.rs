//! In a scope of its own in stelia.slice: the container's processes are moved there, and its limits follow them
//! ([`crate::steps`], `limits.rs`). What stays in the container is the anchor, and what is exec'd into it.

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::File;
use stelia_kubelet::PodUid;
use stelia_model::record::Phase;

use super::threads::Ending;
use super::{Above, HomeBehaviour, threads};
use crate::steps::{Inputs, Step, ThreadPlacement};
use crate::{Instance, Snapshot};

pub(super) struct Scope;

impl HomeBehaviour for Scope {
    fn above(&self) -> Above {
        Above::Slice
    }

    fn protects_record(&self) -> bool {
        true
    }

    fn waits_for_unplugging(&self) -> bool {
        true
    }

    /// An adopted VM runs already.
    fn has_idle_cpus(&self, instance: &Instance) -> bool {
        let record = &instance.record;
        let is_new = record.vcpus.is_empty() && matches!(record.phase, Phase::Registered | Phase::Floating);
        // What an attach that failed has left must be gone first: the kernel accepts no list within the exclusive CPUs of a sibling.
        let inner = instance.inner.as_ref();
        let is_clear = instance.scope_exclusive.is_empty()
            && inner.is_none_or(|inner| inner.exclusive.is_empty())
            && instance.vcpu().is_none_or(|vcpu| {
                vcpu.exclusive.is_empty() && vcpu.threads.is_empty() && matches!(vcpu.partition.as_str(), "" | "member")
            });
        is_new && is_clear && record.adopted.is_none() && !record.exclusive.is_empty()
    }

    fn with_spare(&self, pool: Option<&CpuSet>, spare: &CpuSet) -> Option<CpuSet> {
        pool.map(|pool| pool.union(spare))
    }

    fn make(
        &self,
        inputs: &Inputs<'_>,
        instance: &Instance,
        placement: ThreadPlacement,
        float: Option<&CpuSet>,
    ) -> Vec<Step> {
        let mut steps = threads::make_domain(instance);
        // No process may be in the scope itself once it enables controllers for its children.
        let inner = instance.tree.inner();
        steps.extend(
            instance
                .scope_procs
                .iter()
                .map(|pid| Step::MoveProcess(*pid, inner.clone())),
        );
        steps.extend(threads::enable_controllers(
            instance.scope(),
            &instance.scope_controllers,
        ));
        let mems = &instance.record.mems;
        if !mems.is_empty() && instance.inner.as_ref().is_none_or(|inner| inner.mems != *mems) {
            // Before any process of the container is in the tree: a later write would migrate its pages.
            steps.push(Step::Write(inner.clone(), File::Mems, mems.to_string()));
        }
        let leaves = threads::make_leaves(inputs, instance, float);
        steps.extend(leaves.steps);
        if leaves.may_be_filled && takes_in(instance, placement) {
            let anchor = instance.record.anchor.map(|anchor| anchor.id);
            let processes = instance.origin_procs.iter().flatten();
            for pid in processes.filter(|pid| Some(**pid) != anchor) {
                // Reset, then move: a daemon that dies in between would never learn of a thread left pinned.
                steps.push(Step::ResetProcess(*pid));
                steps.push(Step::MoveProcess(*pid, instance.tree.float().clone()));
            }
        }
        steps
    }

    fn leave(&self, instance: &Instance) -> Vec<Step> {
        let Some(inner) = &instance.inner else {
            return Vec::new();
        };
        // What stayed in the container may run wherever its cpuset allows again.
        let remaining = instance.origin_procs.iter().flatten();
        let ending = Ending {
            is_populated: !inner.procs.is_empty(),
            released: remaining.map(|pid| Step::ResetProcess(*pid)).collect(),
            last: vec![Step::Remove(instance.tree.inner().clone())],
        };
        threads::leave(instance, inner, ending)
    }
}

/// Whether processes of the container belong in float: at registration; and while no partition keeps them off the vCPUs' CPUs.
fn takes_in(instance: &Instance, placement: ThreadPlacement) -> bool {
    let pinned = !instance.record.has_partition() && placement == ThreadPlacement::Hold;
    instance.record.phase == Phase::Registered || pinned
}

/// Scopes that systemd did not remove, with the cgroups below them.
pub(crate) fn remove_abandoned(snapshot: &Snapshot) -> Vec<Step> {
    let mut steps = Vec::new();
    for scope in &snapshot.abandoned {
        let known = PodUid::from_scope(scope.name()).and_then(|pod| snapshot.instances.get(&pod));
        let known = known.filter(|instance| instance.scope() == scope);
        if let Some((instance, inner)) = known.and_then(|instance| Some((instance, instance.inner.as_ref()?))) {
            steps.extend(inner.vcpu.iter().map(|_| Step::Remove(instance.tree.vcpu().clone())));
            steps.extend(inner.float.iter().map(|_| Step::Remove(instance.tree.float().clone())));
            steps.push(Step::Remove(instance.tree.inner().clone()));
        }
        steps.push(Step::Forget(scope.clone()));
    }
    steps
}
