//! Whether a container becomes an instance. The caller's words only ever narrow what its cgroup and kubelet say.

mod adopting;
mod claim;
mod entry;
mod home;
mod processes;
mod quiet_request;

use std::collections::BTreeMap;

use stelia_api::{Error, ErrorKind};
use stelia_cpus::{CpuSet, NodeSet};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::containers::LiveContainer;
use stelia_kernel::proc::TaskId;
use stelia_koordinator::allocator::{AllocatorPolicies, HostTables, Qos, Requester};
use stelia_kubelet::{ContainerCgroup, CpuManagerState, CpuRequest, PodName, QosClass};
use stelia_model::record::{Home, Phase, Record};
use stelia_settings::{Isolation, Partition, PlacementPolicy, QuietRequest};

use crate::allocator::allot;
use crate::entitlement::must_leave;
use crate::{Derived, Instance, Snapshot, pod_pool};
use adopting::Movable;
pub use adopting::{Adopting, take_housekeeping};
pub use claim::{CheckedClaim, Claim};
use entry::KubeletEntry;
pub use home::{HomeChoice, NewInstance, RuntimeCheck, check_no_partition, choose_home};
pub use processes::first_process;
use processes::{admit_anchor, admit_processes};
pub use quiet_request::allow;

/// The same text whether the pod exists or not: a tenant learns nothing of other pods.
pub const NOT_THE_CALLERS: &str = "pod_uid is not the UID of the caller's pod";

/// A container as found, before it is an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The cgroup that the container's processes are in.
    pub origin: CgroupPath,
    /// The parts of the cgroup's name.
    pub container: ContainerCgroup,
    /// The whole container's `cpuset.cpus`, which its runtime alone writes.
    pub cpus: CpuSet,
    /// kubelet's static policy gave it these CPUs before it was switched off, as far as the lists of all running containers tell.
    pub left_behind: bool,
    /// The whole container's `cpuset.mems`.
    pub mems: NodeSet,
    /// The NUMA nodes of its devices, by kubelet's record; read where steliad chooses the CPUs.
    pub devices: NodeSet,
    /// Why that record cannot be used: the CPUs are chosen without it.
    pub devices_unknown: Option<String>,
    /// Its processes, each with its number in every PID namespace.
    pub processes: Vec<(i32, Vec<i32>)>,
    /// Other cgroups of the container that hold processes: below the origin, and where that is a subgroup of the container's
    /// scope, the scope itself and what is beside it.
    pub elsewhere: Vec<CgroupPath>,
    /// A container that is adopted: it has processes in KubeVirt's `housekeeping`, which becomes its float.
    pub housekeeping: bool,
    /// What is in the way of the cgroups of an instance in place: see [`Tree::conflicting_cgroup`](stelia_model::record::Tree::conflicting_cgroup).
    pub conflicting_cgroup: Option<CgroupPath>,
    /// Why the container may make and write cgroups below its own; `None` where it may not.
    pub writes_cgroups: Option<String>,
    /// The container's name by the runtime's annotations, where one was found.
    pub annotated_name: Option<String>,
    /// The pod's name by the same.
    pub pod_name: Option<PodName>,
    /// Its CPU request, which tells an entry of its own from its pod's shared pool.
    pub request: CpuRequest,
    /// The other containers of the pod that have processes.
    pub live_containers: Vec<LiveContainer>,
    /// The anchor handed over and the cgroup it is in.
    pub anchor: Option<(TaskId, CgroupPath)>,
    /// Without an anchor it is refused.
    pub needs_anchor: bool,
    /// The calling process, if it is one of the container's.
    pub caller: Option<i32>,
    /// The least CPU limit of the container and its pod, thousandths of a CPU; `None` without one.
    pub limit_milli: Option<u64>,
}

/// Decide, with kubelet's CPUs or those of steliad's allocator. The record has phase `registered` and no time yet.
///
/// # Errors
/// The [`Error`] that says what is wrong.
pub fn admit(
    claim: &CheckedClaim,
    candidate: &Candidate,
    snapshot: &Snapshot,
    facts: &Derived,
    node: &AllocatorPolicies,
) -> Result<Record, Error> {
    let kubelets = |state: &CpuManagerState| is_kubelets(candidate, state);
    if node.source.allocates() && !snapshot.kubelet.as_ref().is_ok_and(kubelets) {
        return admit_allocated(claim, candidate, snapshot, facts, node);
    }
    // kubelet is the authority: an instance whose CPUs it gave to this container, and which leaves them, does not stand in the way.
    let stands_in_the_way = |instance: &&Instance| {
        let record = &instance.record;
        record.pod == candidate.container.pod
            || record.exclusive.is_disjoint(&candidate.cpus)
            || !must_leave(snapshot, facts, instance)
    };
    let others: Vec<&Record> = snapshot
        .instances
        .values()
        .filter(stands_in_the_way)
        .map(|instance| &instance.record)
        .collect();
    let record = admit_assigned(claim, candidate, &snapshot.kubelet, &others)?;
    check_schedule(claim, snapshot, &record.entry)?;
    Ok(record)
}

