//! From what is to what must be: the steps of one pass.

mod leave;
mod limits;
mod outside;
mod partition;
mod tree;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::ThreadRole;
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_node::cgroup::{CgroupPath, File, Limits};
use stelia_record::{Phase, Record, VcpuThread};
use stelia_settings::{Partition, Policies};

use super::entitlement::{Entitlement, entitlement};
use super::placement::place;
use super::{Assessment, Facts, Instance, Snapshot, pod_pool};

pub use limits::{is_throttled, limits_are_carried, limits_of_scope, too_much_memory};
pub use outside::{OUTSIDE, is_restricted};
pub(super) use tree::float_cpus;

/// So often the kernel may refuse a partition before the weaker promise is made.
const REFUSALS: u32 = 2;

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
    /// Record that the kernel gives no partition: the instance is to be contained.
    Contain(CgroupPath),
    /// Set limits on a unit, through systemd.
    Limit(String, Box<Limits>),
    /// Set the weight of stelia.slice, through systemd.
    Weigh(u64),
    /// Set how much memory of stelia.slice is protected, bytes, through systemd.
    Protect {
        /// `MemoryMin`.
        min: u64,
        /// `MemoryLow`.
        low: u64,
    },
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
    /// Keep the kernel's unbound workers off these CPUs and let them have what else was taken from them.
    KeepWorkersOff(CpuSet),
}

impl Step {
    /// The record after a step that is about the record alone, taken at this time (microseconds since the epoch); `None`
    /// for every other step.
    pub fn recorded(&self, record: &Record, now_us: u64) -> Option<Record> {
        let mut next = record.clone();
        match self {
            Self::Enter(_, phase) => {
                if matches!(phase, Phase::Isolated | Phase::Contained) {
                    next.isolated_us = now_us;
                }
                next.phase = *phase;
            }
            Self::Entitle { entry, exclusive, .. } => {
                (next.entry, next.exclusive) = (entry.clone(), exclusive.clone());
            }
            Self::Share(_, pool) => next.pod_pool = Some(pool.clone()),
            Self::Place(_, vcpus, partition) => (next.vcpus, next.partition) = (vcpus.clone(), *partition),
            Self::Contain(_) => next.partition = Partition::Member,
            _ => return None,
        }
        Some(next)
    }

    /// Whether it says what is to be planned for from now on: until it is taken nobody is.
    pub fn comes_first(&self) -> bool {
        matches!(
            self,
            Self::Entitle { .. } | Self::Share(..) | Self::Place(..) | Self::Contain(_)
        )
    }

    /// What a step that is nobody's alone is about: such steps fail, and rest, each by itself.
    pub fn subject(&self) -> String {
        match (self.is_systemds(), self) {
            (Some(unit), _) => unit.to_owned(),
            (None, Self::Write(cgroup, file, _)) => format!("{cgroup}/{}", file.name()),
            (None, Self::Unrecord(unit)) => unit.clone(),
            (None, Self::KeepWorkersOff(_)) => WORKERS.to_owned(),
            (None, step) => step.to_string(),
        }
    }

    /// Whether an instance with this partition needs what a step of this subject does: CPUs that the kernel keeps everybody
    /// off are first in the slice's list; where it does not, everybody else is first kept off by the lists outside. Without the
    /// slice's controllers an instance has no limits of huge pages.
    pub fn is_needed(subject: &str, partition: Partition) -> bool {
        let of_slice = |file: File| subject == format!("/{SLICE}/{}", file.name());
        let of_partition = match partition {
            Partition::Member => !subject.contains(SLICE) && subject != WORKERS,
            Partition::Isolated | Partition::Root => of_slice(File::CpusExclusive),
        };
        of_partition || of_slice(File::SubtreeControl)
    }

    /// Whether it is systemd that takes it: nobody waits for that.
    pub fn is_systemds(&self) -> Option<&str> {
        match self {
            Self::Limit(unit, _) | Self::Restrict { unit, .. } | Self::Restore(unit, _) => Some(unit),
            Self::Weigh(_) | Self::Protect { .. } => Some(SLICE),
            Self::Forget(scope) => Some(scope.name()),
            _ => None,
        }
    }
}

/// The slice that all instances are in.
const SLICE: &str = "stelia.slice";
/// What no instance waits for: without a mask its promise is less by the kernel's workers, which is told of the node.
const WORKERS: &str = "the kernel's unbound workers";

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
pub(super) enum Course {
    /// Everything goes back.
    Leave,
    /// Its vCPU threads belong in `vcpu/`.
    Hold,
    /// Everything floats: no vCPUs yet, or its CPUs are another's.
    Float,
}

fn course(instance: &Instance, evicted: bool) -> Course {
    match instance.record.phase {
        Phase::Leaving => Course::Leave,
        phase if phase.has_vcpus() && !evicted => Course::Hold,
        _ => Course::Float,
    }
}

