//! Taking the planned steps, one after the other.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use super::System;
use super::observe::{outside, saved_attribute};
use crate::cgroup::CgroupPath;
use crate::cpuset::CpuSet;
use crate::kubelet::PodUid;
use crate::plan::allocator::CpuSource;
use crate::plan::record::{
    EXCLUSIVE_ATTRIBUTE, ISOLATED_ATTRIBUTE, PARTITION_ATTRIBUTE, PHASE_ATTRIBUTE, POD_POOL_ATTRIBUTE, VCPUS_ATTRIBUTE,
    exclusive_text, vcpus_text,
};
use crate::plan::{Phase, Planned, Step};
use crate::systemd::SystemdError;
use crate::topology::Topology;

/// What a pass did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Steps taken, failed ones included.
    pub steps: u32,
    /// Writes to cgroup files (cpusets, types, controllers), cgroups made and removed.
    pub writes: u32,
    /// Cgroup moves of processes and threads.
    pub moves: u32,
    /// Steps that failed, with the instance they were for.
    pub errors: Vec<(Option<PodUid>, String)>,
}

/// Take every step. A failed step ends the pass for its instance and for nobody else.
pub fn apply(system: &System, steps: &[Planned]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut failed: BTreeSet<PodUid> = BTreeSet::new();
    for Planned { pod, step } in steps {
        if pod.as_ref().is_some_and(|pod| failed.contains(pod)) {
            continue;
        }
        outcome.steps += 1;
        match step {
            Step::MoveProcess(..) | Step::MoveThread(..) => outcome.moves += 1,
            Step::Create(_)
            | Step::Write(..)
            | Step::Remove(_)
            | Step::Forget(_)
            | Step::Limit(..)
            | Step::Weigh(_)
            | Step::Restrict { .. }
            | Step::Unrecord(_)
            | Step::Restore(..) => outcome.writes += 1,
            Step::ResetProcess(_)
            | Step::ResetThread(_)
            | Step::Pin(..)
            | Step::Enter(..)
            | Step::Entitle { .. }
            | Step::Share(..)
            | Step::Place(..) => {}
        }
        system.failpoint.here();
        tracing::debug!(pod = pod.as_ref().map(PodUid::as_str), ?step, "step");
        if let Err(error) = take(system, step) {
            outcome.errors.push((pod.clone(), error));
            failed.extend(pod.clone());
        }
    }
    outcome
}

