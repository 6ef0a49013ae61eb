//! A container as admission takes it, read without the daemon.

use std::path::Path;

use stelia_cpus::NodeSet;
use stelia_decide::admission::{Candidate, first_process, take_housekeeping};
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File, numbers, read_cpus, read_mems};
use stelia_kernel::containers::{
    container_request, container_scope, limit_milli, live_containers_among, populated_elsewhere, sibling_containers,
    writes_cgroups,
};
use stelia_kernel::proc::{Procs, TaskId};
use stelia_kernel::runtime_config;
use stelia_kernel::vmm_processes::{MAX_PROCESSES, ProcessesError};
use stelia_kubelet::ContainerCgroup;
use stelia_model::record::Tree;

/// Reads a container whose VM is to be adopted, without an anchor: which process that is depends on the VM. `written`: what the
/// runtime's configuration tells of it.
///
/// # Errors
/// Its cgroups cannot be read.
pub(super) fn candidate(
    cgroups: &dyn Cgroups,
    procs: &dyn Procs,
    run: &Path,
    origin: &CgroupPath,
    container: &ContainerCgroup,
    written: &runtime_config::Container,
) -> Result<Candidate, CgroupError> {
    let pids = numbers(&cgroups.read(origin, File::Procs).unwrap_or_default());
    // One that ended meanwhile is left out.
    let processes = pids
        .into_iter()
        .take(MAX_PROCESSES)
        .filter_map(|pid| Some((pid, procs.numbers(pid).ok()?)));
    let mut elsewhere = match populated_elsewhere(cgroups, origin, &mut 0) {
        Ok(elsewhere) => elsewhere,
        Err(ProcessesError::Cgroup(error)) => return Err(error),
        // The daemon refuses a container with so many cgroups too.
        Err(_) => vec![origin.clone()],
    };
    let own = Some(container.container_id.as_str());
    let siblings = sibling_containers(cgroups, origin)?;
    let whole = container_scope(origin);
    let housekeeping = take_housekeeping(origin, &mut elsewhere);
    Ok(Candidate {
        housekeeping,
        conflicting_cgroup: Tree::in_place(origin.clone()).conflicting_cgroup(cgroups, housekeeping)?,
        writes_cgroups: writes_cgroups(cgroups, origin, written)?,
        // Only the daemon knows.
        left_behind: false,
        origin: origin.clone(),
        container: container.clone(),
        cpus: read_cpus(cgroups, &whole, File::Cpus)?,
        mems: read_mems(cgroups, &whole)?,
        // They decide which CPUs it would get, not whether there are enough.
        devices: NodeSet::new(),
        devices_unknown: None,
        processes: processes.collect(),
        elsewhere,
        annotated_name: written.name.clone(),
        pod_name: written.pod.clone(),
        request: container_request(cgroups, origin, written.shares)?,
        live_containers: live_containers_among(cgroups, run, siblings, own)?,
        anchor: None,
        needs_anchor: false,
        caller: None,
        limit_milli: limit_milli(cgroups, origin)?,
    })
}

/// The process that stays in the container's cgroup where its VM is moved: its first one, unless that is the VMM.
pub(super) fn anchor(procs: &dyn Procs, candidate: &Candidate, vmm: TaskId) -> Option<(TaskId, CgroupPath)> {
    if candidate.housekeeping {
        return None;
    }
    let first = procs.identify(first_process(&candidate.processes)?).ok()?;
    let cgroup = procs.cgroup(first.id).ok()?;
    (first != vmm).then_some((first, cgroup))
}
