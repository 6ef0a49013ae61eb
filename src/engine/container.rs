//! Which container a process belongs to, by its cgroup, and what is read of a container before it becomes an instance.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use stelia_api::{Error, ErrorKind};
use stelia_cpus::{CpuSet, NodeSet};
use stelia_decide::Instance;
pub(super) use stelia_decide::admission::NOT_THE_CALLERS;
use stelia_decide::admission::{Adopting, Candidate, CheckedClaim, Claim, first_process, take_housekeeping};
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File, numbers, populated, read_cpus, read_mems};
use stelia_kernel::containers::{
    all_containers, container_request, container_scope, least_limit_milli, limit_milli, live_containers_among,
    pod_containers, populated_elsewhere, process_cgroup, sibling_containers, writes_cgroups,
};
use stelia_kernel::oci::kind_of;
use stelia_kernel::proc::{ProcError, TaskId};
use stelia_kernel::vmm_processes::ProcessesError;
use stelia_kernel::{System, runtime_config};
use stelia_koordinator::allocator::RunningContainer;
use stelia_kubelet::{ContainerCgroup, PodUid, QosClass};
use stelia_model::record::{IN_PLACE, Tree};
use stelia_settings::Isolation;

use super::device_record::DeviceRecord;

/// A container with more processes than this is not looked at one by one: others wait meanwhile.
const MAX_PROCESSES: usize = 4096;

/// What a process belongs to, by its cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// It is in a container's own cgroup.
    Container(CgroupPath, ContainerCgroup),
    /// It is in the scope of an instance.
    Instance(PodUid),
    /// It is neither.
    Other(CgroupPath),
}

impl Peer {
    /// By the path of its cgroup.
    pub fn of(cgroup: CgroupPath) -> Self {
        let ours = cgroup
            .as_str()
            .strip_prefix("/stelia.slice/")
            .and_then(|rest| rest.split('/').next());
        if let Some(pod) = ours.and_then(PodUid::from_scope) {
            return Self::Instance(pod);
        }
        if let Some(container) = ContainerCgroup::parse(cgroup.as_str()) {
            return Self::Container(cgroup, container);
        }
        // A cgroup of an instance in place, or one of that name that its container made.
        let within = cgroup.parent().filter(|_| IN_PLACE.contains(&cgroup.name()));
        match within.and_then(|within| ContainerCgroup::parse(within.as_str())) {
            Some(container) => Self::Instance(container.pod),
            None => Self::Other(cgroup),
        }
    }

    /// The pod it belongs to.
    pub fn pod(&self) -> Option<&PodUid> {
        match self {
            Self::Container(_, container) => Some(&container.pod),
            Self::Instance(pod) => Some(pod),
            Self::Other(_) => None,
        }
    }
}

/// A call of RegisterInstance, with what the kernel says of the caller.
#[derive(Debug)]
pub struct RegisterRequest {
    /// What the caller claims.
    pub claim: Claim,
    /// The caller, where it is one of the containers' processes (runner socket).
    pub caller: Option<(i32, Peer)>,
    /// The container's cgroup as an administrator named it (system bus).
    pub origin: Option<CgroupPath>,
    /// A pidfd of the anchor, the process that stays in the container's own cgroup and keeps it alive.
    pub anchor: Option<OwnedFd>,
    /// How long to wait where the cause of a refusal may pass: kubelet's second write, an old scope's end.
    pub timeout: Duration,
    /// What makes the instance; `None` where its pod asks for it.
    pub adopting: Option<Adopting>,
}

/// The process of a pidfd, with its start time.
pub(super) fn identify_pidfd(system: &System, fd: &OwnedFd) -> Result<TaskId, ProcError> {
    let pid = system.procs.pid_of_pidfd(fd.as_fd())?;
    let task = system.procs.identify(pid)?;
    // Between the two reads the process could have ended and its number been reused. As long as the pidfd still gives
    // the number, it was not.
    system.procs.pid_of_pidfd(fd.as_fd())?;
    Ok(task)
}

