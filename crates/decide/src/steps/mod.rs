//! The steps that bring the system from a snapshot to what the records and kubelet's file say.

pub(crate) mod limits;
mod outside_units;
pub(crate) mod partition;
mod records;
mod shared_lists;
mod step;
mod wait;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File};
use stelia_kubelet::PodUid;
use stelia_model::record::Phase;
use stelia_settings::Policies;

use super::entitlement::{Entitlement, Eviction, entitlement, eviction};
use super::home::{remove_abandoned, remove_below, set_float};
use super::totals::Total;
use super::{Assessment, Derived, Instance, Snapshot};
use records::record_steps;
use shared_lists::SharedLists;

pub use limits::{is_throttled, limits_are_carried, limits_of_scope, too_much_memory};
pub use outside_units::{OUTSIDE, is_restricted};
pub(super) use partition::growing_list;
pub(crate) use records::placed;
pub use step::{Planned, Step, Whom};
pub use wait::{Wait, waits};

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

pub(super) fn current_placement(snapshot: &Snapshot, facts: &Derived, instance: &Instance) -> ThreadPlacement {
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
        let holds = |vcpu: &super::ThreadedCgroup| instance.behaviour().holds_cpus(&instance.record, vcpu);
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
    let assessed: BTreeMap<PodUid, Assessment> = live
        .map(|instance| (instance.record.pod.clone(), assess(instance)))
        .collect();
    let waits = waits(snapshot, &facts, &assessed);
    plan_for(snapshot, &facts, policies, &assessed, &waits)
}

/// What a plan is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) facts: &'a Derived,
    pub(crate) policies: &'a Policies,
}

/// The steps for those instances that were assessed, and for what all share, in the order in which they are to be applied. A turn applies them,
/// reads what they were about and plans again until there is none: what depends on the outcome of a step is planned in the next turn.
pub fn plan_for(
    snapshot: &Snapshot,
    facts: &Derived,
    policies: &Policies,
    assessed: &BTreeMap<PodUid, Assessment>,
    waits: &BTreeMap<PodUid, Wait>,
) -> Vec<Planned> {
    let inputs = Inputs {
        snapshot,
        facts,
        policies,
    };
    let mut planning = Planning::of(inputs, assessed, waits);
    // While records change, instances only leave other pods' CPUs: the changes may give CPUs to other instances.
    if planning.change_records() {
        return planning.steps;
    }
    planning.remove_abandoned_scopes();
    // No float may include CPUs that are about to become another instance's partition.
    planning.make_cgroups_and_set_floats();
    // Threads leave CPUs before others are moved to them.
    planning.leave_cpus();
    // A pinned instance's threads are moved only once the units outside are off its CPUs.
    planning.restrict_outside_units();
    // A list gets no CPU that the other one still has.
    planning.narrow_shared_lists_for_others();
    // A partition of kind `root` does not keep them off by itself.
    planning.keep_workers_off();
    planning.take_cpus();
    // A list loses a CPU only after the lists below it were read without that CPU.
    planning.narrow_shared_lists();
    planning.restore_outside_units();
    // The slice weighs what its scopes weigh.
    planning.set_limits();
    // The vCPU threads that were in them have left them.
    planning.remove_containers_cgroups();
    // A phase says that everything before it is done, as read back: so it is the only step of its instance.
    planning.enter_phases();
    planning.steps
}

/// An instance that is planned for.
struct Participant<'a> {
    instance: &'a Instance,
    assessment: &'a Assessment,
    placement: ThreadPlacement,
}

struct Planning<'a> {
    inputs: Inputs<'a>,
    participants: Vec<Participant<'a>>,
    lists: SharedLists<'a>,
    waits: &'a BTreeMap<PodUid, Wait>,
    steps: Vec<Planned>,
}

impl<'a> Planning<'a> {
    fn of(inputs: Inputs<'a>, assessed: &'a BTreeMap<PodUid, Assessment>, waits: &'a BTreeMap<PodUid, Wait>) -> Self {
        let instances = &inputs.snapshot.instances;
        let participant = |(pod, assessment): (&'a PodUid, &'a Assessment)| {
            let instance = instances.get(pod).filter(|instance| instance.populated)?;
            Some(Participant {
                instance,
                assessment,
                placement: thread_placement(instance, assessment.must_float),
            })
        };
        Self {
            inputs,
            participants: assessed.iter().filter_map(participant).collect(),
            lists: SharedLists::of(inputs.snapshot, inputs.facts.totals()),
            waits,
            steps: Vec::new(),
        }
    }

    /// Changes of records; whether there are any. Then only threads that must float are moved, also if the record cannot be written.
    fn change_records(&mut self) -> bool {
        let Inputs { snapshot, policies, .. } = self.inputs;
        let (mut changes, mut moves) = (Vec::new(), Vec::new());
        for one in &self.participants {
            let (instance, assessment) = (one.instance, one.assessment);
            changes.extend(steps_of(
                instance,
                record_steps(snapshot, policies, instance, assessment),
            ));
            if assessment.must_float && one.placement == ThreadPlacement::Float {
                moves.extend(steps_of(instance, partition::undo(instance)));
            }
        }
        if changes.is_empty() {
            return false;
        }
        self.steps.extend(moves.into_iter().chain(changes));
        true
    }

    fn remove_abandoned_scopes(&mut self) {
        self.add_for_node(remove_abandoned(self.inputs.snapshot));
    }

    fn make_cgroups_and_set_floats(&mut self) {
        for one in &self.participants {
            let (instance, float) = (one.instance, one.assessment.float.as_ref());
            let made = match one.placement {
                // Leaving may never end, so the list of its float is kept current.
                ThreadPlacement::Leave => {
                    let step = instance.float().and_then(|_| set_float(&self.inputs, instance, float));
                    step.into_iter().collect()
                }
                placement => instance.behaviour().make(&self.inputs, instance, placement, float),
            };
            self.steps.extend(steps_of(instance, made));
        }
    }

