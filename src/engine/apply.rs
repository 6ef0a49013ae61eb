//! Applying the planned steps, one after the other.

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::{Error, ErrorKind};
use stelia_cpus::{CpuSet, Topology};
use stelia_decide::{Instance, Planned, Step, Tree, Whom, workers};
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File, optional};
use stelia_kernel::clock::now_us;
use stelia_kernel::{System, workqueue};
use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::PodUid;

use super::outside_units::{OWN, WITHHELD, outside, saved_attribute, set_on_slice, withheld};
use super::pass::Numbers;
use super::{in_place, move_tasks, record_writer};

/// Steps of one instance in one turn. The rest is planned again after other instances had theirs.
const MAX_STEPS_PER_TURN: usize = 1024;

/// Cgroups below one that is removed in one turn, of those that a container made although it is not to make any. Removing one takes some 0.1 ms.
const MAX_REMOVED_PER_TURN: u32 = 128;

/// What was done for one instance, or for what all share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StepOutcome {
    pub did: Numbers,
    pub errors: Vec<String>,
    /// The steps that all instances share, by subject, with what failed of each.
    pub subjects: Vec<(String, Option<String>)>,
    /// Whether only the record changed, so that nothing has to be read again.
    pub recorded_only: bool,
    /// Whether only float's CPUs changed, and the affinity of the origin's threads that follow them, besides the record.
    pub float_only: bool,
    /// Whether a list above the instance, which others share, was extended.
    pub extended_above: bool,
    /// Whether a partition was asked for.
    pub asked_for_partition: bool,
    /// Whether a cgroup is still there because only some of those below it were removed.
    pub is_partly_removed: bool,
}

/// Apply the steps; those that systemd applies are returned, in their order. A failed step ends the turn for its instance only. Where a list above
/// an instance refuses its CPUs, only its steps that need them there are left out: a new VM is pinned without a partition, and one
/// that is isolated keeps the partition that it has, and gives up what it is to leave.
pub(super) fn apply(
    system: &System,
    instances: &mut BTreeMap<PodUid, Instance>,
    steps: Vec<Planned>,
) -> (BTreeMap<Whom, StepOutcome>, Vec<Planned>) {
    let mut outcomes: BTreeMap<Whom, StepOutcome> = BTreeMap::new();
    let mut failed: BTreeSet<Whom> = BTreeSet::new();
    let mut lacking: BTreeSet<Whom> = BTreeSet::new();
    let mut systemds = Vec::new();
    for Planned { whom, step } in steps {
        let instance = whom.pod().and_then(|pod| instances.get_mut(pod));
        if lacking.contains(&whom)
            && instance
                .as_deref()
                .is_some_and(|instance| instance.needs_list_above(&step))
        {
            continue;
        }
        let outcome = outcomes.entry(whom.clone()).or_insert_with(|| StepOutcome {
            recorded_only: true,
            float_only: true,
            ..StepOutcome::default()
        });
        let pod = whom.pod();
        if pod.is_some() && (failed.contains(&whom) || outcome.did.steps as usize >= MAX_STEPS_PER_TURN) {
            continue;
        }
        count(outcome, &step);
        tracing::debug!(pod = pod.map(PodUid::as_str), ?step, "step");
        let failure = match apply_step(system, instance, &step) {
            Ok(Progress::Whole) => None,
            // What follows needs the cgroup gone.
            Ok(Progress::Partial { removed }) => {
                outcome.did.steps += removed;
                outcome.did.writes += removed;
                outcome.is_partly_removed = true;
                failed.insert(whom.clone());
                None
            }
            Err(fault) => Some(fault.to_string()),
        };
        if whom == Whom::Node {
            outcome.subjects.push((step.subject(), failure.clone()));
        }
        if let Some(failure) = failure {
            outcome.did.failed += 1;
            outcome.errors.push(failure);
            let of = if matches!(step, Step::Extend(..)) {
                &mut lacking
            } else {
                &mut failed
            };
            of.insert(whom);
        } else if step.systemd_unit().is_some() && !outcome.is_partly_removed {
            systemds.push(Planned { whom, step });
        }
    }
    (outcomes, systemds)
}

