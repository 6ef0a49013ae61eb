//! Taking the planned steps, one after the other.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use super::System;
use crate::kubelet::PodUid;
use crate::plan::record::{ISOLATED_ATTRIBUTE, PHASE_ATTRIBUTE};
use crate::plan::{Phase, Planned, Step};

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
            Step::Create(_) | Step::Write(..) | Step::Remove(_) => outcome.writes += 1,
            Step::ResetProcess(_) | Step::ResetThread(_) | Step::Pin(..) | Step::Enter(..) => {}
        }
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
        Step::Enter(scope, phase) => {
            if *phase == Phase::Isolated {
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

/// A task that ended meanwhile needs no move; the next observation tells whether its cgroup went with it.
fn moved(system: &System, id: i32, to: &crate::cgroup::CgroupPath, file: crate::cgroup::File) -> Result<(), String> {
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
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros().try_into().unwrap_or(u64::MAX))
}
