//! The steps that bring the system from a snapshot to what the records and kubelet's file say.

mod in_place;
mod leave;
mod limits;
mod origin;
mod outside_units;
mod partition;
mod records;
mod step;
mod tree;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File};
use stelia_kubelet::PodUid;
use stelia_model::record::Phase;
use stelia_settings::{Partition, Policies};

use super::entitlement::{Entitlement, Eviction, entitlement, eviction};
use super::totals::Of;
use super::{Assessment, Derived, Instance, Snapshot};
use records::record_steps;

pub use limits::{is_throttled, limits_are_carried, limits_of_scope, too_much_memory};
pub use outside_units::{OUTSIDE, is_restricted};
pub(super) use partition::growing_list;
pub(crate) use records::placed;
pub use step::{Planned, Step};
pub(super) use tree::float_cpus;

/// Where the threads of an instance belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadPlacement {
    /// In the container's own cgroup: it leaves.
    Leave,
    /// The vCPU threads in `vcpu/`, all others in `float/`.
    Hold,
    /// All in `float/`: there are no vCPUs yet, or they must float ([`must_float`]).
    Float,
}

pub(super) fn thread_placement(instance: &Instance, must_float: bool) -> ThreadPlacement {
    match instance.record.phase {
        Phase::Leaving => ThreadPlacement::Leave,
        phase if phase.has_vcpus() && !must_float => ThreadPlacement::Hold,
        _ => ThreadPlacement::Float,
    }
}

pub(super) fn course_of(snapshot: &Snapshot, facts: &Derived, instance: &Instance) -> ThreadPlacement {
    thread_placement(instance, instance_must_float(snapshot, facts, instance))
}

/// Whether the vCPU threads of an instance must float, for one of two reasons:
///
/// - kubelet's entry was lost or moved: some of the CPUs belong to another pod (`eviction`). While kubelet's file cannot be used the
///   owner is unknown, and vCPU threads that float stay in `float/`.
/// - None of the CPUs is online: the kernel would let the threads of the cpuset run on the CPUs of its parent, which include those of
///   other pods.
pub(super) fn must_float(
    facts: &Derived,
    instance: &Instance,
    entitlement: &Entitlement,
    eviction: Option<&Eviction>,
) -> bool {
    let exclusive = &instance.record.exclusive;
    // While the topology cannot be read, the list of online CPUs is empty.
    if !exclusive.is_empty() && !facts.online().is_empty() && exclusive.is_disjoint(facts.online()) {
        return true;
    }
    if *entitlement == Entitlement::Unknown {
        let holds = |leaf: &super::ThreadedCgroup| {
            if instance.is_container() {
                // Without a partition the units outside are kept off its CPUs.
                instance.record.partition == Partition::Member || !leaf.exclusive.is_empty()
            } else {
                !leaf.threads.is_empty()
            }
        };
        return instance.record.phase.has_vcpus() && !instance.vcpu().is_some_and(holds);
    }
    eviction.is_some()
}

/// [`must_float`] for an instance without an assessment.
pub(super) fn instance_must_float(snapshot: &Snapshot, facts: &Derived, instance: &Instance) -> bool {
    let entitlement = entitlement(snapshot, facts, instance);
    let eviction = eviction(snapshot, facts, instance, &entitlement);
    must_float(facts, instance, &entitlement, eviction.as_ref())
}

/// The steps for every live instance; empty when there is nothing to do.
pub fn plan(snapshot: &Snapshot, policies: &Policies) -> Vec<Planned> {
    let facts = Derived::of(snapshot, policies);
    let assess = |instance: &Instance| Assessment::of(snapshot, &facts, policies, instance);
    let live = snapshot.live();
    let assessed = live
        .map(|instance| (instance.record.pod.clone(), assess(instance)))
        .collect();
    plan_for(snapshot, &facts, policies, &assessed).steps
}

/// The steps that are due.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they are to be taken.
    pub steps: Vec<Planned>,
    /// Instances that cannot go on before steps that all share are done.
    pub waiting: BTreeSet<PodUid>,
}

