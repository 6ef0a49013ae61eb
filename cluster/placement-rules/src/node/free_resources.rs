//! What is free on a node, in the forms that kubelet's planner and the allocator take.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kubelet_planner::cpus::CpuState;
use kubelet_planner::devices::DeviceState;
use kubelet_planner::memory::{self, MemoryState};
use kubelet_planner::{Amounts, ContainerAllocation, NodeState, Pod};
use stelia_cpus::CpuSet;
use stelia_koordinator::allocator::{AllocatorNode, AllocatorPolicies, CpuExclusivePolicy, HeldCpus, Pools, Qos};
use stelia_koordinator::report::compact::{Choice, Compact};
use stelia_kubelet::memory::{MemoryTable, NumaNodeState};

use super::shape::NodeShape;
use super::zones::Zones;

/// Amounts of one resource on one NUMA node, in bytes or devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Amount {
    /// What pods may have in all.
    pub all: u64,
    pub free: u64,
}

/// Devices of one resource, by NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Devices {
    pub resource: Arc<str>,
    pub by_node: Box<[(u32, Amount)]>,
}

/// What is free. Sets of CPUs are of online ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FreeResources {
    /// CPUs that are neither reserved nor a pod's own.
    pub free: CpuSet,
    /// Reserved CPUs that a pod nevertheless has to itself.
    pub held: CpuSet,
    /// CPUs that kubelet assigned; all that are not free, unless steliad chooses too.
    pub kubelets: CpuSet,
    /// CPUs of LSR instances.
    pub lsr: CpuSet,
    /// CPUs held with the exclusive policy PCPULevel.
    pub pcpu_level: CpuSet,
    /// CPUs held with the exclusive policy NUMANodeLevel.
    pub numa_node_level: CpuSet,
    /// An instance's record cannot be read: steliad allocates nothing.
    pub blocked: bool,
    /// By NUMA node and kind, both ascending; `None` of a kind that the NUMA node does not have. Empty where kubelet assigns none.
    pub memory: Box<[Option<Amount>]>,
    /// By NUMA node, ascending: the mask of the NUMA nodes that kubelet takes its memory to be used with; 0 where it is in nobody's use.
    pub groups: Box<[u64]>,
    pub devices: Box<[Devices]>,
}

impl FreeResources {
    pub(super) fn of(compact: &Compact, zones: &Zones) -> Self {
        let online = compact.topology.online();
        let choice = compact.choice.as_ref();
        let online_of = |cpus: fn(&Choice) -> &CpuSet| {
            let own = choice.map(|choice| cpus(choice).intersection(&online));
            own.unwrap_or_default()
        };
        let kinds: BTreeSet<&String> = zones.memory.values().flat_map(BTreeMap::keys).collect();
        let amount = |node: &u32, kind: &&String| zones.memory.get(node).and_then(|own| own.get(*kind)).copied();
        let (nodes, group) = (
            || zones.distances.keys(),
            |node| zones.groups.get(node).copied().unwrap_or(0),
        );
        let devices = zones.devices.iter().map(|(resource, by_node)| Devices {
            resource: resource.as_str().into(),
            by_node: by_node.iter().map(|(node, amount)| (*node, *amount)).collect(),
        });
        Self {
            free: compact.free.difference(&compact.reserved),
            held: compact.held.intersection(&compact.reserved).intersection(&online),
            kubelets: online_of(|choice| &choice.kubelets),
            lsr: online_of(|choice| &choice.lsr),
            pcpu_level: online_of(|choice| &choice.pcpu_level),
            numa_node_level: online_of(|choice| &choice.numa_node_level),
            blocked: choice.is_some_and(|choice| choice.blocked),
            memory: nodes()
                .flat_map(|node| kinds.iter().map(move |kind| amount(node, kind)))
                .collect(),
            groups: nodes().filter(|_| !kinds.is_empty()).map(group).collect(),
            devices: devices.collect(),
        }
    }

    /// The CPUs that pods have to themselves.
    pub(crate) fn taken(&self, shape: &NodeShape) -> CpuSet {
        let closed = shape.reserved().difference(&self.held);
        shape.host.online().difference(&self.free).difference(&closed)
    }