    fn leave_cpus(&mut self) {
        for one in &self.participants {
            let steps = match one.placement {
                ThreadPlacement::Leave => one.instance.behaviour().leave(one.instance),
                ThreadPlacement::Float => partition::undo(one.instance),
                ThreadPlacement::Hold => continue,
            };
            self.steps.extend(steps_of(one.instance, steps));
        }
    }

    fn restrict_outside_units(&mut self) {
        let Inputs { snapshot, facts, .. } = self.inputs;
        self.add_for_node(outside_units::restrict(snapshot, facts));
    }

    fn narrow_shared_lists_for_others(&mut self) {
        self.add_for_node(self.lists.give_up());
    }

    fn keep_workers_off(&mut self) {
        let closed = self.inputs.facts.totals().cpus(Total::RootPartitions);
        let workers = self.inputs.snapshot.slice.workers.as_ref();
        let changes = workers.is_some_and(|workers| super::workers::are_to_change(workers, closed));
        self.add_for_node(changes.then(|| Step::KeepWorkersOff(closed.clone())));
    }

    fn take_cpus(&mut self) {
        let holding = self
            .participants
            .iter()
            .filter(|one| one.placement == ThreadPlacement::Hold);
        // Those that need no other CPUs come first: they give up what the others are to have.
        let (giving, taking): (Vec<_>, Vec<_>) = holding.partition(|one| one.instance.needed().is_empty());
        for one in giving.into_iter().chain(taking) {
            let instance = one.instance;
            if self.waits.contains_key(&instance.record.pod) {
                continue;
            }
            let above = partition::extend_above(self.inputs.snapshot, instance);
            let own = instance.behaviour().hold(self.inputs.facts, instance);
            self.steps.extend(steps_of(instance, above.into_iter().chain(own)));
        }
    }

    fn narrow_shared_lists(&mut self) {
        self.add_for_node(self.lists.narrow());
    }

    fn restore_outside_units(&mut self) {
        let Inputs { snapshot, facts, .. } = self.inputs;
        self.add_for_node(outside_units::restore(snapshot, facts));
        self.add_for_node(snapshot.outside_gone.iter().cloned().map(Step::Unrecord));
    }

    fn set_limits(&mut self) {
        let totals = self.inputs.facts.totals();
        self.add_for_node(limits::slice(self.inputs.snapshot, totals));
        self.add_for_staying(limits::scope);
    }

    fn remove_containers_cgroups(&mut self) {
        self.add_for_staying(remove_below);
    }

    fn enter_phases(&mut self) {
        let busy: BTreeSet<PodUid> = self
            .steps
            .iter()
            .filter_map(|planned| planned.whom.pod().cloned())
            .collect();
        for one in &self.participants {
            let (instance, pod) = (one.instance, &one.instance.record.pod);
            let enters = match instance.record.phase {
                // Its vCPU threads float: an attach fails then, and nobody is told that they are isolated.
                Phase::Attaching => one.placement == ThreadPlacement::Hold,
                _ => one.placement != ThreadPlacement::Leave,
            };
            let is_ready = enters && !busy.contains(pod) && !self.waits.contains_key(pod);
            let next = next_phase(instance).filter(|_| is_ready);
            let enter = next.map(|phase| Step::Enter(instance.scope().clone(), phase));
            self.steps.extend(steps_of(instance, enter));
        }
    }

    /// Steps for each instance that does not leave.
    fn add_for_staying(&mut self, steps: impl Fn(&Instance) -> Vec<Step>) {
        let participants = self.participants.iter();
        let staying = participants.filter(|one| one.placement != ThreadPlacement::Leave);
        let steps = staying.flat_map(|one| steps_of(one.instance, steps(one.instance)));
        self.steps.extend(steps);
    }

    fn add_for_node(&mut self, steps: impl IntoIterator<Item = Step>) {
        let steps = steps.into_iter();
        self.steps.extend(steps.map(|step| Planned { whom: Whom::Node, step }));
    }
}

/// The phase an instance enters when no other step remains for it.
fn next_phase(instance: &Instance) -> Option<Phase> {
    match instance.record.phase {
        Phase::Registered | Phase::Floating => instance.behaviour().next_phase(instance),
        Phase::Attaching if instance.record.has_partition() => Some(Phase::Isolated),
        Phase::Attaching => Some(Phase::Pinned),
        Phase::Pinned if is_made(instance) => Some(Phase::Isolated),
        _ => None,
    }
}

/// Whether the kernel has made the partition of a pinned instance that it had refused.
fn is_made(instance: &Instance) -> bool {
    let kind = instance.record.partition;
    let has_it = |vcpu: &super::ThreadedCgroup| vcpu.partition == kind.name();
    instance.record.has_partition() && instance.vcpu().is_some_and(has_it)
}

/// These steps as steps of the instance.
fn steps_of(instance: &Instance, steps: impl IntoIterator<Item = Step>) -> impl Iterator<Item = Planned> {
    let whom = Whom::Instance(instance.record.pod.clone());
    let steps = steps.into_iter();
    steps.map(move |step| Planned {
        whom: whom.clone(),
        step,
    })
}

fn set_exclusive(cgroup: &CgroupPath, cpus: &CpuSet) -> Step {
    Step::Write(cgroup.clone(), File::CpusExclusive, cpus.to_string())
}

#[cfg(test)]
pub(super) mod laws;
#[cfg(test)]
pub(crate) mod tests;