/// The steps for those instances that were assessed, and for what all share. A turn takes them, looks again at what they
/// were about and plans again until there is none: what depends on the outcome of a step is planned in the next turn.
pub fn plan_for(
    snapshot: &Snapshot,
    facts: &Derived,
    policies: &Policies,
    assessed: &BTreeMap<PodUid, Assessment>,
) -> Plan {
    let mut steps = Steps(Vec::new());
    let mut waiting = BTreeSet::new();
    steps.shared(leave::abandoned(snapshot));
    let mut instances: Vec<(&Instance, &Assessment, ThreadPlacement)> = Vec::new();
    let mut records = Steps(Vec::new());
    for (pod, assessment) in assessed {
        if let Some(instance) = snapshot.instances.get(pod).filter(|instance| instance.populated) {
            records.of(instance, record_steps(snapshot, policies, instance, assessment));
            instances.push((instance, assessment, thread_placement(instance, assessment.must_float)));
        }
    }
    // Changes of records come before threads are moved or pinned. Nothing else is planned meanwhile, because the changes may give
    // CPUs to other instances. Only threads that must float are moved, also if the record cannot be written.
    if !records.0.is_empty() {
        let floating = instances.iter().filter(|(_, assessment, _)| assessment.must_float);
        let mut steps = Steps(Vec::new());
        for (instance, ..) in floating.filter(|(_, _, thread_placement)| *thread_placement == ThreadPlacement::Float) {
            steps.of(instance, partition::undo(instance));
        }
        steps.0.append(&mut records.0);
        return Plan {
            steps: steps.0,
            waiting,
        };
    }

    // Floats first: no float may include CPUs that are about to become another instance's partition. And threads leave CPUs
    // before others are moved to them.
    for (instance, assessment, thread_placement) in &instances {
        let float = assessment.float.as_ref();
        let made = match thread_placement {
            _ if instance.is_container() => Vec::new(),
            // It may take a while, or stay for good.
            ThreadPlacement::Leave if instance.float().is_some() => {
                let step = tree::float_step(snapshot, facts, policies, instance, float);
                step.into_iter().collect()
            }
            ThreadPlacement::Leave => Vec::new(),
            _ => tree::steps(snapshot, facts, policies, instance, *thread_placement, float),
        };
        steps.of(instance, made);
    }
    for (instance, _, thread_placement) in &instances {
        match thread_placement {
            ThreadPlacement::Leave => steps.of(instance, leave::steps(instance)),
            ThreadPlacement::Float => steps.of(instance, partition::undo(instance)),
            ThreadPlacement::Hold => {}
        }
    }
    let restrict = outside_units::restrict(snapshot, facts);
    let unrestricted = !restrict.is_empty();
    steps.shared(restrict);

    // While a scope still holds its list the slice must cover it: to grow, outer levels first; to shrink, inner first.
    let totals = facts.totals();
    let slice = snapshot.slice.exclusive.clone().unwrap_or_default();
    let held = totals.cpus(Of::Held).union(&snapshot.left_alone);
    let of_slice = slice.intersection(&held.union(totals.cpus(Of::Growing)));
    // An instance in stelia.slice and one in place may have each other's CPUs now: each tree gives up what it needs no more before the
    // other one takes it, and takes nothing that the other one still has. Who needs that is blocked.
    let levels = in_place::Levels::of(snapshot, totals, &of_slice);
    let of_kubepods = levels.remaining();
    let growing = totals.cpus(Of::Growing).difference(&of_kubepods);
    let list = held.union(&growing);
    let uncovered = !growing.is_subset(&slice);
    let grows = uncovered || levels.uncovered();
    if grows && of_slice != slice {
        steps.shared(vec![exclusive(&CgroupPath::slice(), &of_slice)]);
    }
    steps.shared(levels.give_up(grows));
    if uncovered {
        steps.shared(vec![exclusive(&CgroupPath::slice(), &list)]);
    }
    steps.shared(levels.widen());
    steps.shared(workers(snapshot, facts));
    // What an instance needs of shared steps and does not have yet: no partition without its CPUs in the slice's list, and not
    // pinned before the units outside are off its CPUs.
    let waits = |instance: &Instance| match instance.record.partition {
        Partition::Member => unrestricted,
        _ if instance.is_in_place() => levels.uncovered(),
        Partition::Isolated | Partition::Root => uncovered,
    };
    let mut blocked = BTreeSet::new();
    let holding = || {
        instances
            .iter()
            .filter(|(_, _, thread_placement)| *thread_placement == ThreadPlacement::Hold)
    };
    // Those that need no other CPUs come first: they give up what the others are to have.
    let (giving, taking): (Vec<_>, Vec<_>) = holding().partition(|(instance, ..)| instance.needed().is_empty());
    for (instance, assessment, _) in giving.into_iter().chain(taking) {
        let pod = &instance.record.pod;
        let pinned = instance.record.partition == Partition::Member;
        // What the other tree has without a known instance: a record there cannot be used.
        let elsewhere = if instance.is_in_place() {
            &of_slice
        } else {
            &of_kubepods
        };
        if let Some(other) = &assessment.blocked {
            blocked.insert(pod.clone());
            waiting.extend(other.passes.then(|| pod.clone()));
            continue;
        }
        if !pinned && !instance.needed().is_disjoint(elsewhere) {
            blocked.insert(pod.clone());
            continue;
        }
        if waits(instance) {
            waiting.insert(pod.clone());
        }
        if !(pinned && unrestricted) {
            steps.of(instance, partition::hold(facts, instance));
        }
    }
    // It shrinks once the scopes' lists are seen to have shrunk. A scope that died takes its list along, but not its share of
    // the slice's.
    if !uncovered && slice != list {
        steps.shared(vec![exclusive(&CgroupPath::slice(), &list)]);
    }
    steps.shared(levels.narrow());
    steps.shared(outside_units::restore(snapshot, facts));
    steps.shared(snapshot.outside_gone.iter().cloned().map(Step::Unrecord).collect());
    steps.shared(limits::slice(snapshot, totals));
    for (instance, _, thread_placement) in &instances {
        if *thread_placement != ThreadPlacement::Leave {
            steps.of(instance, limits::scope(instance));
            // vCPU threads that were in them have left them by now.
            steps.of(instance, tree::close(instance));
        }
        if instance.record.phase == Phase::Registered && !limits::huge_pages_are_limited(instance) {
            waiting.insert(instance.record.pod.clone());
        }
    }
    let busy = steps.busy();
    for (instance, _, thread_placement) in &instances {
        let enters = match instance.record.phase {
            // Its vCPU threads float: an attach fails then, and nobody is told that they are isolated.
            Phase::Attaching => *thread_placement == ThreadPlacement::Hold,
            _ => *thread_placement != ThreadPlacement::Leave,
        };
        let next = next_phase(instance).filter(|_| enters);
        let pod = &instance.record.pod;
        let ready = !busy.contains(pod) && !waiting.contains(pod) && !blocked.contains(pod);
        if let Some(phase) = next.filter(|_| ready) {
            steps.of(instance, vec![Step::Enter(instance.scope().clone(), phase)]);
        }
    }
    Plan {
        steps: steps.0,
        waiting,
    }
}

