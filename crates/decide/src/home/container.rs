//! The container's own cgroup is the partition: all of its tasks share the exclusive CPUs. None of them is moved, and there is no float.

use stelia_cpus::CpuSet;
use stelia_model::PinnedReason;
use stelia_model::record::{Phase, Record, VcpuThread};
use stelia_settings::Partition;

use super::{Above, HomeBehaviour, Registration};
use crate::steps::{Inputs, Step, ThreadPlacement, partition};
use crate::{Derived, Instance, ThreadedCgroup, VcpuNow};

pub(super) struct Container;

impl HomeBehaviour for Container {
    fn above(&self) -> Above {
        Above::Kubepods
    }

    /// What is not pinned needs the scheduler's load balancing, which an isolated partition does not have.
    fn only_kind(&self) -> Option<Partition> {
        Some(Partition::Root)
    }

    /// CPUs that steliad chose are those of the partition alone.
    fn without_partition(&self, instance: &Instance, why: PinnedReason) -> Step {
        let scope = instance.scope().clone();
        match instance.record.allocation {
            Some(_) => Step::Enter(scope, Phase::Leaving),
            None => Step::RecordPinned(scope, why),
        }
    }

    /// All tasks share the CPUs, so nothing is gained by pinning what its owner does not pin. Who pins them does so again.
    fn leaves_pins(&self, record: &Record) -> bool {
        record.keeps_pins()
    }

    /// Without a partition the units outside are kept off its CPUs.
    fn holds_cpus(&self, record: &Record, vcpu: &ThreadedCgroup) -> bool {
        !record.has_partition() || !vcpu.exclusive.is_empty()
    }

    /// Its CPUs are isolated from its registration on.
    fn registration(&self, record: &Record) -> Registration {
        match record.phase {
            Phase::Attaching if record.vcpus.is_empty() => Registration::Running,
            Phase::Isolated | Phase::Pinned => Registration::Done,
            _ => Registration::Neither,
        }
    }

    fn detached_phase(&self, former: Phase) -> Phase {
        former
    }

    /// Nothing is moved to float first.
    fn next_phase(&self, _: &Instance) -> Option<Phase> {
        Some(Phase::Attaching)
    }

    fn make(&self, _: &Inputs<'_>, _: &Instance, _: ThreadPlacement, _: Option<&CpuSet>) -> Vec<Step> {
        Vec::new()
    }

    /// `cpuset.cpus`, empty if steliad chose the CPUs, is not written: the partition has the CPUs of the exclusive list, even if
    /// `cpuset.cpus` differs.
    fn hold(&self, facts: &Derived, instance: &Instance) -> Vec<Step> {
        let (Some(inner), Some(vcpu)) = (&instance.inner, instance.vcpu()) else {
            return Vec::new();
        };
        let mut steps = partition::grow(instance, inner, vcpu);
        steps.extend(partition::set_kind(facts, instance, vcpu));
        steps.extend(pins(facts, instance));
        steps.extend(partition::shrink(instance, inner, vcpu));
        steps
    }

    fn leave(&self, instance: &Instance) -> Vec<Step> {
        let (Some(inner), Some(vcpu)) = (&instance.inner, instance.vcpu()) else {
            return Vec::new();
        };
        let mut steps = partition::give_up(instance, inner, vcpu);
        if instance.origin_procs.is_some() {
            steps.extend(unpin(instance));
            steps.push(Step::Unregister(instance.tree.outer().clone()));
        }
        steps
    }
}

/// Pin the vCPU threads, where nobody else does. Those without a CPU of their own stay as they are.
fn pins(facts: &Derived, instance: &Instance) -> Vec<Step> {
    if instance.record.keeps_pins() {
        return Vec::new();
    }
    let threads = instance.record.vcpus.iter().zip(&instance.vcpus);
    let differs = |(thread, now): (&VcpuThread, &Option<VcpuNow>)| {
        let now = now.as_ref().filter(|now| instance.has(&now.cgroup))?;
        let cpu = thread.cpu.filter(|cpu| facts.online().contains(*cpu))?;
        let is_pinned = now.affinity.len() == 1 && now.affinity.contains(cpu);
        (!is_pinned).then_some(Step::Pin(thread.task.id, cpu))
    };
    threads.filter_map(differs).collect()
}

/// Let the vCPU threads that were pinned here run wherever their cpuset allows.
fn unpin(instance: &Instance) -> Vec<Step> {
    if instance.record.keeps_pins() {
        return Vec::new();
    }
    let threads = instance.record.vcpus.iter().zip(&instance.vcpus);
    let pinned = threads.filter(|(thread, now)| thread.cpu.is_some() && now.is_some());
    pinned.map(|(thread, _)| Step::ResetThread(thread.task.id)).collect()
}
