//! In two cgroups below the container's own. The levels above are kubelet's: their `cpuset.cpus.exclusive` must hold the CPUs of
//! the partitions below (kernel: `Documentation/admin-guide/cgroup-v2.rst`, "remote partition").

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::File;

use super::threads::{CONTROLLERS, Ending};
use super::{Above, HomeBehaviour, ListsInForce, threads};
use crate::steps::{Inputs, Step, ThreadPlacement};
use crate::{Instance, InstanceCgroup, ThreadedCgroup};

pub(super) struct InPlace;

impl HomeBehaviour for InPlace {
    fn above(&self) -> Above {
        Above::Kubepods
    }

    /// The container may be able to write its lists: of them counts what the lists above let be in force, which it cannot write.
    fn lists_in_force(&self, instance: &Instance) -> ListsInForce {
        let Some(vcpu) = instance.vcpu() else {
            return ListsInForce::default();
        };
        let above = instance
            .scope_exclusive
            .union(&instance.origin_cpus)
            .union(&instance.record.exclusive);
        ListsInForce {
            // It is the container's, or with crun below that.
            inner: CpuSet::new(),
            exclusive: vcpu.exclusive.intersection(&instance.scope_exclusive),
            cpus: vcpu.cpus.intersection(&above),
        }
    }

    fn make(&self, inputs: &Inputs<'_>, instance: &Instance, _: ThreadPlacement, float: Option<&CpuSet>) -> Vec<Step> {
        let mut steps = threads::make_domain(instance);
        steps.extend(threads::make_leaves(inputs, instance, float).steps);
        steps
    }

    fn leave(&self, instance: &Instance) -> Vec<Step> {
        let Some(inner) = &instance.inner else {
            return Vec::new();
        };
        // The processes are in the domain wherever they are: only the threads below count.
        let has_tasks = |leaf: &ThreadedCgroup| !(leaf.threads.is_empty() && leaf.below.is_empty());
        let mut leaves = inner.float.iter().chain(&inner.vcpu);
        let ending = Ending {
            is_populated: leaves.any(has_tasks),
            released: Vec::new(),
            last: restore(instance, inner),
        };
        threads::leave(instance, inner, ending)
    }
}

/// The container's own cgroup as it was, once nothing is below it; the record is the last to go.
fn restore(instance: &Instance, inner: &InstanceCgroup) -> Vec<Step> {
    let ours = CONTROLLERS.iter().filter(|name| inner.controllers.contains(**name));
    let controllers: Vec<String> = ours.map(|name| format!("-{name}")).collect();
    let mut steps = Vec::new();
    if !controllers.is_empty() {
        let domain = instance.tree.inner().clone();
        steps.push(Step::Write(domain, File::SubtreeControl, controllers.join(" ")));
    }
    steps.push(Step::Unregister(instance.tree.outer().clone()));
    steps
}