/// Before a partition is made that does not keep the kernel's unbound workers off, and when one is gone.
fn workers(snapshot: &Snapshot, facts: &Derived) -> Vec<Step> {
    let closed = facts.totals().cpus(Of::Root);
    let workers = snapshot.slice.workers.as_ref();
    let changes = workers.is_some_and(|workers| super::workers::are_to_change(workers, closed));
    changes
        .then(|| Step::KeepWorkersOff(closed.clone()))
        .into_iter()
        .collect()
}

/// The phase an instance enters when no other step remains for it.
fn next_phase(instance: &Instance) -> Option<Phase> {
    match instance.record.phase {
        // Nothing of the container is moved to float first.
        Phase::Registered | Phase::Floating if instance.is_container() => Some(Phase::Attaching),
        Phase::Registered => instance
            .float()
            .filter(|float| !float.cpus.is_empty() && instance.strays.is_empty())
            .map(|_| Phase::Floating),
        Phase::Attaching if instance.record.partition == Partition::Member => Some(Phase::Pinned),
        Phase::Attaching => Some(Phase::Isolated),
        Phase::Pinned if is_made(instance) => Some(Phase::Isolated),
        _ => None,
    }
}

/// Whether the kernel has made the partition of a pinned instance that it had refused.
fn is_made(instance: &Instance) -> bool {
    let kind = instance.record.partition;
    let has_it = |vcpu: &super::ThreadedCgroup| vcpu.partition == kind.name();
    kind != Partition::Member && instance.vcpu().is_some_and(has_it)
}

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

    /// The instances that have a step.
    fn busy(&self) -> BTreeSet<PodUid> {
        self.0.iter().filter_map(|planned| planned.pod.clone()).collect()
    }
}

fn exclusive(cgroup: &CgroupPath, cpus: &CpuSet) -> Step {
    Step::Write(cgroup.clone(), File::CpusExclusive, cpus.to_string())
}

#[cfg(test)]
pub(super) mod laws;
#[cfg(test)]
pub(crate) mod tests;
