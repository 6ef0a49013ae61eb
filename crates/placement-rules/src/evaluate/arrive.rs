//! One pod arrives at a node.

use std::collections::BTreeSet;

use kubelet_planner::cpus::Fault;
use kubelet_planner::{Admission, Cpus, admit};
use stelia_allocator::evaluate::Request as FilteredPods;
use stelia_allocator::{Allocation, AllocatorPolicies, Exclusivity, Qos, Requester};
use stelia_api::Error;
use stelia_cpus::CpuSet;

use super::{By, Refusal};
use crate::node::{Available, Shape};
use crate::request::{Request, Vm};

/// What a pod gets, and what is left.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) by: By,
    pub(crate) cpus: CpuSet,
    pub(crate) vm_cpus: CpuSet,
    pub(crate) numa_nodes: BTreeSet<u32>,
    pub(crate) memory_nodes: BTreeSet<u32>,
    pub(crate) qos: Option<Qos>,
    pub(crate) exclusivity: Option<Exclusivity>,
    /// What the allocator decided, where it did.
    pub(crate) allocation: Option<Allocation>,
    pub(crate) left: Available,
}

/// The name of a refusal of kubelet's that it never tells: it hangs or crashes.
const NO_ANSWER: &str = "NoAnswer";
const NOT_GUARANTEED: &str = "NotGuaranteed";
const INVALID: &str = "InvalidArgument";
const CONFLICT: &str = "CpusetConflict";
const UNUSABLE: &str = "KubeletStateUnusable";

/// Admitted by kubelet, then registered; `told`: the CPUs that a scheduler chose.
pub(super) fn arrive(
    shape: &Shape,
    available: &Available,
    request: &Request,
    told: Option<&CpuSet>,
) -> Result<Outcome, Refusal> {
    let node = shape.kubelet.with_state(available.kubelet_state(shape));
    let admission = admit(&node, &request.pod).map_err(|rejection| {
        let name = rejection.reason().unwrap_or(NO_ANSWER);
        Refusal::new(By::Kubelet, name, rejection.to_string())
    })?;
    let unsafe_fault = |(_, fault): &&(Option<String>, Fault)| *fault != Fault::Overwritten;
    if let Some((_, fault)) = admission.faults.iter().find(unsafe_fault) {
        return Err(Refusal::new(By::Kubelet, NO_ANSWER, fault.to_string()));
    }
    let given = given(shape, available, &admission, request);
    if let Some(policies) = &shape.allocator {
        let ours = available.taken(shape).difference(&available.kubelets);
        let both = given.cpus.intersection(&ours);
        if !both.is_empty() {
            let text =
                format!("kubelet would assign the CPUs {both}, which instances hold that steliad chose the CPUs of");
            return Err(Refusal::new(By::Steliad, CONFLICT, text));
        }
        if let Some(vm) = request.vm.as_ref().filter(|_| given.vm_cpus.is_empty()) {
            return allocate(shape, policies, request, vm, told, given);
        }
    }
    match &request.vm {
        Some(vm) => registered(shape, vm, given),
        None => Ok(given),
    }
}

/// What kubelet gives.
fn given(shape: &Shape, available: &Available, admission: &Admission, request: &Request) -> Outcome {
    let mut outcome = Outcome {
        by: By::Kubelet,
        cpus: CpuSet::new(),
        vm_cpus: CpuSet::new(),
        numa_nodes: BTreeSet::new(),
        memory_nodes: BTreeSet::new(),
        qos: None,
        exclusivity: None,
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
        }
    }
    outcome.numa_nodes = shape.host.nodes_of(&outcome.cpus);
    outcome
}

/// The VM registers with the CPUs that kubelet gave.
fn registered(shape: &Shape, vm: &Vm, given: Outcome) -> Result<Outcome, Refusal> {
    let refused = |name, text: String| Err(Refusal::new(By::Steliad, name, text));
    if given.vm_cpus.is_empty() {
        let text = format!(
            "kubelet gives container {} no exclusive CPUs: it must be a Guaranteed pod with whole CPUs, and the CPU manager's policy static",
            vm.container
        );
        return refused(NOT_GUARANTEED, text);
    }
    if vm.allocation.asks() {
        return refused(
            INVALID,
            "kubelet chooses the CPUs on this node: it takes no options for an allocation".to_owned(),
        );
    }
    // Reserved CPUs are in kubelet's shared pool, unless it is strict.
    let taken = given.left.taken(shape);
    let shared = shape.host.online().difference(&taken);
    let shared = match (&shape.kubelet_reserved, shape.strict) {
        (Some(reserved), true) => shared.difference(reserved),
        _ => shared,
    };
    match shared.is_empty() {
        true => refused(
            UNUSABLE,
            "kubelet's shared pool would be empty: there would be nowhere to float".to_owned(),
        ),
        false => Ok(given),
    }
}

/// The VM registers, and steliad chooses.
fn allocate(
    shape: &Shape,
    policies: &AllocatorPolicies,
    request: &Request,
    vm: &Vm,
    told: Option<&CpuSet>,
    given: Outcome,
) -> Result<Outcome, Refusal> {
    let node = given.left.allocator(shape, policies);
    let asked: FilteredPods = request.asked(vm);
    let mut wanted = asked.allocation;
    wanted.schedule.cpus = told.cloned();
    let requester = Requester {
        class: request.pod.qos(),
        limit_milli: request.limit_milli(vm),
        bound: true,
        memory: (!given.memory_nodes.is_empty()).then(|| given.memory_nodes.clone()),
    };
    let (cpus, allocation) = node.allot(&wanted, &requester).map_err(|refusal| of_error(&refusal))?;
    let pools = node.pools();
    let runs_on = match allocation.numa_node.and_then(|node| pools.shared_by_node.get(&node)) {
        Some(pool) => &pool.cpus,
        None => pools.cpus_of(allocation.qos, &cpus),
    };
    Ok(Outcome {
        by: By::Steliad,
        numa_nodes: node.host().nodes_of(runs_on),
        cpus: given.cpus.union(&cpus),
        qos: Some(allocation.qos),
        exclusivity: Some(allocation.exclusivity),
        left: given.left.allocated(&cpus, allocation.qos, allocation.exclusive),
        allocation: Some(allocation),
        vm_cpus: cpus,
        ..given
    })
}

fn of_error(refusal: &Error) -> Refusal {
    Refusal::new(By::Steliad, refusal.kind.name(), refusal.to_string())
}