/// With CPUs that kubelet assigned.
fn admit_assigned(
    claim: &CheckedClaim,
    candidate: &Candidate,
    kubelet: &Result<CpuManagerState, String>,
    others: &[&Record],
) -> Result<Record, Error> {
    let pod = &candidate.container.pod;
    let sharer = || entry::sharer(candidate, kubelet.as_ref().ok()?);
    let anchor = admit_container(claim, candidate, others).map_err(|refusal| match refusal.kind {
        // That the pod's VM ends would not help a container beside it that has no CPUs of its own.
        ErrorKind::InstanceExists => sharer().unwrap_or(refusal),
        _ => refusal,
    })?;
    if claim.request.asks() {
        let text =
            "kubelet chooses the CPUs on this node (cpu-source = \"kubelet\"): it takes no options for an allocation";
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    let kubelet = kubelet.as_ref().map_err(|reason| {
        ErrorKind::KubeletStateUnusable.because(format!("kubelet's state cannot be used: {reason}"))
    })?;
    let KubeletEntry {
        container,
        entry,
        exclusive,
    } = entry::find(candidate, kubelet)?;
    if let Some(claimed) = &claim.cpuset
        && *claimed != entry
    {
        let text = format!("kubelet gave container {container} of pod {pod} the CPUs {entry}, not {claimed}");
        return Err(ErrorKind::CpusetMismatch.because(text));
    }
    for other in others {
        if !other.exclusive.is_disjoint(&exclusive) {
            let shared = other.exclusive.intersection(&exclusive);
            let text = format!("CPUs {shared} of pod {pod} belong to the instance of pod {}", other.pod);
            // kubelet gave them to this pod, and the other one leaves them within a few turns.
            return Err(ErrorKind::CpusetConflict.because(text).of(&other.pod).passing());
        }
    }
    if kubelet.shared_pool().difference(&exclusive).is_empty() {
        // Also of a whole container, which never floats: other tasks need shared CPUs.
        let text = match claim.isolation {
            Isolation::Vcpus => "kubelet's shared pool is empty: there is nowhere to float",
            Isolation::Container => "kubelet's shared pool is empty: other tasks would have no CPUs",
        };
        return Err(ErrorKind::KubeletStateUnusable.because(text).of(pod));
    }
    let record = Record {
        container,
        entry,
        exclusive,
        ..blank(claim, candidate, anchor)
    };
    Ok(Record {
        pod_pool: pod_pool::pool(kubelet, &record, &candidate.live_containers),
        ..record
    })
}

/// With CPUs that steliad chooses itself.
fn admit_allocated(
    claim: &CheckedClaim,
    candidate: &Candidate,
    snapshot: &Snapshot,
    facts: &Derived,
    node: &AllocatorPolicies,
) -> Result<Record, Error> {
    let others: Vec<&Record> = snapshot.instances.values().map(|instance| &instance.record).collect();
    let anchor = admit_container(claim, candidate, &others)?;
    if let Some(claimed) = &claim.cpuset {
        let text = format!("the CPUs are steliad's to choose on this node (cpu-source = \"steliad\"), not {claimed}");
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    if candidate.left_behind && is_free(candidate, snapshot, facts, node) {
        // kubelet assigned these before its policy became `none`, and no other container has them.
        if claim.request.asks() {
            return Err(
                ErrorKind::InvalidArgument.because(format!("kubelet gave the container the CPUs {}", candidate.cpus))
            );
        }
        check_schedule(claim, snapshot, &candidate.cpus)?;
        let name = candidate.annotated_name.as_ref();
        return Ok(Record {
            container: name.unwrap_or(&candidate.container.container_id).clone(),
            entry: candidate.cpus.clone(),
            exclusive: candidate.cpus.clone(),
            ..blank(claim, candidate, anchor)
        });
    }
    if let Ok(state) = &snapshot.kubelet
        && state.is_static()
        && !candidate.cpus.is_empty()
        && candidate.cpus.is_disjoint(&state.default_cpus)
    {
        // CPUs that are in no entry and not in the default set: kubelet is about to write their entry.
        let text = format!(
            "{} has cpuset.cpus {:?}, which kubelet's state does not name yet",
            candidate.origin,
            candidate.cpus.to_string()
        );
        return Err(ErrorKind::CpusetMismatch.because(text));
    }
    let requester = Requester {
        class: QosClass::of(candidate.origin.as_str()),
        limit_milli: candidate.limit_milli,
        bound: candidate.caller.is_some(),
        memory: Some(candidate.mems.clone()).filter(|mems| !mems.is_empty()),
        devices: candidate.devices.clone(),
    };
    let (exclusive, mut allocation) = allot(&claim.request, &requester, snapshot, facts, node)?;
    // Devices count only where steliad chooses the CPUs.
    let chooses = !exclusive.is_empty() && claim.request.schedule.cpus.is_none();
    if let Some(problem) = candidate.devices_unknown.as_ref().filter(|_| chooses) {
        // After why these NUMA nodes were chosen; the last line is about the exclusive policy.
        let at = allocation.explanation.len().min(2);
        let text = format!("kubelet's record of devices could not be used ({problem}), so no device was considered");
        allocation.explanation.insert(at, text);
    }
    if claim.isolation == Isolation::Container && allocation.qos != Qos::Lse {
        let text = format!(
            "isolation \"container\" is for class LSE, not {}",
            allocation.qos.name()
        );
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    let name = candidate.annotated_name.as_ref();
    Ok(Record {
        container: name.unwrap_or(&candidate.container.container_id).clone(),
        entry: exclusive.clone(),
        exclusive,
        allocation: Some(allocation),
        devices: candidate.devices.clone(),
        scheduled: !claim.request.schedule.is_empty(),
        ..blank(claim, candidate, anchor)
    })
}

/// Whether nobody else has any of a container's CPUs: an instance, another container of its pod, the system.
fn is_free(candidate: &Candidate, snapshot: &Snapshot, facts: &Derived, node: &AllocatorPolicies) -> bool {
    let beside = candidate.live_containers.iter().map(|container| &container.cpus);
    let instances = [facts.totals().owned(), &snapshot.left_alone, &snapshot.left_in_place];
    let mut others = instances
        .into_iter()
        .chain([facts.assigned(), &node.reserved])
        .chain(beside);
    others.all(|cpus| cpus.is_disjoint(&candidate.cpus))
}

/// Whether steliad's allocator gives a container exclusive CPUs without being asked for a class: its pod is Guaranteed, and its CPU limit,
/// in thousandths, is whole.
pub fn is_allocated_by_default(origin: &CgroupPath, own_limit_milli: Option<u64>) -> bool {
    QosClass::of(origin.as_str()) == QosClass::Guaranteed
        && own_limit_milli.is_some_and(|milli| milli > 0 && milli.is_multiple_of(1000))
}

/// Refuses CPUs that kubelet gave and that differ from those that a scheduler chose.
fn check_schedule(claim: &CheckedClaim, snapshot: &Snapshot, given: &CpuSet) -> Result<(), Error> {
    let nodes_of = |cpus: &CpuSet| HostTables::new(&snapshot.topology).nodes_of(cpus);
    match claim.request.schedule.contradicts(given, nodes_of) {
        Some(text) => Err(ErrorKind::CpusetMismatch.because(format!("{text} from kubelet"))),
        None => Ok(()),
    }
}

/// Whether kubelet's state has CPUs for the container or its pod: then these count, even where `cpu-source` is
/// `steliad`.
fn is_kubelets(candidate: &Candidate, kubelet: &CpuManagerState) -> bool {
    let pod = &candidate.container.pod;
    kubelet.entries.contains_key(pod) || kubelet.pod_entries.contains_key(pod)
}

/// The checks that do not depend on what chooses the CPUs; returns the anchor.
fn admit_container(claim: &CheckedClaim, candidate: &Candidate, others: &[&Record]) -> Result<Option<TaskId>, Error> {
    let pod = &candidate.container.pod;
    if let Some(claimed) = &claim.pod
        && claimed != pod
    {
        return Err(ErrorKind::NoSuchPod.because(NOT_THE_CALLERS));
    }
    if let Some(other) = others.iter().find(|other| other.pod == *pod) {
        let text = format!(
            "pod {pod} has an instance already, of the container in {}",
            other.origin
        );
        return Err(ErrorKind::InstanceExists.because(text));
    }
    // Nothing is moved of a container whose own cgroup becomes the partition.
    if claim.isolation == Isolation::Container {
        return Ok(None);
    }
    let anchor = admit_anchor(candidate)?;
    admit_processes(candidate)?;
    Ok(anchor)
}

/// The record of a container without CPUs yet.
fn blank(claim: &CheckedClaim, candidate: &Candidate, anchor: Option<TaskId>) -> Record {
    Record {
        pod: candidate.container.pod.clone(),
        container: String::new(),
        origin: candidate.origin.clone(),
        home: match claim.isolation {
            Isolation::Vcpus => Home::Scope,
            Isolation::Container => Home::Container,
        },
        anchor,
        adopted: None,
        entry: CpuSet::new(),
        allocation: None,
        pod_pool: None,
        scheduled: false,
        quiet: QuietRequest::default(),
        exclusive: CpuSet::new(),
        spare: CpuSet::new(),
        mems: candidate.mems.clone(),
        devices: NodeSet::new(),
        phase: Phase::Registered,
        vcpus: Vec::new(),
        props: BTreeMap::new(),
        placement: PlacementPolicy::Guest,
        partition: Partition::Isolated,
        refused: false,
        registered_us: 0,
        isolated_us: 0,
    }
}

#[cfg(test)]
mod tests;