fn count(outcome: &mut StepOutcome, step: &Step) {
    outcome.did.steps += 1;
    if step.is_of_record() {
        return;
    }
    match step {
        Step::MoveProcess(..) | Step::MoveThread(..) => outcome.did.moves += 1,
        Step::ResetProcess(_) | Step::ResetThread(_) | Step::Pin(..) | Step::Confine(..) => {}
        _ => outcome.did.writes += 1,
    }
    outcome.recorded_only = false;
    outcome.extended_above |= matches!(step, Step::Extend(..));
    outcome.float_only &= match step {
        Step::Write(cgroup, File::Cpus, _) => Tree::is_float(cgroup),
        Step::Confine(..) => true,
        _ => false,
    };
    let partition = |name: &str| name != "member";
    outcome.asked_for_partition |= match step {
        Step::Write(_, File::Partition, name) => partition(name),
        Step::Write(_, File::CpusExclusive, list) => !list.is_empty(),
        _ => false,
    };
}

/// How much of a step was applied.
enum Progress {
    Whole,
    /// As many cgroups were removed as a turn may, and some remain.
    Partial {
        removed: u32,
    },
}

fn apply_step(system: &System, instance: Option<&mut Instance>, step: &Step) -> Result<Progress, Error> {
    // The scope's cgroup goes first: with that gone there is nothing that stopping the unit could kill.
    if let Step::Remove(path) | Step::Forget(path) = step {
        let mut removed = 0;
        remove(&*system.cgroups, path, &mut removed).map_err(Error::failed)?;
        return Ok(match removed {
            MAX_REMOVED_PER_TURN => Progress::Partial { removed },
            _ => Progress::Whole,
        });
    }
    apply_whole(system, instance, step).map(|()| Progress::Whole)
}

/// Remove a cgroup with those that a container made below it, until so many are removed as may be in one turn. Those that have processes
/// stay.
fn remove(cgroups: &dyn Cgroups, path: &CgroupPath, removed: &mut u32) -> Result<(), CgroupError> {
    let Err(busy) = cgroups.remove(path) else {
        return Ok(());
    };
    let below = optional(cgroups.some_children(path, MAX_REMOVED_PER_TURN as usize))?.unwrap_or_default();
    if below.is_empty() {
        return Err(busy);
    }
    for name in below {
        remove(cgroups, &path.child(&name), removed)?;
        // Those below it may have been as many.
        if *removed < MAX_REMOVED_PER_TURN {
            *removed += 1;
        }
        if *removed == MAX_REMOVED_PER_TURN {
            return Ok(());
        }
    }
    cgroups.remove(path)
}

fn apply_whole(system: &System, instance: Option<&mut Instance>, step: &Step) -> Result<(), Error> {
    let cgroups = &*system.cgroups;
    match step {
        Step::Create(path) => cgroups.create(path).map_err(Error::failed),
        Step::Write(path, file, value) => cgroups.write(path, *file, value).map_err(Error::failed),
        Step::MoveProcess(..)
        | Step::MoveThread(..)
        | Step::ResetThread(_)
        | Step::ResetProcess(_)
        | Step::Confine(..)
        | Step::Pin(..) => instance.map_or(Ok(()), |instance| touch(system, instance, step)),
        Step::Unrecord(unit) => {
            let removed = cgroups.remove_attribute(&CgroupPath::slice(), &saved_attribute(unit));
            removed.map_err(Error::failed)
        }
        Step::SetOurs(path, cpus) => in_place::set_ours(cgroups, path, cpus).map_err(Error::failed),
        Step::Extend(path, cpus) => in_place::extend(cgroups, path, cpus).map_err(Error::failed),
        Step::Unregister(container) => in_place::unregister(cgroups, container).map_err(Error::failed),
        Step::KeepWorkersOff(closed) => keep_workers_off(system, closed),
        step => {
            let Some(instance) = instance else { return Ok(()) };
            let Some(next) = step.recorded(&instance.record, now_us()) else {
                return Ok(());
            };
            let written = record_writer::write(system, instance.tree.place(), Some(&instance.record), &next);
            written.map_err(Error::failed)?;
            instance.follow(next);
            Ok(())
        }
    }
}

