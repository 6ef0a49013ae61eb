//! Moving tasks and setting their affinity. Steps do so only through this file, and only for tasks in the cgroups of the instance
//! or of its container. A record names vCPU threads by number, and a number does not say whose task it is.
//!
//! The task's cgroup is read right before the write. Between the two the number could be given to another task, if the kernel went
//! through all other numbers meanwhile. That cannot be excluded, because no system call takes a cgroup to compare with.

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_decide::Instance;
use stelia_kernel::System;
use stelia_kernel::cgroup::{CgroupPath, File};
use stelia_kernel::proc::ProcError;
use stelia_kernel::vmm_processes::MAX_PROCESS_THREADS;
use stelia_kubelet::PodUid;

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

/// Whether the task may be moved or pinned; false where it ended, so that nothing is to be done. `as_vcpu`: the task has to be the
/// recorded vCPU thread, not another one that has its number now.
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
        cgroup => cgroup.map_err(Error::failed)?,
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
        result => result.map_err(Error::failed),
    }
}

/// Pin a thread of the instance or its container, or let it run wherever its cpuset allows.
pub(super) fn set_affinity(system: &System, instance: &Instance, tid: i32, cpu: Option<u32>) -> Result<(), Error> {
    if is_there(system, instance, tid, cpu.is_some())? {
        affinity(system, tid, cpu)
    } else {
        Ok(())
    }
}

/// Let a thread of the container run on these CPUs only.
pub(super) fn confine(system: &System, instance: &Instance, tid: i32, cpus: &CpuSet) -> Result<(), Error> {
    if is_there(system, instance, tid, false)? {
        unless_gone(system.procs.allow_cpus(tid, cpus))
    } else {
        Ok(())
    }
}

/// Let every thread of a process run wherever its cpuset allows. They are all in the domain that the process is in. If it has more threads
/// than a process that is attached may have, the further ones are left as they are: a step must not last as long as a pod likes.
pub(super) fn reset_process(system: &System, instance: &Instance, pid: i32) -> Result<(), Error> {
    if !is_there(system, instance, pid, false)? {
        return Ok(());
    }
    let threads = match system.procs.thread_ids(pid) {
        Ok(threads) => threads,
        Err(error) if error.is_gone() => return Ok(()),
        Err(error) => return Err(Error::failed(error)),
    };
    let mut threads = threads.into_iter().take(MAX_PROCESS_THREADS);
    threads.try_for_each(|tid| affinity(system, tid, None))
}

fn affinity(system: &System, tid: i32, cpu: Option<u32>) -> Result<(), Error> {
    unless_gone(system.procs.set_affinity(tid, cpu))
}

fn unless_gone(result: Result<(), ProcError>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        result => result.map_err(Error::failed),
    }
}
