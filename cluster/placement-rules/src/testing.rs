//! Nodes and requests for tests and benchmarks.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_planner::{Amounts, Container, ContainerKind, MemoryManager, Node, Pod, Resources};
use stelia_cpus::{CpuSet, NodeSet, Topology};
use stelia_koordinator::allocator::AllocationRequest;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::memory_and_devices::Devices;
use stelia_koordinator::report::numa::{KernelNumaNode, NumaMemory, Pages};
use stelia_koordinator::report::profile::{Profile, object};
use stelia_koordinator::report::{Alignment, ApiVersion, Facts, Kubelet, Managers, PodAllocation};
use stelia_kubelet::PodUid;

use crate::request::{Request, RequestedVm};

/// The node's object of profile `stelia`, JSON.
#[allow(clippy::unwrap_used)]
pub fn published(facts: &Facts) -> String {
    serde_json::to_string(&object(facts, Profile::Stelia, ApiVersion::V1Alpha2, Method::default())).unwrap()
}

/// A Guaranteed pod of one container, of so many thousandths of a CPU and GiB.
pub fn pod(milli_cpus: u64, memory_gib: u64) -> Pod {
    let amounts = Amounts {
        milli_cpus: Some(milli_cpus),
        memory: Some(memory_gib << 30),
        ..Amounts::default()
    };
    Pod {
        containers: vec![Container::new("vm", ContainerKind::App, Resources::guaranteed(amounts))],
        ..Pod::default()
    }
}

/// A VM whose runner asks for nothing in particular.
pub fn vm(cpus: u64) -> Request {
    vm_with(cpus, AllocationRequest::default(), true)
}

/// A VM with options, that follows what a scheduler chose or not.
pub fn vm_with(cpus: u64, allocation: AllocationRequest, follows_scheduler: bool) -> Request {
    let vm = RequestedVm {
        container: "vm".to_owned(),
        allocation,
        follows_scheduler,
    };
    Request::new(pod(cpus * 1000, 1), Some(vm), Default::default())
}

/// A pod has these CPUs to itself now, that kubelet did not choose.
pub fn allocate(facts: &mut Facts, pod: PodUid, cpus: &CpuSet) {
    facts.exclusive.union_with(cpus);
    facts.shared = facts.topology.online().difference(&facts.exclusive);
    facts.allocations.push(PodAllocation {
        pod,
        name: None,
        cpus: cpus.clone(),
        by_kubelet: false,
    });
}

/// A pod's UID by a number.
#[allow(clippy::unwrap_used)]
pub fn uid(number: u128) -> PodUid {
    let digits = format!("{number:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    PodUid::parse(&parts.join("-")).unwrap()
}

/// The facts that the daemon reports of a node whose kubelet is in this state. UIDs of its pods are as [`uid`] makes them.
#[allow(clippy::unwrap_used)]
pub fn facts_of(name: &str, node: &Node, topology: &Topology, cpu_options: BTreeMap<String, String>) -> Facts {
    let (machine, settings, state) = (node.machine(), node.settings(), node.state());
    let reserved = node.reserved_cpus();
    let allocations: Vec<PodAllocation> = state
        .cpus
        .entries
        .iter()
        .map(|(pod, containers)| PodAllocation {
            pod: PodUid::parse(pod).unwrap(),
            name: None,
            cpus: containers.values().flat_map(CpuSet::iter).collect(),
            by_kubelet: true,
        })
        .collect();
    let exclusive: CpuSet = allocations.iter().flat_map(|one| one.cpus.iter()).collect();
    let is_static = settings.memory_manager != MemoryManager::None;
    let used = state.memory.nodes.iter().filter(|(_, node)| node.assignments > 0);
    let groups = used.map(|(id, node)| (*id, node.cells.iter().copied().collect()));
    let groups: BTreeMap<u32, NodeSet> = groups.collect();
    let mut devices: BTreeMap<u32, BTreeMap<String, Devices>> = BTreeMap::new();
    for (resource, all) in &state.devices.resources {
        let free = state.devices.available(resource);
        for (id, device) in all {
            for node in &device.nodes {
                let here = devices.entry(*node).or_default().entry(resource.clone()).or_default();
                here.all += 1;
                here.free += usize::from(free.contains(id.as_str()));
            }
        }
    }
    Facts {
        name: name.to_owned(),
        topology: topology.clone(),
        numa: machine.numa.keys().map(|id| (*id, numa_of(node, *id))).collect(),
        shared: topology.online().difference(&exclusive),
        reserved: reserved.clone(),
        exclusive,
        allocations,
        containers: BTreeSet::new(),
        kubelet: Kubelet {
            cpu_policy: "static".to_owned(),
            cpu_options,
            reserved,
            alignment: Some(Alignment {
                policy: settings.topology_policy.name().to_owned(),
                scope: settings.topology_scope.name().to_owned(),
            }),
            max_numa_nodes: Some(u32::try_from(settings.topology_options.max_allowable_numa_nodes).unwrap()),
            managers: Managers {
                prefer_closest: settings.topology_options.prefer_closest_numa_nodes,
                pod_level: settings.kubelet.pod_level_resource_managers,
                memory_groups: is_static.then_some(groups),
                ..Managers::default()
            },
        },
        allocator: None,
        pods: None,
        devices,
        problems: Vec::new(),
    }
}

/// A NUMA node as `/sys` and kubelet's record of memory describe it.
fn numa_of(node: &Node, id: u32) -> KernelNumaNode {
    let machine = &node.machine().numa;
    let own = &machine[&id];
    let tables = node.state().memory.nodes.get(&id).map(|state| &state.tables);
    let aside: u64 = own.huge_pages.iter().map(|(size, count)| size * count).sum();
    let table = |kind: &str| tables.and_then(|tables| tables.get(kind)).copied();
    let memory = table("memory");
    let pages = |(size, count): (&u64, &u64)| {
        let table = table(&kubelet_planner::memory::kind(Some(*size)));
        let pages = Pages {
            total: *count,
            reserved: table.map_or(0, |table| count - table.allocatable / size),
            free: table.map_or(*count, |table| table.free / size),
        };
        (*size, pages)
    };
    KernelNumaNode {
        distances: machine
            .keys()
            .zip(&own.distances)
            .map(|(other, distance)| (*other, u32::try_from(*distance).unwrap_or(u32::MAX)))
            .collect(),
        memory: Some(NumaMemory {
            total: own.memory,
            reserved: memory.map_or(0, |table| own.memory - aside - table.allocatable),
            assigned: memory.map_or(0, |table| table.allocatable - table.free),
        }),
        huge_pages: own.huge_pages.iter().map(pages).collect(),
    }
}
