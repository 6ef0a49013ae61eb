//! From what is to what must be: the steps of one pass.

mod leave;
mod limits;
mod outside;
mod partition;
mod tree;
mod words;

use super::entitlement::{Entitlement, entitlement};
use super::partition::Partition;
use super::placement::{is_iothread, place};
use super::{Instance, Phase, Policies, Snapshot, VcpuThread, pod_pool};
use crate::cgroup::{CgroupPath, File, Limits};
use crate::cpuset::CpuSet;
use crate::kubelet::PodUid;

pub use outside::{OUTSIDE, is_restricted};
pub use tree::float_cpus;

/// One change to the system. Each is idempotent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make a cgroup.
    Create(CgroupPath),
    /// Write a cgroup file.
    Write(CgroupPath, File, String),
    /// Move a whole process.
    MoveProcess(i32, CgroupPath),
    /// Move one thread within its domain.
    MoveThread(i32, CgroupPath),
    /// Let every thread of a process run wherever its cpuset allows.
    ResetProcess(i32),
    /// Let a thread run wherever its cpuset allows.
    ResetThread(i32),
    /// Pin a thread to one CPU.
    Pin(i32, u32),
    /// Remove an empty cgroup.
    Remove(CgroupPath),
    /// Record that the instance (its scope is given) has reached a phase.
    Enter(CgroupPath, Phase),
    /// Record the CPUs kubelet gives the instance now.
    Entitle {
        /// The instance's scope.
        scope: CgroupPath,
        /// The container's entry.
        entry: CpuSet,
        /// What of it is the container's alone.
        exclusive: CpuSet,
    },
    /// Record what of its pod's own CPUs the pod's containers share; the scope is the instance's.
    Share(CgroupPath, CpuSet),
    /// Record where the vCPUs belong now, and what partition that takes.
    Place(CgroupPath, Vec<VcpuThread>, Partition),
    /// Set limits on a unit, through systemd.
    Limit(String, Limits),
    /// Set the weight of stelia.slice, through systemd.
    Weigh(u64),
    /// Restrict a unit outside stelia.slice, through systemd, having recorded what it was before.
    Restrict {
        /// The unit.
        unit: String,
        /// The CPUs that are left to it.
        cpus: CpuSet,
        /// Its `cpuset.cpus` before, where that is not recorded yet.
        save: Option<CpuSet>,
    },
    /// Remove an empty scope that systemd leaves behind, from the cgroup tree first and then from systemd: with its cgroup gone
    /// there is nothing that stopping the unit could kill.
    Forget(CgroupPath),
    /// Forget what a unit outside stelia.slice had: it is gone.
    Unrecord(String),
    /// Give a unit outside stelia.slice back what it had.
    Restore(String, CpuSet),
}

/// A step and the instance it is for; `None` for what all share. When a step fails, the later ones of the same instance
/// are not taken in that pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The instance.
    pub pod: Option<PodUid>,
    /// What to do.
    pub step: Step,
}

/// What becomes of an instance in this pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// Everything goes back.
    Leave,
    /// Its vCPU threads belong in `vcpu/`.
    Hold,
    /// Everything floats: no vCPUs yet, or its CPUs are another's.
    Float,
}

fn course(snapshot: &Snapshot, instance: &Instance) -> Course {
    match instance.record.phase {
        Phase::Leaving => Course::Leave,
        phase if phase.has_vcpus() && !evicted(snapshot, instance) => Course::Hold,
        _ => Course::Float,
    }
}

/// Whether an instance floats although it has vCPUs: kubelet gave its CPUs to somebody else. While kubelet's state cannot be
/// used nobody knows whose they are, so an instance that floats stays there.
pub fn evicted(snapshot: &Snapshot, instance: &Instance) -> bool {
    match entitlement(snapshot, instance) {
        Entitlement::Lost { .. } => true,
        Entitlement::Unknown => {
            let holds = |leaf: &super::Leaf| !leaf.threads.is_empty();
            instance.record.phase.has_vcpus() && !instance.vcpu().is_some_and(holds)
        }
        _ => false,
    }
}