/// The container a registration is about.
pub(super) fn find_origin(
    system: &System,
    request: &RegisterRequest,
    claim: &CheckedClaim,
) -> Result<(CgroupPath, ContainerCgroup), Error> {
    let cgroups = &*system.cgroups;
    if let Some((pid, peer)) = &request.caller {
        return match peer {
            Peer::Container(path, container) => match process_cgroup(cgroups, system.root(), path).map_err(Error::failed)? {
                Some(found) if found.0 == *path => Ok(found),
                _ => Err(match kind_of(system.root(), &container.container_id) {
                    None => ErrorKind::Failed.because(format!(
                        "cannot find the container's runtime below /run, so {path} may be a cgroup that the container made"
                    )),
                    Some(_) => ErrorKind::NotPermitted.because(format!(
                        "process {pid} is in {path}, which is not where the runtime put the container's processes"
                    )),
                }),
            },
            _ => {
                Err(ErrorKind::NotPermitted
                    .because(format!("process {pid} is in no container's cgroup below kubepods")))
            }
        };
    }
    if let Some(path) = &request.origin {
        if ContainerCgroup::parse(path.as_str()).is_some() && !cgroups.exists(path) {
            return Err(ErrorKind::NoSuchPod.because(format!("origin-cgroup: {path} does not exist")));
        }
        let found = process_cgroup(cgroups, system.root(), path).map_err(Error::failed)?;
        return found.ok_or_else(|| {
            ErrorKind::InvalidArgument.because(format!("origin-cgroup: {path} is no container's cgroup below kubepods"))
        });
    }
    let Some(pod) = &claim.pod else {
        return Err(ErrorKind::InvalidArgument.because("pod_uid is empty and the caller is no container's process"));
    };
    let mut found = pod_containers(cgroups, pod).map_err(Error::failed)?;
    if found.is_empty() {
        return Err(ErrorKind::NoSuchPod.because(format!("pod {pod} has no container cgroup on this node")));
    }
    if let Some(cpus) = &claim.cpuset {
        found.retain(|(path, _)| {
            let text = cgroups.read(path, File::Cpus);
            text.is_ok_and(|text| text.parse::<CpuSet>().as_ref() == Ok(cpus))
        });
        if found.is_empty() {
            return Err(ErrorKind::CpusetMismatch.because(format!("no container of pod {pod} has the CPUs {cpus}")));
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some((path, container)), true) => {
            let found = process_cgroup(cgroups, system.root(), &path).map_err(Error::failed)?;
            Ok(found.unwrap_or((path, container)))
        }
        _ => Err(ErrorKind::AmbiguousContainer.because(format!(
            "more than one container of pod {pod} fits: give the cpuset, or option \"origin-cgroup\""
        ))),
    }
}