/// Apply a step that moves or pins a task.
fn touch(system: &System, instance: &Instance, step: &Step) -> Result<(), Error> {
    match step {
        Step::MoveProcess(id, to) => move_tasks::move_task(system, instance, *id, to, File::Procs),
        Step::MoveThread(id, to) => move_tasks::move_task(system, instance, *id, to, File::Threads),
        Step::ResetThread(tid) => move_tasks::set_affinity(system, instance, *tid, None),
        Step::Pin(tid, cpu) => move_tasks::set_affinity(system, instance, *tid, Some(*cpu)),
        Step::ResetProcess(pid) => move_tasks::reset_process(system, instance, *pid),
        Step::Confine(tid, cpus) => move_tasks::confine(system, instance, *tid, cpus),
        _ => Ok(()),
    }
}

/// Keep the kernel's unbound workers off these CPUs, and give them back all others that were withheld from them. CPUs are
/// recorded before they are withheld, and removed from the record after they were given back.
fn keep_workers_off(system: &System, closed: &CpuSet) -> Result<(), Error> {
    let (cgroups, slice) = (&system.cgroups, CgroupPath::slice());
    let Some(masks) = workqueue::masks(&system.sys).map_err(Error::failed)? else {
        return Ok(());
    };
    let before = withheld(&**cgroups).map_err(Error::failed)?;
    let Some((cpus, withheld)) = workers::masks(&masks.requested, &masks.isolated, &before, closed) else {
        return Err(ErrorKind::Failed.because(format!(
            "the kernel's unbound workers may run on CPUs {} alone, which are exclusive now",
            masks.requested.union(&before)
        )));
    };
    let record = |withheld: &CpuSet| {
        let recorded = if withheld.is_empty() {
            cgroups.remove_attribute(&slice, WITHHELD)
        } else {
            set_on_slice(&**cgroups, WITHHELD, &withheld.to_string())
        };
        recorded.map_err(Error::failed)
    };
    if !withheld.is_subset(&before) {
        record(&withheld.union(&before))?;
    }
    workqueue::allow(&system.sys, &cpus).map_err(Error::failed)?;
    if !before.is_subset(&withheld) {
        record(&withheld)?;
    }
    Ok(())
}

/// Give a unit its former list back. Resetting `AllowedCPUs=` does not widen a live cpuset in every systemd, so the
/// full list is set first, with every CPU of the machine, since one that is offline now may come back. In such a
/// systemd it stays.
pub(super) async fn restore(system: &System, unit: &str, saved: &CpuSet) -> Result<(), Error> {
    let systemd = &system.systemd;
    let allow = async |cpus: &CpuSet| systemd.allow_cpus(unit, cpus).await.map_err(Error::failed);
    if saved.is_empty() {
        let present = Topology::present(&system.sys).map_err(ErrorKind::Failed.context("read the CPU topology"))?;
        allow(&present).await?;
        allow(&CpuSet::new()).await?;
    } else {
        allow(saved).await?;
    }
    let cgroups = &system.cgroups;
    let own = CgroupPath::root().child("kubepods.slice").child(unit);
    if cgroups.exists(&own) {
        cgroups.remove_attribute(&own, OWN).map_err(Error::failed)?;
    }
    let removed = cgroups.remove_attribute(&CgroupPath::slice(), &saved_attribute(unit));
    removed.map_err(Error::failed)
}

/// Give every unit outside stelia.slice, and the kernel's unbound workers, their CPUs back, and take from kubelet's cgroups what
/// no instance in place has any more. Returns the names of those that were changed.
pub async fn release_host(system: System) -> anyhow::Result<Vec<String>> {
    let mut released = Vec::new();
    let (units, _) = outside(&*system.cgroups, CpuSource::Steliad)?;
    for (unit, now) in units {
        if let Some(saved) = now.saved {
            restore(&system, &unit, &saved).await?;
            released.push(unit);
        }
    }
    if !withheld(&*system.cgroups)?.is_empty() {
        keep_workers_off(&system, &CpuSet::new())?;
        released.push("kernel's unbound workers".to_owned());
    }
    released.extend(in_place::release(&*system.cgroups)?);
    Ok(released)
}