    /// What kubelet's managers have allocated, without whose it is.
    pub(crate) fn kubelet_state(&self, shape: &NodeShape) -> NodeState {
        NodeState {
            cpus: self.cpu_state(shape),
            memory: self.memory_state(shape),
            devices: self.device_state(),
        }
    }

    fn cpu_state(&self, shape: &NodeShape) -> CpuState {
        let Some(reserved) = &shape.kubelet_reserved else {
            return CpuState::default();
        };
        let default = if shape.steliad_chooses() {
            // It knows nothing of what steliad assigned.
            shape.host.online().difference(&self.kubelets)
        } else {
            self.free.union(reserved)
        };
        CpuState {
            default: if shape.strict {
                default.difference(reserved)
            } else {
                default.union(reserved)
            },
            ..CpuState::default()
        }
    }

    fn memory_state(&self, shape: &NodeShape) -> MemoryState {
        let Some(kinds) = shape.kinds() else {
            return MemoryState::default();
        };
        let node = |((id, amounts), group): ((u32, &[Option<Amount>]), &u64)| {
            let group = Some(*group).filter(|mask| *mask != 0);
            let tables = kinds.iter().zip(amounts).filter_map(|(kind, amount)| {
                let Amount { all, free } = (*amount)?;
                let table = MemoryTable {
                    total: all,
                    allocatable: all,
                    reserved: all.saturating_sub(free),
                    free,
                    ..MemoryTable::default()
                };
                Some((kind.clone(), table))
            });
            let state = NumaNodeState {
                assignments: u64::from(group.is_some()),
                cells: match group {
                    Some(mask) => (0..64).filter(|node| mask >> node & 1 == 1).collect(),
                    None => vec![id],
                },
                tables: tables.collect(),
            };
            (id, state)
        };
        let amounts = self.memory.chunks(kinds.len().max(1));
        MemoryState {
            nodes: shape.nodes().zip(amounts).zip(&self.groups).map(node).collect(),
            ..MemoryState::default()
        }
    }

    fn device_state(&self) -> DeviceState {
        let mut state = DeviceState::default();
        for Devices { resource, by_node } in &self.devices {
            for (node, amount) in by_node {
                state.add_counted(resource, Some(*node), amount.all, amount.free);
            }
        }
        state
    }

    /// The same after kubelet admitted a pod, whose containers have these allocations: `after` are its managers' states then.
    #[must_use]
    pub(crate) fn admitted(&self, shape: &NodeShape, containers: &[ContainerAllocation], after: &NodeState) -> Self {
        let mut next = self.clone();
        if let Some(reserved) = &shape.kubelet_reserved {
            let before = self.cpu_state(shape).default;
            let taken = before.difference(&after.cpus.default).difference(reserved);
            next.free = self.free.difference(&taken);
            if shape.steliad_chooses() {
                next.kubelets.union_with(&taken);
                next.held = next.held.union(&taken.intersection(shape.reserved()));
            }
        }
        if let Some(kinds) = shape.kinds() {
            let nodes: Vec<&NumaNodeState> = after.memory.nodes.values().collect();
            for (amounts, node) in next.memory.chunks_mut(kinds.len().max(1)).zip(&nodes) {
                for (amount, kind) in amounts.iter_mut().zip(kinds) {
                    if let (Some(amount), Some(table)) = (amount, node.tables.get(kind)) {
                        amount.free = table.free;
                    }
                }
            }
            let mask = |node: &&NumaNodeState| {
                let cells = node.cells.iter().filter(|cell| **cell < 64);
                cells.fold(0u64, |mask, cell| mask | 1 << cell)
            };
            let used = |node: &&NumaNodeState| if node.assignments > 0 { mask(node) } else { 0 };
            next.groups = nodes.iter().map(used).collect();
        }
        for container in containers {
            for (resource, chosen) in &container.devices {
                let Some(devices) = next.devices.iter_mut().find(|devices| *devices.resource == **resource) else {
                    continue;
                };
                let near = |node: u32| container.hint.nodes.is_none_or(|mask| mask.contains(node));
                let by_node = devices.by_node.iter();
                let nodes = by_node.filter(|(node, amount)| amount.free > 0 && near(*node)).count();
                let all = after.devices.resources.get(resource);
                let is_on = |id: &String, node: u32| {
                    let device = all.and_then(|all| all.get(id));
                    device.is_some_and(|device| device.nodes.contains(&node))
                };
                for (node, amount) in &mut devices.by_node {
                    let count = chosen.ids.iter().filter(|id| is_on(id, *node)).count() as u64;
                    amount.free = if chosen.certain || nodes < 2 {
                        amount.free.saturating_sub(count)
                    } else if near(*node) {
                        // The plugin chooses: until the object tells, they are missing on each of these NUMA nodes.
                        amount.free.saturating_sub(chosen.ids.len() as u64)
                    } else {
                        amount.free
                    };
                }
            }
        }
        next
    }