/// Read what admission must know of the container. `record`: kubelet's record of devices with kubelet's root directory, where steliad chooses the CPUs.
/// `read` counts the container's processes and cgroups that were read, also of one that is refused.
pub(super) fn candidate(
    system: &System,
    request: &RegisterRequest,
    origin: CgroupPath,
    container: ContainerCgroup,
    record: Option<(&mut DeviceRecord, &Path)>,
    read: &mut usize,
) -> Result<Candidate, Error> {
    let cgroups = &*system.cgroups;
    // What the container is given: it may own the cgroup below, which the processes are in.
    let whole = container_scope(&origin);
    let cpus = cgroups.read(&whole, File::Cpus).map_err(Error::failed)?;
    let cpus = cpus.parse().map_err(ErrorKind::Failed.context(&whole))?;
    let mut processes = Vec::new();
    // Nothing is moved of a container whose own cgroup becomes the partition, whatever is in it.
    let is_whole = request.claim.isolation == Isolation::Container;
    let pids = if is_whole {
        Vec::new()
    } else {
        numbers(&cgroups.read(&origin, File::Procs).map_err(Error::failed)?)
    };
    *read += pids.len();
    if pids.len() > MAX_PROCESSES {
        let text = format!(
            "the container has {} processes, more than {MAX_PROCESSES}: register before they are started",
            pids.len()
        );
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    for pid in pids {
        // A process that ends meanwhile need not be moved.
        if let Ok(ns) = system.procs.numbers(pid) {
            processes.push((pid, ns));
        }
    }
    let mut elsewhere = if is_whole {
        Vec::new()
    } else {
        populated_elsewhere(cgroups, &origin, read).map_err(|error| match error {
            ProcessesError::TooMany { .. } => {
                ErrorKind::InvalidArgument.because(format!("{error}: register before they are made"))
            }
            error => Error::failed(error),
        })?
    };
    let housekeeping = request.adopting.is_some() && take_housekeeping(&origin, &mut elsewhere);
    let bad = ErrorKind::NoAnchor.context("anchor");
    let anchor = match (&request.anchor, &request.adopting) {
        _ if is_whole => None,
        (Some(fd), _) => Some(identify_pidfd(system, fd).map_err(&bad)?),
        (None, Some(_)) if housekeeping => None,
        (None, Some(adopting)) => {
            let first = first_process(&processes).and_then(|pid| system.procs.identify(pid).ok());
            first.filter(|first| Some(*first) != adopting.vmm)
        }
        (None, None) => None,
    };
    let anchor = match anchor {
        Some(task) => Some((task, system.procs.cgroup(task.id).map_err(&bad)?)),
        None => None,
    };
    let mems = read_mems(cgroups, &whole).map_err(Error::failed)?;
    let written = runtime_config::container(&system.run, &container);
    let devices = record.map_or_else(
        || Ok(NodeSet::new()),
        |(record, kubelet)| record.nodes((system.root(), kubelet), &container.pod, written.name.as_deref()),
    );
    let request_of_cpus = container_request(cgroups, &origin, written.shares).map_err(Error::failed)?;
    let own = Some(container.container_id.as_str());
    let live_containers =
        sibling_containers(cgroups, &origin).and_then(|found| live_containers_among(cgroups, &system.run, found, own));
    let live_containers = live_containers.map_err(Error::failed)?;
    let conflicting_cgroup = if is_whole {
        None
    } else {
        let conflicting = Tree::in_place(origin.clone()).conflicting_cgroup(cgroups, housekeeping);
        conflicting.map_err(Error::failed)?
    };
    let writes_cgroups = writes_cgroups(cgroups, &origin, &written).map_err(Error::failed)?;
    let caller = request.caller.as_ref().map(|(pid, _)| *pid);
    let limit_milli = limit_milli(cgroups, &origin).map_err(Error::failed)?;
    Ok(Candidate {
        limit_milli,
        origin,
        container,
        cpus,
        left_behind: false,
        mems,
        devices_unknown: devices.as_ref().err().cloned(),
        devices: devices.unwrap_or_default(),
        processes,
        elsewhere,
        housekeeping,
        conflicting_cgroup,
        writes_cgroups,
        annotated_name: written.name,
        pod_name: written.pod,
        request: request_of_cpus,
        live_containers,
        anchor,
        needs_anchor: request.adopting.is_none(),
        caller,
    })
}

/// The CPU lists of the containers on this host that run.
pub(super) fn lists(
    cgroups: &dyn Cgroups,
    instances: &BTreeMap<PodUid, Instance>,
) -> Result<Vec<RunningContainer>, CgroupError> {
    let mut found = Vec::new();
    for (path, container) in all_containers(cgroups)? {
        if !populated(cgroups, &path)? {
            continue;
        }
        found.push(RunningContainer {
            instance: instances
                .get(&container.pod)
                .is_some_and(|instance| container_scope(&instance.record.origin) == path),
            limit_milli: least_limit_milli(cgroups, [path.clone()])?,
            guaranteed: QosClass::of(path.as_str()) == QosClass::Guaranteed,
            pod: container.pod,
            cpus: read_cpus(cgroups, &path, File::Cpus)?,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_who_its_cgroup_says() {
        let of = |path: &str| Peer::of(CgroupPath::parse(path).unwrap());
        let uid = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";
        let scope = format!("/stelia.slice/stelia-instance-{uid}.scope/instance/float");
        assert_eq!(of(&scope).pod().unwrap().as_str(), uid);
        let container = format!(
            "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-a.scope",
            uid.replace('-', "_")
        );
        assert!(matches!(of(&container), Peer::Container(..)));
        for name in IN_PLACE {
            let Peer::Instance(pod) = of(&format!("{container}/{name}")) else {
                panic!("{name} is in the container")
            };
            assert_eq!(pod.as_str(), uid);
        }
        assert!(matches!(of(&format!("{container}/below")), Peer::Other(_)));
        assert!(matches!(of("/system.slice/x.service"), Peer::Other(_)));
        assert!(matches!(
            of(&format!("/x/stelia.slice/stelia-instance-{uid}.scope")),
            Peer::Other(_)
        ));
    }
}
