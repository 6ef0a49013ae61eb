//! Moving tasks and setting their affinity: no step touches a task but through here, and none touches one that is neither in the
//! instance's cgroups nor in its container's. A record names vCPU threads by number, and a number says nothing of whose it is.
//!
//! The task's cgroup is read right before the write. In between its number could be given to another task, for which the kernel must
//! have gone through all numbers first; it takes no cgroup to compare with, so this cannot be closed.

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_node::System;
use stelia_node::cgroup::{CgroupPath, File};
use stelia_node::proc::ProcError;

use crate::decide::Instance;

/// A step would have touched a task of somebody else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("task {id} is in {cgroup}, outside of the instance and the container of pod {pod}: it is left alone")]
pub(super) struct ForeignTask {
    pub id: i32,
    pub cgroup: CgroupPath,
    pub pod: PodUid,
}

impl From<ForeignTask> for Error {
    fn from(foreign: ForeignTask) -> Self {
        ErrorKind::ForeignProcess.because(foreign.to_string())
    }
}

/// Whether the task is the instance's to touch; false where it ended, so that nothing is to be done. `as_vcpu`: what is to be done is
/// for the recorded thread of this number, and not for another that has it now.
fn is_there(system: &System, instance: &Instance, id: i32, as_vcpu: bool) -> Result<bool, Error> {
    let mut vcpus = instance.record.vcpus.iter().filter(|_| as_vcpu);
    let recorded = vcpus.find(|vcpu| vcpu.task.id == id);
    let check = || -> Result<Option<CgroupPath>, ProcError> {
        if let Some(vcpu) = recorded
            && system.procs.identify(id)? != vcpu.task
        {
            return Ok(None);
        }
        system.procs.cgroup(id).map(Some)
    };
    let cgroup = match check() {
        Err(error) if error.is_gone() => return Ok(false),
        cgroup => cgroup?,
    };
    match cgroup {
        None => Ok(false),
        Some(cgroup) if instance.has(&cgroup) => Ok(true),
        Some(cgroup) => Err(ForeignTask {
            id,
            cgroup,
            pod: instance.record.pod.clone(),
        }
        .into()),
    }
}

/// Move a task of the instance or its container to one of their cgroups; `file` says whether the thread or its whole process. A
/// task that ended meanwhile needs no move: the next look shows whether its cgroup went with it.
pub(super) fn move_task(
    system: &System,
    instance: &Instance,
    id: i32,
    to: &CgroupPath,
    file: File,
) -> Result<(), Error> {
    if !instance.has(to) {
        let text = format!("{to} is no cgroup of the instance of pod {}", instance.record.pod);
        return Err(ErrorKind::Failed.because(text));
    }
    if !is_there(system, instance, id, to == instance.tree.vcpu())? {
        return Ok(());
    }
    match system.cgroups.write(to, file, &id.to_string()) {
        Err(error) if error.cause.raw_os_error() == Some(nix::libc::ESRCH) => Ok(()),
        result => Ok(result?),
    }
}

/// Pin a thread of the instance or its container, or let it run wherever its cpuset allows.
pub(super) fn set_affinity(system: &System, instance: &Instance, tid: i32, cpu: Option<u32>) -> Result<(), Error> {
    match is_there(system, instance, tid, cpu.is_some())? {
        true => affinity(system, tid, cpu),
        false => Ok(()),
    }
}

/// Let a thread of the container run on these CPUs only.
pub(super) fn confine(system: &System, instance: &Instance, tid: i32, cpus: &CpuSet) -> Result<(), Error> {
    match is_there(system, instance, tid, false)? {
        true => unless_gone(system.procs.allow_cpus(tid, cpus)),
        false => Ok(()),
    }
}

/// Let every thread of a process run wherever its cpuset allows. They are all in the domain that the process is in.
pub(super) fn reset_process(system: &System, instance: &Instance, pid: i32) -> Result<(), Error> {
    if !is_there(system, instance, pid, false)? {
        return Ok(());
    }
    let threads = match system.procs.thread_ids(pid) {
        Ok(threads) => threads,
        Err(error) if error.is_gone() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    threads.into_iter().try_for_each(|tid| affinity(system, tid, None))
}

fn affinity(system: &System, tid: i32, cpu: Option<u32>) -> Result<(), Error> {
    unless_gone(system.procs.set_affinity(tid, cpu))
}

fn unless_gone(result: Result<(), ProcError>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        result => Ok(result?),
    }
}
