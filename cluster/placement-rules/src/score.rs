//! How well a node suits a pod that it has room for.
//!
//! | part, each from 0 to 100 | what |
//! |---|---|
//! | koordinator | half of Koordinator's score A + B, by the request's strategy ([`stelia_koordinator::allocator::evaluate::score`]); where kubelet chooses, of the CPUs that it would assign and by its alignment policy |
//! | distance | 100 within one NUMA node. Else the distance of a NUMA node to itself by the mean of all distances among those that its CPUs, its memory and its devices are on |
//! | fragmentation | how few whole free cores are lost beyond what so many CPUs need at least; 10 less for each NUMA node that was free as a whole and is in part now |
//! | company | 100 where the exclusive policy is kept or not asked for, 50 where a NUMA node is shared and no core, 0 where a core is |
//! | devices | the lesser share, in percent: of its devices on NUMA nodes with its CPUs, and of its CPUs on NUMA nodes with its devices. Counts only where the pod has devices with NUMA nodes, and as much as all other parts together, so a node where all meet comes before one where none do |
//!
//! The total is their weighted mean, in thousandths; the extender's priorities are tenths of that.

use kubelet_planner::CpuManager;
use kubelet_planner::merge::Policy;
use stelia_cpus::NodeSet;
use stelia_koordinator::allocator::evaluate::score;
use stelia_koordinator::allocator::{
    Allocation, AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, Exclusivity, NumaTopologyAlignmentPolicy, Qos,
};

use crate::evaluate::{Outcome, PlacedDevices};
use crate::node::{FreeResources, NodeShape};
use crate::request::Request;

/// The largest total.
pub const MAX_SCORE: u16 = 1000;
/// `MaxExtenderPriority` of kube-scheduler.
pub const MAX_PRIORITY: u16 = 10;

/// How much each part counts: Koordinator's, the distance, the fragmentation, the company. The devices' part counts as much as all of them.
const WEIGHTS: [u32; 4] = [50, 20, 20, 10];
const DEVICES_WEIGHT: u32 = 100;

/// A score with its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Score {
    /// From 0 to [`MAX_SCORE`].
    pub total: u16,
    /// Koordinator's A + B, from 0 to 200.
    pub koordinator: u32,
    pub distance: u32,
    pub fragmentation: u32,
    pub company: u32,
    /// `None` of a pod without devices that have NUMA nodes.
    pub devices: Option<u32>,
}

/// A total as kube-scheduler takes it from an extender.
pub fn priority(total: u16) -> u16 {
    (total.min(MAX_SCORE) * MAX_PRIORITY + MAX_SCORE / 2) / MAX_SCORE
}

/// The distance of two NUMA nodes if the object has none: one hop, the usual value of firmware.
const DEFAULT_DISTANCE: u64 = 20;
/// The distance of a NUMA node to itself.
const LOCAL_DISTANCE: u64 = 10;

impl Score {
    pub(crate) fn of(shape: &NodeShape, before: &FreeResources, request: &Request, outcome: &Outcome) -> Self {
        let koordinator = koordinator(shape, before, request, outcome);
        let distance = distance(shape, outcome);
        let fragmentation = fragmentation(shape, before, outcome);
        let company = company(outcome);
        let devices = devices(shape, outcome);
        let parts = [koordinator * 5, distance * 10, fragmentation * 10, company * 10];
        let of_devices = devices.map(|devices| (DEVICES_WEIGHT, devices * 10));
        let parts = || WEIGHTS.into_iter().zip(parts).chain(of_devices);
        let weight: u32 = parts().map(|(weight, _)| weight).sum();
        let sum: u32 = parts().map(|(weight, part)| weight * part).sum();
        let total = sum.checked_div(weight).and_then(|total| u16::try_from(total).ok());
        Self {
            total: total.unwrap_or(0).min(MAX_SCORE),
            koordinator,
            distance,
            fragmentation,
            company,
            devices,
        }
    }
}

/// A + B.
fn koordinator(shape: &NodeShape, before: &FreeResources, request: &Request, outcome: &Outcome) -> u32 {
    let policies = match &shape.allocator {
        Some(policies) => policies.clone(),
        None => AllocatorPolicies {
            reserved: shape.reserved().clone(),
            ..AllocatorPolicies::default()
        },
    };
    let (allocation, cpus) = match &outcome.allocation {
        Some(allocation) => (allocation.clone(), &outcome.vm_cpus),
        None => (by_kubelet(shape, outcome, &policies), &outcome.cpus),
    };
    let limit = request.vm.as_ref().and_then(|vm| request.limit_milli(vm)).unwrap_or(0);
    let wanted = match cpus.len() {
        0 => usize::try_from(limit.div_ceil(1000)).unwrap_or(usize::MAX).max(1),
        own => own,
    };
    let node = before.allocator(shape, &policies);
    score::of(&node, &allocation, cpus, wanted, request.strategy).sum
}

