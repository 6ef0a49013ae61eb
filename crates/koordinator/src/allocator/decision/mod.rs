//! From a request to an allocation: what may be asked for, the defaults, the explanation.

mod allocation;
mod own_cpus;
mod resize;
mod shared;
mod words;

use std::sync::Arc;

pub use allocation::Allocation;
pub use resize::ResizeRequest;
use stelia_api::{Error, ErrorKind};
use stelia_cpus::{CpuSet, NodeSet, Topology};
use stelia_kubelet::QosClass;

use crate::allocator::request::numbers;
use crate::allocator::{
    AllocationRequest, AllocatorPolicies, CpuExclusivePolicy, HostTables, InUse, Pools, Qos, Usage,
};

/// The refusal where steliad does not choose.
pub fn chosen_by_kubelet() -> Error {
    ErrorKind::Failed.because("kubelet chooses the CPUs on this node")
}

/// The container that asks, as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requester {
    /// Kubernetes' class of the pod, by its cgroup's path.
    pub class: QosClass,
    /// The least CPU limit of the container and its pod (`cpu.max`), thousandths of a CPU; `None` without one.
    pub limit_milli: Option<u64>,
    /// Whether the container itself asks: then its request can only narrow what the kernel says. An administrator's
    /// request is taken as it is.
    pub bound: bool,
    /// The NUMA nodes its memory and huge pages may come from (`cpuset.mems`, kubelet's memory manager's); `None` for any.
    pub memory: Option<NodeSet>,
    /// The NUMA nodes of its devices, by kubelet's record; empty where it has none, or these have no NUMA nodes. Preferred among equally
    /// good NUMA nodes, and never a reason to refuse.
    pub devices: NodeSet,
}

/// CPUs of instances with an exclusive policy, which the pools do not tell apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct HeldCpus {
    /// CPUs held with the exclusive policy PCPULevel.
    pub pcpu_level: CpuSet,
    /// CPUs held with the exclusive policy NUMANodeLevel.
    pub numa_node_level: CpuSet,
    /// A scope whose record cannot be read, with the reason: its CPUs are unknown, so no CPUs are allocated at all.
    pub unreadable: Option<(String, String)>,
}

/// A node where steliad chooses the CPUs, as tables for any number of requests.
#[derive(Debug, Clone)]
pub struct AllocatorNode {
    host: Arc<HostTables>,
    pools: Pools,
    usage: Usage,
    unreadable: Option<(String, String)>,
    policies: AllocatorPolicies,
}

impl AllocatorNode {
    /// CPUs that are held without an exclusive policy are not in `held`: the pools leave them out already.
    pub fn new(topology: &Topology, pools: Pools, held: &HeldCpus, policies: AllocatorPolicies) -> Self {
        Self::on(Arc::new(HostTables::new(topology)), pools, held, policies)
    }

    /// The same for a host whose tables exist already: many nodes of a cluster have the same ones.
    pub fn on(host: Arc<HostTables>, pools: Pools, held: &HeldCpus, policies: AllocatorPolicies) -> Self {
        let with = |cpus: &CpuSet, exclusive| InUse {
            cpus: cpus.clone(),
            exclusive,
        };
        Self {
            host,
            pools,
            usage: Usage {
                in_use: vec![
                    with(&held.pcpu_level, CpuExclusivePolicy::PcpuLevel),
                    with(&held.numa_node_level, CpuExclusivePolicy::NumaNodeLevel),
                ],
            },
            unreadable: held.unreadable.clone(),
            policies,
        }
    }

    /// The host's tables.
    pub fn host(&self) -> &HostTables {
        &self.host
    }

    /// Its CPUs, divided.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The CPUs that can be allocated at all.
    pub(crate) fn capacity(&self) -> CpuSet {
        self.host.online().difference(&self.policies.reserved)
    }

    /// Decide. The CPUs are empty for LS and BE.
    ///
    /// # Errors
    /// `InvalidArgument`, `NotGuaranteed`, `NotAllocated`, `Failed`.
    pub fn allot(&self, request: &AllocationRequest, requester: &Requester) -> Result<(CpuSet, Allocation), Error> {
        let qos = class(request, requester, &self.policies)?;
        let allocation = Allocation::begin(qos, request, &self.policies);
        if qos.is_exclusive() {
            own_cpus::allot(request, requester, self, allocation)
        } else {
            let allocation = shared::allot(request, requester, &self.pools, allocation)?;
            Ok((CpuSet::new(), allocation))
        }
    }

    /// Decide which CPUs an instance is to have instead of its present ones.
    ///
    /// # Errors
    /// `InvalidArgument`: no CPU would remain. `NotAllocated`: too few are free, or none would be shared any more.
    pub fn resize(&self, request: ResizeRequest<'_>) -> Result<(CpuSet, Allocation), Error> {
        resize::resize(self, request)
    }
}

/// The class: the request's, else the one that Kubernetes' class of the pod maps to.
fn class(request: &AllocationRequest, requester: &Requester, policies: &AllocatorPolicies) -> Result<Qos, Error> {
    let qos = request.qos.unwrap_or(match requester.class {
        QosClass::Guaranteed => policies.qos,
        QosClass::Burstable => Qos::Ls,
        QosClass::BestEffort => Qos::Be,
    });
    let may = match qos {
        Qos::Lse | Qos::Lsr => requester.class == QosClass::Guaranteed,
        Qos::Ls => requester.class != QosClass::BestEffort,
        Qos::Be => true,
    };
    if requester.bound && !may {
        let text = format!("a {} pod cannot be of class {}", requester.class.name(), qos.name());
        return Err(ErrorKind::NotGuaranteed.because(text).lasting());
    }
    Ok(qos)
}

/// The NUMA nodes that a scheduler named, all of them this host's.
fn scheduled_nodes<'a>(request: &'a AllocationRequest, pools: &Pools) -> Result<Option<&'a NodeSet>, Error> {
    let Some(named) = &request.schedule.nodes else {
        return Ok(None);
    };
    let here: NodeSet = pools.shared_by_node.keys().copied().collect();
    if named.is_empty() || !named.is_subset(&here) {
        let text = format!(
            "the scheduler named NUMA nodes {:?}, this host has {}",
            numbers(named),
            numbers(&here)
        );
        return Err(ErrorKind::NotAllocated.because(text));
    }
    Ok(Some(named))
}
