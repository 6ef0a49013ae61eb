//! The host's threads that a call of AttachVcpus is about.

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::{Error, ErrorKind, ThreadRole};
use stelia_cpus::text::excerpt::excerpt;
use stelia_kernel::System;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::proc::TaskId;
use stelia_kernel::vmm_processes::MAX_PROCESS_THREADS;
use stelia_model::record::is_prop_name;

use super::attach::{AttachRequest, Vmm};
use crate::engine::container::identify_pidfd;

/// More vCPUs than this in one call are refused: twice what QEMU's largest machine has.
pub(super) const MAX_VCPUS: usize = 8192;

/// The host's threads for the caller's thread numbers; `read` is set to how many threads the process has, if they are read.
pub(super) fn resolve(
    system: &System,
    scope: &CgroupPath,
    request: &AttachRequest,
    read: &mut usize,
) -> Result<BTreeMap<ThreadRole, TaskId>, Error> {
    let asked = request.threads();
    if asked.len() > MAX_VCPUS {
        return Err(ErrorKind::InvalidArgument.because(format!("{} vCPUs: give 1 to {MAX_VCPUS}", asked.len())));
    }
    let roles: BTreeSet<ThreadRole> = asked.iter().map(|(role, _)| *role).collect();
    if roles.len() != asked.len() {
        return Err(ErrorKind::InvalidArgument.because("a vCPU index is given twice"));
    }
    // The name becomes part of the instance's record: characters that separate names there would make the record
    // unreadable.
    if let Some(name) = request
        .vcpus
        .iter()
        .flat_map(|vcpu| vcpu.vcpu.props.keys())
        .find(|name| !is_prop_name(name))
    {
        let text = format!(
            "property {:?} of a vCPU: a name is up to 64 letters, digits, -, _ and .",
            excerpt(name)
        );
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    let numbers: BTreeSet<i32> = asked.iter().map(|(_, thread)| *thread).collect();
    if numbers.len() != asked.len() {
        let text = "two vCPUs or I/O threads have the same thread: single-threaded emulation (-accel tcg,thread=single) cannot be isolated";
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    let foreign = |text: String| ErrorKind::ForeignProcess.because(text);
    let unclear = ErrorKind::ForeignProcess.context("qemu_pidfd");
    let qemu = match &request.vmm {
        Vmm::Pidfd(fd) => identify_pidfd(system, fd).map_err(&unclear)?,
        Vmm::OnHost(task, _) => match system.procs.identify(task.id) {
            Ok(now) if now == *task => now,
            Ok(_) => return Err(foreign(format!("process {} ended", task.id))),
            Err(error) => return Err(unclear(error)),
        },
    };
    let cgroup = system.procs.cgroup(qemu.id).map_err(&unclear)?;
    if !cgroup.is_within(scope) {
        let text = format!("the process of qemu_pidfd does not belong to pod {}", request.pod);
        return Err(foreign(text).detail(format!("it is process {} in {cgroup}", qemu.id)));
    }
    *read = system.procs.thread_ids(qemu.id).map_err(&unclear)?.len();
    if *read > MAX_PROCESS_THREADS {
        let text = format!("the process has {read} threads, more than {MAX_PROCESS_THREADS}");
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    let threads = system.procs.threads(qemu.id).map_err(&unclear)?;
    let by_number: BTreeMap<i32, TaskId> = threads
        .iter()
        .filter_map(|thread| match request.vmm {
            Vmm::OnHost(..) => Some((thread.task.id, thread.task)),
            Vmm::Pidfd(_) => Some((*thread.numbers.last()?, thread.task)),
        })
        .collect();
    // The process may have ended while its threads were read, and another one may have its number.
    let still = match &request.vmm {
        Vmm::Pidfd(fd) => identify_pidfd(system, fd),
        Vmm::OnHost(task, _) => system.procs.identify(task.id),
    };
    if still.map_err(&unclear)? != qemu {
        return Err(foreign(format!("process {} ended", qemu.id)));
    }
    asked
        .into_iter()
        .map(|(role, thread)| match by_number.get(&thread) {
            Some(task) => Ok((role, *task)),
            None => Err(foreign(format!(
                "thread {thread} of {role} is not a thread of the process handed over"
            ))),
        })
        .collect()
}
