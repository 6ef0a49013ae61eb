//! One pod arrives at a node.

use kubelet_planner::cpus::Fault;
use kubelet_planner::{Admission, Cpus, admit};
use stelia_api::{Error, ErrorKind};
use stelia_cpus::{CpuSet, NodeSet};
use stelia_koordinator::allocator::{Allocation, AllocatorPolicies, Requester};

use super::refusal_names::NO_ANSWER;
use super::{PlacedDevices, Refusal};
use crate::node::{FreeResources, NodeShape};
use crate::request::{Request, RequestedVm};

/// What a pod gets on a node, and what is left there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The exclusive CPUs of the pod, of all its containers; empty where it has none.
    pub cpus: CpuSet,
    /// Those of its VM.
    pub vm_cpus: CpuSet,
    /// The NUMA nodes of its exclusive CPUs, or of the pool that its VM runs on.
    pub numa_nodes: NodeSet,
    /// The NUMA nodes that its memory is bound to; empty where it is bound to none.
    pub memory_nodes: NodeSet,
    /// Devices of its VM, or of all its containers.
    pub(crate) devices: Vec<PlacedDevices>,
    /// The allocator's decision; `None` where kubelet decides.
    pub allocation: Option<Allocation>,
    pub left: FreeResources,
}

/// kubelet admits the pod, then its VM registers. `assigned`: the CPUs that a scheduler assigned to the VM.
pub(super) fn arrive(
    shape: &NodeShape,
    available: &FreeResources,
    request: &Request,
    assigned: Option<&CpuSet>,
) -> Result<Outcome, Refusal> {
    let node = shape.kubelet.with_state(available.kubelet_state(shape));
    let admission = admit(&node, &request.pod).map_err(|rejection| {
        let name = rejection.reason().unwrap_or(NO_ANSWER);
        Refusal::new(name, rejection.to_string())
    })?;
    let unsafe_fault = |(_, fault): &&(Option<String>, Fault)| *fault != Fault::Overwritten;
    if let Some((_, fault)) = admission.faults.iter().find(unsafe_fault) {
        return Err(Refusal::new(NO_ANSWER, fault.to_string()));
    }
    let admitted = admitted_by_kubelet(shape, available, &admission, request);
    if let Some(policies) = &shape.allocator {
        let ours = available.taken(shape).difference(&available.kubelets);
        let both = admitted.cpus.intersection(&ours);
        if !both.is_empty() {
            let text =
                format!("kubelet would assign the CPUs {both}, which instances hold that steliad chose the CPUs of");
            return Err(Refusal::new(ErrorKind::CpusetConflict.name(), text));
        }
        if let Some(vm) = request.vm.as_ref().filter(|_| admitted.vm_cpus.is_empty()) {
            return register_on_allocated_cpus(shape, policies, request, vm, assigned, admitted);
        }
    }
    match &request.vm {
        Some(vm) => register_on_kubelets_cpus(shape, vm, admitted),
        None => Ok(admitted),
    }
}

/// What the pod has once kubelet has admitted it.
fn admitted_by_kubelet(
    shape: &NodeShape,
    available: &FreeResources,
    admission: &Admission,
    request: &Request,
) -> Outcome {
    let mut outcome = Outcome {
        cpus: CpuSet::new(),
        vm_cpus: CpuSet::new(),
        numa_nodes: NodeSet::new(),
        memory_nodes: NodeSet::new(),
        devices: Vec::new(),
        allocation: None,
        left: available.admitted(shape, &admission.containers, admission.node.state()),
    };
    for container in &admission.containers {
        let vm = request
            .vm
            .as_ref()
            .is_some_and(|vm| vm.container == container.container);
        if let Cpus::Exclusive(cpus) = &container.cpus {
            outcome.cpus.union_with(cpus);
            if vm {
                outcome.vm_cpus = cpus.clone();
            }
        }
        if vm || request.vm.is_none() {
            let nodes = container.memory.iter().flat_map(|block| block.nodes.iter().copied());
            outcome.memory_nodes.extend(nodes);
            let state = &admission.node.state().devices;
            outcome.devices.extend(PlacedDevices::of(state, container));
        }
    }
    outcome.numa_nodes = shape.host.nodes_of(&outcome.cpus);
    outcome
}

/// The VM registers on the CPUs that kubelet assigned.
fn register_on_kubelets_cpus(shape: &NodeShape, vm: &RequestedVm, admitted: Outcome) -> Result<Outcome, Refusal> {
    let refused = |kind: ErrorKind, text: &str| Err(Refusal::new(kind.name(), text));
    if admitted.vm_cpus.is_empty() {
        let text = format!(
            "kubelet gives container {} no exclusive CPUs: it must be a Guaranteed pod with whole CPUs, and the CPU manager's policy static",
            vm.container
        );
        return refused(ErrorKind::NotGuaranteed, &text);
    }
    if vm.allocation.asks() {
        let text = "kubelet chooses the CPUs on this node: it takes no options for an allocation";
        return refused(ErrorKind::InvalidArgument, text);
    }
    // Reserved CPUs are in kubelet's shared pool, unless it is strict.
    let taken = admitted.left.taken(shape);
    let shared = shape.host.online().difference(&taken);
    let shared = match (&shape.kubelet_reserved, shape.strict) {
        (Some(reserved), true) => shared.difference(reserved),
        _ => shared,
    };
    if shared.is_empty() {
        let text = "kubelet's shared pool would be empty: there would be nowhere to float";
        return refused(ErrorKind::KubeletStateUnusable, text);
    }
    Ok(admitted)
}

/// The VM registers, and steliad chooses its CPUs.
fn register_on_allocated_cpus(
    shape: &NodeShape,
    policies: &AllocatorPolicies,
    request: &Request,
    vm: &RequestedVm,
    assigned: Option<&CpuSet>,
    admitted: Outcome,
) -> Result<Outcome, Refusal> {
    let node = admitted.left.allocator(shape, policies);
    let mut wanted = vm.allocation.clone();
    wanted.schedule.cpus = assigned.cloned();
    let requester = Requester {
        class: request.pod.qos(),
        limit_milli: request.limit_milli(vm),
        bound: true,
        memory: (!admitted.memory_nodes.is_empty()).then(|| admitted.memory_nodes.clone()),
        devices: PlacedDevices::certain_nodes(&admitted.devices),
    };
    let refused = |error: Error| Refusal::new(error.kind.name(), error.to_string());
    let (cpus, allocation) = node.allot(&wanted, &requester).map_err(refused)?;
    let pools = node.pools();
    let runs_on = match allocation.numa_node.and_then(|node| pools.shared_by_node.get(&node)) {
        Some(pool) => &pool.cpus,
        None => pools.cpus_of(allocation.qos, &cpus),
    };
    Ok(Outcome {
        numa_nodes: node.host().nodes_of(runs_on),
        cpus: admitted.cpus.union(&cpus),
        left: admitted.left.allocated(&cpus, allocation.qos, allocation.exclusive),
        allocation: Some(allocation),
        vm_cpus: cpus,
        ..admitted
    })
}