/// Whether an instance has, or is to have, CPUs that the kernel keeps everybody else off.
fn takes(snapshot: &Snapshot, instance: &Instance) -> bool {
    instance.record.partition != Partition::Member && course(snapshot, instance) == Course::Hold
}

/// The steps that bring the system to what the records and kubelet say; empty when it is. A pass takes them, looks again
/// and plans again until nothing is left: what depends on the outcome of a step is left to the next round.
pub fn plan(snapshot: &Snapshot, policies: &Policies) -> Vec<Planned> {
    let mut steps = Steps(Vec::new());
    steps.shared(leave::abandoned(snapshot));
    let mut instances: Vec<&Instance> = snapshot.live().collect();
    instances.sort_by(|a, b| a.record.pod.cmp(&b.record.pod));

    // What must be written down before a thread is moved or pinned anew.
    let mut records = Steps(Vec::new());
    for instance in &instances {
        let recorded = record_steps(snapshot, instance);
        records.of(instance, recorded);
    }
    if !records.0.is_empty() {
        return records.0;
    }

    // Floats first: nothing of an instance may stand on CPUs that are about to become another's partition. And whoever
    // must leave CPUs leaves before anybody enters them.
    for instance in &instances {
        if course(snapshot, instance) != Course::Leave {
            steps.of(instance, tree::steps(snapshot, policies, instance));
        }
    }
    for instance in &instances {
        match course(snapshot, instance) {
            Course::Leave => steps.of(instance, leave::steps(instance)),
            Course::Float => steps.of(instance, partition::undo(instance)),
            Course::Hold => {}
        }
    }
    steps.shared(outside::restrict(snapshot));

    let holding: Vec<&&Instance> = instances
        .iter()
        .filter(|instance| course(snapshot, instance) == Course::Hold)
        .collect();
    let taking = || holding.iter().filter(|instance| takes(snapshot, instance));
    // While a scope still holds its list the slice must cover it: to grow, outer levels first; to shrink, inner first.
    let held: CpuSet = snapshot
        .instances
        .iter()
        .flat_map(|instance| instance.scope_exclusive.iter())
        .chain(snapshot.left_alone.iter())
        .collect();
    let growing: CpuSet = taking()
        .flat_map(|instance| partition::list(instance).iter().collect::<Vec<_>>())
        .collect();
    let mut slice = snapshot.slice.exclusive.clone().unwrap_or_default();
    if !growing.is_subset(&slice) {
        slice = growing.union(&held);
        steps.shared(vec![exclusive(&CgroupPath::slice(), &slice)]);
    }
    for instance in &holding {
        steps.of(instance, partition::hold(snapshot, instance));
    }
    // A scope that died took its list along, but not its share of the slice's.
    let dead: CpuSet = snapshot
        .instances
        .iter()
        .filter(|instance| !instance.populated)
        .flat_map(|instance| instance.scope_exclusive.iter())
        .collect();
    let keep = growing.union(&dead).union(&snapshot.left_alone);
    if slice != keep {
        steps.shared(vec![exclusive(&CgroupPath::slice(), &keep)]);
    }
    steps.shared(outside::restore(snapshot));
    steps.shared(snapshot.outside_gone.iter().cloned().map(Step::Unrecord).collect());
    steps.shared(limits::slice(snapshot));
    for instance in &instances {
        if course(snapshot, instance) != Course::Leave {
            steps.of(instance, limits::scope(instance));
        }
    }
    for instance in &instances {
        let next = next_phase(instance).filter(|_| course(snapshot, instance) != Course::Leave);
        if let Some(phase) = next.filter(|_| !steps.busy(instance)) {
            steps.of(instance, vec![Step::Enter(instance.scope.clone(), phase)]);
        }
    }
    steps.0
}