/// kubelet's decision as an allocation.
fn by_kubelet(shape: &NodeShape, outcome: &Outcome, policies: &AllocatorPolicies) -> Allocation {
    let settings = shape.kubelet.settings();
    let whole = match &settings.cpu_manager {
        CpuManager::Static { options, .. } => options.full_pcpus_only,
        CpuManager::None => false,
    };
    Allocation {
        qos: if outcome.cpus.is_empty() { Qos::Ls } else { Qos::Lse },
        cpus: u32::try_from(outcome.cpus.len()).unwrap_or(u32::MAX),
        bind: CpuBindPolicy::FullPcpus,
        required: whole,
        exclusive: CpuExclusivePolicy::None,
        strategy: policies.strategy,
        alignment: match settings.topology_policy {
            Policy::None => NumaTopologyAlignmentPolicy::None,
            Policy::BestEffort => NumaTopologyAlignmentPolicy::BestEffort,
            Policy::Restricted => NumaTopologyAlignmentPolicy::Restricted,
            Policy::SingleNumaNode => NumaTopologyAlignmentPolicy::SingleNumaNode,
        },
        limit_milli: 0,
        numa_node: None,
        exclusivity: Exclusivity::NotAsked,
        explanation: Vec::new(),
    }
}

fn distance(shape: &NodeShape, outcome: &Outcome) -> u32 {
    let mut nodes: NodeSet = outcome.numa_nodes.union(&outcome.memory_nodes).copied().collect();
    nodes.extend(PlacedDevices::nodes(&outcome.devices));
    // A pod on the shared pool of the whole node has no distance.
    if nodes.len() < 2 || outcome.cpus.is_empty() {
        return 100;
    }
    let pairs = nodes.iter().flat_map(|from| nodes.iter().map(move |to| (*from, *to)));
    let local = |node: u32| shape.distance(node, node).unwrap_or(LOCAL_DISTANCE);
    let distances = pairs.map(|(from, to)| {
        if from == to {
            local(from)
        } else {
            shape.distance(from, to).unwrap_or(DEFAULT_DISTANCE)
        }
    });
    let sum = distances.fold(0u64, u64::saturating_add);
    let count = (nodes.len() * nodes.len()) as u64;
    let least = nodes.iter().map(|node| local(*node)).min().unwrap_or(LOCAL_DISTANCE);
    let score = least.saturating_mul(count).saturating_mul(100).checked_div(sum);
    u32::try_from(score.unwrap_or(100).min(100)).unwrap_or(100)
}

fn fragmentation(shape: &NodeShape, before: &FreeResources, outcome: &Outcome) -> u32 {
    let host = &shape.host;
    let count = outcome.cpus.len();
    if count == 0 {
        return 100;
    }
    let threads = host.threads().max(1);
    let cores = |available: &FreeResources| host.whole_cores(&available.free).len() / threads;
    let least = count.div_ceil(threads);
    let lost = cores(before).saturating_sub(cores(&outcome.left)).max(least);
    let capacity = shape.capacity();
    let broken = host.nodes().filter(|(_, _, cpus)| {
        let whole = cpus.intersection(&capacity);
        let left = cpus.intersection(&outcome.left.free);
        !whole.is_empty() && whole.is_subset(&before.free) && left != whole && !left.is_empty()
    });
    let kept = u32::try_from(least * 100 / lost).unwrap_or(100);
    kept.saturating_sub(10 * u32::try_from(broken.count()).unwrap_or(10))
}

/// The lesser of two shares: the devices that are on NUMA nodes with its CPUs, and the CPUs that are on NUMA nodes with its devices.
fn devices(shape: &NodeShape, outcome: &Outcome) -> Option<u32> {
    let near = PlacedDevices::percent_on(&outcome.devices, &outcome.numa_nodes)?;
    let own = !outcome.vm_cpus.is_empty();
    let cpus = if own { &outcome.vm_cpus } else { &outcome.cpus };
    let nodes = PlacedDevices::nodes(&outcome.devices);
    let counts = shape.host.counts(cpus);
    let here = counts.iter().filter(|(node, _)| nodes.contains(node));
    let here: usize = here.map(|(_, count)| count).sum();
    let of_cpus = (here as u64 * 100).checked_div(cpus.len() as u64).unwrap_or(100);
    Some(u32::try_from(near.min(of_cpus)).unwrap_or(100))
}

fn company(outcome: &Outcome) -> u32 {
    match outcome.allocation.as_ref().map(|allocation| allocation.exclusivity) {
        None | Some(Exclusivity::NotAsked | Exclusivity::Honored) => 100,
        Some(Exclusivity::Downgraded) => 50,
        Some(Exclusivity::Dropped) => 0,
    }
}