/// The same for one that nobody assessed yet.
pub(super) fn course_of(snapshot: &Snapshot, facts: &Facts, instance: &Instance) -> Course {
    course(instance, is_evicted(snapshot, facts, instance))
}

/// Whether an instance floats although it has vCPUs: kubelet gave its CPUs to somebody else. While kubelet's state cannot be
/// used nobody knows whose they are, so an instance that floats stays there.
pub(super) fn evicted(instance: &Instance, entitlement: &Entitlement) -> bool {
    match entitlement {
        Entitlement::Lost { .. } => true,
        Entitlement::Unknown => {
            let holds = |leaf: &super::Leaf| !leaf.threads.is_empty();
            instance.record.phase.has_vcpus() && !instance.vcpu().is_some_and(holds)
        }
        _ => false,
    }
}

/// Whether kubelet gave the instance's CPUs to somebody else.
pub(super) fn is_evicted(snapshot: &Snapshot, facts: &Facts, instance: &Instance) -> bool {
    evicted(instance, &entitlement(snapshot, facts, instance))
}

/// The exclusive list of an instance's levels in this round, where it has a partition.
pub(super) fn growing(instance: &Instance) -> CpuSet {
    partition::list(instance)
}

/// The steps that bring the system to what the records and kubelet say; empty when it is.
pub fn plan(snapshot: &Snapshot, policies: &Policies) -> Vec<Planned> {
    let facts = Facts::of(snapshot, policies);
    let assess = |instance: &Instance| Assessment::of(snapshot, &facts, policies, instance);
    let live = snapshot.live();
    let assessed = live
        .map(|instance| (instance.record.pod.clone(), assess(instance)))
        .collect();
    plan_for(snapshot, &facts, policies, &assessed).steps
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in their order.
    pub steps: Vec<Planned>,
    /// Instances that cannot go on before steps that all share are done.
    pub waiting: BTreeSet<PodUid>,
}

/// The steps for those instances that were assessed, and for what all share. A turn takes them, looks again at what they
/// were about and plans again until nothing is left: what depends on the outcome of a step is left to the next turn.
pub fn plan_for(
    snapshot: &Snapshot,
    facts: &Facts,
    policies: &Policies,
    assessed: &BTreeMap<PodUid, Assessment>,
) -> Plan {
    let mut steps = Steps(Vec::new());
    let mut waiting = BTreeSet::new();
    steps.shared(leave::abandoned(snapshot));
    let mut instances: Vec<(&Instance, &Assessment, Course)> = Vec::new();
    let mut records = Steps(Vec::new());
    for (pod, assessment) in assessed {
        if let Some(instance) = snapshot.instances.get(pod).filter(|instance| instance.populated) {
            records.of(instance, record_steps(snapshot, instance, assessment));
            instances.push((instance, assessment, course(instance, assessment.evicted)));
        }
    }
    // What must be written down before a thread is moved or pinned anew. Nobody is planned for meanwhile: whose CPUs are
    // whose may be another matter then.
    if !records.0.is_empty() {
        return Plan {
            steps: records.0,
            waiting,
        };
    }

    // Floats first: nothing of an instance may stand on CPUs that are about to become another's partition. And whoever
    // must leave CPUs leaves before anybody enters them.
    for (instance, assessment, course) in &instances {
        let float = assessment.float.as_ref();
        let made = match course {
            // It may take a while, or stay for good.
            Course::Leave if instance.float().is_some() => {
                let step = tree::float_step(snapshot, facts, policies, instance, float);
                step.into_iter().collect()
            }
            Course::Leave => Vec::new(),
            _ => tree::steps(snapshot, facts, policies, instance, *course, float),
        };
        steps.of(instance, made);
    }
    for (instance, _, course) in &instances {
        match course {
            Course::Leave => steps.of(instance, leave::steps(instance)),
            Course::Float => steps.of(instance, partition::undo(instance)),
            Course::Hold => {}
        }
    }
    let restrict = outside::restrict(snapshot, facts);
    let unrestricted = !restrict.is_empty();
    steps.shared(restrict);

    // While a scope still holds its list the slice must cover it: to grow, outer levels first; to shrink, inner first.
    let totals = facts.totals();
    let slice = snapshot.slice.exclusive.clone().unwrap_or_default();
    let list = totals.growing().union(totals.held()).union(&snapshot.left_alone);
    let uncovered = !totals.growing().is_subset(&slice);
    if uncovered {
        steps.shared(vec![exclusive(&CgroupPath::slice(), &list)]);
    }
    steps.shared(workers(snapshot, facts));
    // What an instance needs of others and does not have yet: without a list in the slice no partition, and before
    // everybody else is kept off its CPUs no promise.
    let waits = |instance: &Instance| match instance.record.partition {
        Partition::Member => unrestricted,
        Partition::Isolated | Partition::Root => uncovered,
    };
    for (instance, _, course) in &instances {
        let contained = instance.record.partition == Partition::Member;
        if *course != Course::Hold {
            continue;
        }
        if waits(instance) {
            waiting.insert(instance.record.pod.clone());
        }
        if !(contained && unrestricted) {
            steps.of(instance, partition::hold(facts, instance));
        }
    }
    // It shrinks once the scopes' lists are seen to have shrunk. A scope that died takes its list along, but not its share of
    // the slice's.
    if !uncovered && slice != list {
        steps.shared(vec![exclusive(&CgroupPath::slice(), &list)]);
    }
    steps.shared(outside::restore(snapshot, facts));
    steps.shared(snapshot.outside_gone.iter().cloned().map(Step::Unrecord).collect());
    steps.shared(limits::slice(snapshot, totals));
    for (instance, _, course) in &instances {
        if *course != Course::Leave {
            steps.of(instance, limits::scope(instance));
        }
        if instance.record.phase == Phase::Registered && !limits::huge_pages_are_limited(instance) {
            waiting.insert(instance.record.pod.clone());
        }
    }
    let busy = steps.busy();
    for (instance, _, course) in &instances {
        let next = next_phase(instance).filter(|_| *course != Course::Leave);
        let pod = &instance.record.pod;
        if let Some(phase) = next.filter(|_| !busy.contains(pod) && !waiting.contains(pod)) {
            steps.of(instance, vec![Step::Enter(instance.scope().clone(), phase)]);
        }
    }
    Plan {
        steps: steps.0,
        waiting,
    }
}

