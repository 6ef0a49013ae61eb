//! The processes of a container that is to become an instance: they must be its own, and one must stay where it is.

use stelia_api::{Error, ErrorKind};
use stelia_kernel::proc::TaskId;

use super::Candidate;

/// The anchor, where there is to be one: another process of the container than the caller.
pub(super) fn admit_anchor(candidate: &Candidate) -> Result<Option<TaskId>, Error> {
    let Some((anchor, cgroup)) = &candidate.anchor else {
        if !candidate.needs_anchor {
            return Ok(None);
        }
        let text = "no anchor: option \"anchor\" must be the pidfd of a process that stays in the container's cgroup";
        return Err(ErrorKind::NoAnchor.because(text));
    };
    if *cgroup != candidate.origin {
        let text = format!("the anchor is not in {}", candidate.origin);
        let detail = format!("process {} is in {cgroup}", anchor.id);
        return Err(ErrorKind::NoAnchor.because(text).detail(detail));
    }
    if candidate.caller == Some(anchor.id) {
        return Err(
            ErrorKind::NoAnchor.because("the anchor must be a process other than the caller: the caller is moved")
        );
    }
    Ok(Some(*anchor))
}

/// All of the container's processes are in its cgroup and in a PID namespace of its own.
pub(super) fn admit_processes(candidate: &Candidate) -> Result<(), Error> {
    if let Some(other) = candidate.elsewhere.first() {
        let text = format!(
            "the container has processes in {other} too, not only in {}: not supported",
            candidate.origin
        );
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    // Private PID namespace: its first process is one of the container's own, and only one. Those of namespaces within are
    // not asked: a sandbox of virtiofsd's or passt's is the container's own business, and where the container has none of its
    // own, one within does not make up for it.
    let firsts = first_processes(&candidate.processes).count();
    if depth(&candidate.processes) < 2 || firsts != 1 {
        let text = format!(
            "container {} of pod {} has no PID namespace of its own (hostPID or shareProcessNamespace?): {firsts} of \
             its {} processes are the first of one",
            candidate.container.container_id,
            candidate.container.pod,
            candidate.processes.len()
        );
        return Err(ErrorKind::SharedPidNamespace.because(text));
    }
    Ok(())
}

/// How many PID namespaces the outermost of these processes are in.
fn depth(processes: &[(i32, Vec<i32>)]) -> usize {
    let depths = processes.iter().map(|(_, numbers)| numbers.len());
    depths.min().unwrap_or_default()
}

/// The processes that are the first of the container's PID namespace: one, where it has its own.
fn first_processes(processes: &[(i32, Vec<i32>)]) -> impl Iterator<Item = i32> {
    let depth = depth(processes);
    let is_first = move |numbers: &[i32]| numbers.len() == depth && numbers.last() == Some(&1);
    let firsts = processes.iter().filter(move |(_, numbers)| is_first(numbers));
    firsts.map(|(pid, _)| *pid)
}

/// The first process of a container's PID namespace, given the processes as [`Candidate::processes`] has them: the container lives as
/// long as it does.
pub fn first_process(processes: &[(i32, Vec<i32>)]) -> Option<i32> {
    first_processes(processes).next()
}