/// The phase an instance enters when nothing is left to do for it.
fn next_phase(instance: &Instance) -> Option<Phase> {
    match instance.record.phase {
        Phase::Registered => instance
            .float()
            .filter(|float| !float.cpus.is_empty())
            .map(|_| Phase::Floating),
        Phase::Attaching if instance.record.partition == Partition::Member => Some(Phase::Contained),
        Phase::Attaching => Some(Phase::Isolated),
        _ => None,
    }
}

/// What kubelet changed is written down before anything is done about it, so that a daemon which dies meanwhile goes on.
fn record_steps(snapshot: &Snapshot, instance: &Instance) -> Vec<Step> {
    let record = &instance.record;
    if record.phase == Phase::Leaving {
        return Vec::new();
    }
    if let Entitlement::Changed { entry, exclusive } = entitlement(snapshot, instance) {
        return vec![Step::Entitle {
            scope: instance.scope.clone(),
            entry,
            exclusive,
        }];
    }
    if let Some(pool) = pod_pool::of(snapshot, instance)
        && record.pod_pool.as_ref() != Some(&pool)
    {
        return vec![Step::Share(instance.scope.clone(), pool)];
    }
    let vcpus = record.vcpus.iter().filter(|thread| !is_iothread(thread.index)).count();
    let fits = vcpus <= record.exclusive.len();
    let misplaced = |thread: &VcpuThread| match thread.cpu {
        Some(cpu) => !record.exclusive.contains(cpu),
        None => fits,
    };
    if !record.phase.has_vcpus() || !record.vcpus.iter().any(misplaced) {
        return Vec::new();
    }
    let placement = place(record.placement, &record.guest(), &record.exclusive, &snapshot.topology);
    let (vcpus, partition) = placed(&record.vcpus, &placement.pins, record.partition);
    if vcpus == record.vcpus {
        return Vec::new();
    }
    vec![Step::Place(instance.scope.clone(), vcpus, partition)]
}

/// The threads with the CPUs chosen for them. An I/O thread without one is not among them: it floats. vCPUs that share CPUs need a scheduler that balances them: `root`.
pub fn placed(vcpus: &[VcpuThread], pins: &[(u32, Option<u32>)], partition: Partition) -> (Vec<VcpuThread>, Partition) {
    let pin = |index: u32| pins.iter().find(|(other, _)| *other == index).and_then(|(_, cpu)| *cpu);
    let vcpus: Vec<VcpuThread> = vcpus
        .iter()
        .map(|thread| VcpuThread {
            cpu: pin(thread.index),
            ..*thread
        })
        .filter(|thread| thread.cpu.is_some() || !is_iothread(thread.index))
        .collect();
    let shared = vcpus.iter().any(|thread| thread.cpu.is_none());
    let partition = match partition {
        Partition::Isolated if shared => Partition::Root,
        other => other,
    };
    (vcpus, partition)
}

/// Steps as they gather.
struct Steps(Vec<Planned>);

impl Steps {
    fn of(&mut self, instance: &Instance, steps: Vec<Step>) {
        let pod = Some(instance.record.pod.clone());
        self.0
            .extend(steps.into_iter().map(|step| Planned { pod: pod.clone(), step }));
    }

    fn shared(&mut self, steps: Vec<Step>) {
        self.0.extend(steps.into_iter().map(|step| Planned { pod: None, step }));
    }

    /// Whether something is left to do that an instance depends on.
    fn busy(&self, instance: &Instance) -> bool {
        self.0
            .iter()
            .any(|planned| planned.pod.as_ref().is_none_or(|pod| *pod == instance.record.pod))
    }
}

fn exclusive(cgroup: &CgroupPath, cpus: &CpuSet) -> Step {
    Step::Write(cgroup.clone(), File::CpusExclusive, cpus.to_string())
}

#[cfg(test)]
mod properties;
#[cfg(test)]
pub(crate) mod tests;