/// Before a partition is made that does not keep the kernel's unbound workers off, and when one is gone.
fn workers(snapshot: &Snapshot, facts: &Facts) -> Vec<Step> {
    let closed = facts.totals().closed_to_workers();
    let workers = snapshot.slice.workers.as_ref();
    let changes = workers.is_some_and(|workers| super::workers::are_to_change(workers, closed));
    changes
        .then(|| Step::KeepWorkersOff(closed.clone()))
        .into_iter()
        .collect()
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
fn record_steps(snapshot: &Snapshot, instance: &Instance, assessment: &Assessment) -> Vec<Step> {
    let record = &instance.record;
    if record.phase == Phase::Leaving {
        return Vec::new();
    }
    let scope = || instance.scope().clone();
    if let Entitlement::Changed { entry, exclusive } = &assessment.entitlement {
        return vec![Step::Entitle {
            scope: scope(),
            entry: entry.clone(),
            exclusive: exclusive.clone(),
        }];
    }
    if record.phase == Phase::Attaching && record.partition != Partition::Member && instance.refusals >= REFUSALS {
        return vec![Step::Contain(scope())];
    }
    if let Some(pool) = pod_pool::of(snapshot, instance)
        && record.pod_pool.as_ref() != Some(&pool)
    {
        return vec![Step::Share(scope(), pool)];
    }
    let guest = record.guest();
    let fits = guest.len() <= record.exclusive.len();
    let misplaced = |thread: &VcpuThread| match thread.cpu {
        Some(cpu) => !record.exclusive.contains(cpu),
        None => fits,
    };
    if !record.phase.has_vcpus() || !record.vcpus.iter().any(misplaced) {
        return Vec::new();
    }
    let placement = place(
        record.placement,
        &guest,
        record.vcpus.iter().map(|thread| thread.role),
        &record.exclusive,
        &snapshot.topology,
    );
    let (vcpus, partition) = placed(&record.vcpus, &placement.pins, record.partition);
    if vcpus == record.vcpus {
        return Vec::new();
    }
    vec![Step::Place(scope(), vcpus, partition)]
}

/// The threads with the CPUs chosen for them. An I/O thread without one is not among them: it floats. vCPUs that share CPUs need a scheduler that balances them: `root`.
pub fn placed(
    vcpus: &[VcpuThread],
    pins: &[(ThreadRole, Option<u32>)],
    partition: Partition,
) -> (Vec<VcpuThread>, Partition) {
    let pin = |role: ThreadRole| pins.iter().find(|(other, _)| *other == role).and_then(|(_, cpu)| *cpu);
    let vcpus: Vec<VcpuThread> = vcpus
        .iter()
        .map(|thread| VcpuThread {
            cpu: pin(thread.role),
            ..*thread
        })
        .filter(|thread| thread.cpu.is_some() || matches!(thread.role, ThreadRole::Vcpu(_)))
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

    /// The instances for which something is left to do.
    fn busy(&self) -> BTreeSet<PodUid> {
        self.0.iter().filter_map(|planned| planned.pod.clone()).collect()
    }
}

fn exclusive(cgroup: &CgroupPath, cpus: &CpuSet) -> Step {
    Step::Write(cgroup.clone(), File::CpusExclusive, cpus.to_string())
}

#[cfg(test)]
pub(super) mod properties;
#[cfg(test)]
pub(crate) mod tests;