fn take(system: &System, step: &Step) -> Result<(), String> {
    let cgroups = &*system.cgroups;
    match step {
        Step::Create(path) => cgroups.create(path).map_err(|error| error.to_string()),
        Step::Write(path, file, value) => cgroups.write(path, *file, value).map_err(|error| error.to_string()),
        Step::Remove(path) => cgroups.remove(path).map_err(|error| error.to_string()),
        Step::MoveProcess(id, to) => moved(system, *id, to, crate::cgroup::File::Procs),
        Step::MoveThread(id, to) => moved(system, *id, to, crate::cgroup::File::Threads),
        Step::ResetThread(tid) => affinity(system, *tid, None),
        Step::Pin(tid, cpu) => affinity(system, *tid, Some(*cpu)),
        Step::ResetProcess(pid) => {
            let threads = match system.procs.threads(*pid) {
                Ok(threads) => threads,
                Err(error) if error.is_gone() => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            threads
                .iter()
                .try_for_each(|thread| affinity(system, thread.task.id, None))
        }
        Step::Entitle {
            scope,
            entry,
            exclusive,
        } => cgroups
            .set_attribute(scope, EXCLUSIVE_ATTRIBUTE, &exclusive_text(exclusive, entry))
            .map_err(|error| error.to_string()),
        Step::Share(scope, pool) => cgroups
            .set_attribute(scope, POD_POOL_ATTRIBUTE, &pool.to_string())
            .map_err(|error| error.to_string()),
        Step::Place(scope, vcpus, partition) => cgroups
            .set_attribute(scope, PARTITION_ATTRIBUTE, partition.name())
            .and_then(|()| cgroups.set_attribute(scope, VCPUS_ATTRIBUTE, &vcpus_text(vcpus)))
            .map_err(|error| error.to_string()),
        Step::Forget(scope) => {
            cgroups.remove(scope).map_err(|error| error.to_string())?;
            system.failpoint.here();
            wait(system.systemd.stop_emptied(scope.name()))
        }
        Step::Limit(unit, limits) => wait(system.systemd.limit(unit, limits)),
        Step::Weigh(weight) => wait(system.systemd.weigh(CgroupPath::slice().name(), *weight)),
        Step::Restrict { unit, cpus, save } => {
            // Recorded first: whoever dies in between restores a list that was not changed yet.
            if let Some(save) = save {
                cgroups
                    .set_attribute(&CgroupPath::slice(), &saved_attribute(unit), &save.to_string())
                    .map_err(|error| error.to_string())?;
            }
            wait(system.systemd.allow_cpus(unit, cpus))
        }
        Step::Unrecord(unit) => cgroups
            .remove_attribute(&CgroupPath::slice(), &saved_attribute(unit))
            .map_err(|error| error.to_string()),
        Step::Restore(unit, saved) => restore(system, unit, saved),
        Step::Enter(scope, phase) => {
            if matches!(phase, Phase::Isolated | Phase::Contained) {
                cgroups
                    .set_attribute(scope, ISOLATED_ATTRIBUTE, &now_us().to_string())
                    .map_err(|error| error.to_string())?;
            }
            cgroups
                .set_attribute(scope, PHASE_ATTRIBUTE, phase.name())
                .map_err(|error| error.to_string())
        }
    }
}

/// systemd is spoken to from a thread for blocking work; the reactor's thread carries the messages meanwhile.
fn wait(call: impl Future<Output = Result<(), SystemdError>>) -> Result<(), String> {
    tokio::runtime::Handle::try_current()
        .map_err(|cause| cause.to_string())?
        .block_on(call)
        .map_err(|error| error.to_string())
}

/// Give a unit its old list back. Forgetting the setting does not widen a live cpuset in every systemd, so the full list
/// is written first; it stays in force where systemd keeps it.
pub(super) fn restore(system: &System, unit: &str, saved: &CpuSet) -> Result<(), String> {
    let all = || {
        let topology = Topology::read(&system.sys).map_err(|cause| format!("read the CPU topology: {cause}"));
        topology.map(|topology| topology.online())
    };
    let list = if saved.is_empty() { all()? } else { saved.clone() };
    wait(system.systemd.allow_cpus(unit, &list))?;
    if saved.is_empty() {
        wait(system.systemd.allow_cpus(unit, &CpuSet::new()))?;
    }
    system
        .cgroups
        .remove_attribute(&CgroupPath::slice(), &saved_attribute(unit))
        .map_err(|error| error.to_string())
}

/// Give every unit outside stelia.slice back what it had; the names of those that were restricted.
///
/// # Errors
/// stelia.slice cannot be read, or systemd refuses.
pub async fn release_host(system: System) -> anyhow::Result<Vec<String>> {
    let work = tokio::task::spawn_blocking(move || -> anyhow::Result<Vec<String>> {
        let slice = CgroupPath::slice();
        if !system.cgroups.exists(&slice) {
            return Ok(Vec::new());
        }
        let mut released = Vec::new();
        for (unit, now) in outside(&*system.cgroups, &slice, CpuSource::Kubelet)? {
            if let Some(saved) = now.saved {
                restore(&system, &unit, &saved).map_err(anyhow::Error::msg)?;
                released.push(unit);
            }
        }
        Ok(released)
    });
    work.await?
}

/// A task that ended meanwhile needs no move; the next observation tells whether its cgroup went with it.
fn moved(system: &System, id: i32, to: &CgroupPath, file: crate::cgroup::File) -> Result<(), String> {
    match system.cgroups.write(to, file, &id.to_string()) {
        Err(error) if error.cause.raw_os_error() == Some(nix::libc::ESRCH) => Ok(()),
        result => result.map_err(|error| error.to_string()),
    }
}

fn affinity(system: &System, tid: i32, cpu: Option<u32>) -> Result<(), String> {
    match system.procs.set_affinity(tid, cpu) {
        Err(error) if error.is_gone() => Ok(()),
        result => result.map_err(|error| error.to_string()),
    }
}

/// Microseconds since the epoch.
pub fn now_us() -> u64 {
    us(SystemTime::now())
}

/// A time in microseconds since the epoch.
pub fn us(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros().try_into().unwrap_or(u64::MAX))
}