    /// The same after steliad allocated these CPUs.
    #[must_use]
    pub(crate) fn allocated(&self, cpus: &CpuSet, qos: Qos, exclusive: CpuExclusivePolicy) -> Self {
        let mut next = self.clone();
        next.free = self.free.difference(cpus);
        if qos == Qos::Lsr {
            next.lsr.union_with(cpus);
        }
        match exclusive {
            CpuExclusivePolicy::PcpuLevel => next.pcpu_level.union_with(cpus),
            CpuExclusivePolicy::NumaNodeLevel => next.numa_node_level.union_with(cpus),
            CpuExclusivePolicy::Default | CpuExclusivePolicy::None => {}
        }
        next
    }

    /// The same after a pod that had these CPUs has left. Memory that kubelet's Memory Manager bound counts as given back on the NUMA node of the CPUs, as
    /// far as it is known what the pod asked for; where they are on several, not at all, and devices are not either.
    #[must_use]
    pub(crate) fn freed(&self, shape: &NodeShape, cpus: &CpuSet, pod: Option<&Pod>) -> Self {
        let mut next = self.clone();
        next.free.union_with(&cpus.difference(shape.reserved()));
        for set in [
            &mut next.held,
            &mut next.kubelets,
            &mut next.lsr,
            &mut next.pcpu_level,
            &mut next.numa_node_level,
        ] {
            *set = set.difference(cpus);
        }
        let nodes = shape.host.nodes_of(cpus);
        let one = nodes.first().filter(|_| nodes.len() == 1);
        let row = one.and_then(|node| shape.nodes().position(|id| id == *node));
        let (Some(kinds), Some(row), Some(pod)) = (shape.kinds(), row, pod) else {
            return next;
        };
        let own = next.memory.iter_mut().skip(row * kinds.len());
        for (kind, amount) in kinds.iter().zip(own) {
            let asked = pod.containers.iter().map(|one| bytes(&one.resources.requests, kind));
            let back = asked.fold(0, u64::saturating_add);
            if let Some(amount) = amount {
                amount.free = amount.free.saturating_add(back).min(amount.all);
            }
        }
        next
    }

    /// The node as the allocator takes it, with these policies.
    pub(crate) fn allocator(&self, shape: &NodeShape, policies: &AllocatorPolicies) -> AllocatorNode {
        let closed = self.taken(shape).difference(&self.lsr);
        let pools = Pools::on(&shape.host, shape.reserved(), &closed, &self.lsr);
        let unreadable = || ("an instance".to_owned(), "its record cannot be read".to_owned());
        let held = HeldCpus {
            pcpu_level: self.pcpu_level.clone(),
            numa_node_level: self.numa_node_level.clone(),
            unreadable: self.blocked.then(unreadable),
        };
        AllocatorNode::on(Arc::clone(&shape.host), pools, &held, policies.clone())
    }
}

/// Memory of one of kubelet's kinds.
fn bytes(amounts: &Amounts, kind: &str) -> u64 {
    let plain = (kind == memory::kind(None)).then_some(amounts.memory).flatten();
    let pages = amounts.huge_pages.iter();
    let pages = pages.filter(|(size, _)| memory::kind(Some(**size)) == kind);
    let pages = pages.map(|(_, bytes)| *bytes);
    pages.fold(plain.unwrap_or(0), u64::saturating_add)
}
