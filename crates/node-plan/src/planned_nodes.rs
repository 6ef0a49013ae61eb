//! Whether a container's CPUs, memory and devices are on the same NUMA nodes.

use std::collections::BTreeMap;

use kubelet_planner::devices::{Chosen, DeviceState};
use kubelet_planner::memory::MemoryState;
use kubelet_planner::{ContainerAllocation, Cpus};
use serde::Serialize;
use stelia_cpus::text::named;
use stelia_cpus::{CpuSet, NodeSet};
use stelia_kubelet::memory::MemoryBlock;

use crate::Subject;

/// Limit of the NUMA nodes of which every set is looked at; kubelet's own default.
const MAX_COMBINED_NODES: usize = 8;

/// The NUMA nodes of what a container gets, as predicted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedNodes {
    /// Those of its exclusive CPUs.
    pub cpus: NodeSet,
    /// Those that its memory is bound to; empty where it is bound to none.
    pub memory: NodeSet,
    /// Those of its devices, by resource. A resource without NUMA nodes is left out.
    pub devices: Vec<DeviceNodes>,
    pub verdict: NodesVerdict,
}

/// The NUMA nodes of a container's devices of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceNodes {
    pub resource: String,
    /// Those of all devices that it may get.
    pub nodes: NodeSet,
    /// Whether it gets devices on the same NUMA nodes whichever of these are selected.
    pub certain: bool,
    /// Whether it may get a device whose NUMA node is not known.
    pub has_unknown: bool,
    #[serde(skip)]
    place: Place,
}

named! {
    /// Whether CPUs, memory and devices are on the same NUMA nodes; the best answer first.
    #[derive(PartialOrd, Ord)]
    pub enum NodesVerdict {
        /// All on one NUMA node.
        OneNode = "one-node",
        /// The CPUs are on several NUMA nodes, because fewer do not have as many CPUs and devices and as much memory, even if all are free;
        /// memory and devices are only on these.
        SameNodes = "same-nodes",
        /// Memory and devices are only on NUMA nodes of the CPUs, but the CPUs are on more NUMA nodes than necessary if all CPUs, memory and
        /// devices are free.
        Spread = "spread",
        /// It depends on which devices are selected, by the plugin or by kubelet, or the NUMA node of a device is not known.
        Uncertain = "uncertain",
        /// Memory or a device is on a NUMA node without the container's CPUs.
        Apart = "apart",
        /// It has devices and no exclusive CPUs.
        NoCpus = "no-cpus",
    }
}

/// Whether the devices of a resource are on the NUMA nodes of the CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Near,
    Away,
    Either,
}

impl NodesVerdict {
    /// Whether nothing is away from the CPUs, and these are on no more NUMA nodes than necessary.
    pub fn is_together(self) -> bool {
        matches!(self, Self::OneNode | Self::SameNodes)
    }
}

impl PlannedNodes {
    /// What a container got of a node; `None` where it has no devices with NUMA nodes.
    pub fn of(subject: &Subject, given: &ContainerAllocation) -> Option<Self> {
        let cpus = match &given.cpus {
            Cpus::Exclusive(cpus) => cpus.clone(),
            Cpus::Shared | Cpus::PodShared(_) => CpuSet::new(),
        };
        Self::on(subject, &cpus, given)
    }

    /// As [`Self::of`], for CPUs that steliad's allocator chose.
    pub fn on(subject: &Subject, cpus: &CpuSet, given: &ContainerAllocation) -> Option<Self> {
        let memory = given.memory.iter().flat_map(|block| block.nodes.iter().copied());
        let (state, of_nodes) = (&subject.node.state().devices, &subject.node.state().memory);
        let usable = subject.topology.cpus.iter();
        let usable = usable.filter(|(cpu, _)| !subject.reserved.contains(**cpu));
        let by_cpus = Need::each(cpus.len(), usable.map(|(_, cpu)| [cpu.node].into()));
        let by_devices = given.devices.iter().filter_map(|(resource, chosen)| {
            let devices = state.resources.get(resource)?.values();
            let placed = devices.filter(|device| device.healthy && !device.nodes.is_empty());
            Some(Need::each(chosen.ids.len(), placed.map(|device| device.nodes.clone())))
        });
        let by_memory = memory_needs(&given.memory, of_nodes);
        let needs: Vec<Need> = by_devices.chain([by_cpus]).chain(by_memory).collect();
        Self::judge(subject.nodes(cpus), memory.collect(), state, given, &needs)
    }

    /// `needs`: what else could hold the CPUs, the memory and the devices if all were free.
    fn judge(
        cpus: NodeSet,
        memory: NodeSet,
        state: &DeviceState,
        given: &ContainerAllocation,
        needs: &[Need],
    ) -> Option<Self> {
        let of = |(resource, chosen): (&String, &Chosen)| DeviceNodes::of(state, resource, chosen, &cpus);
        let devices: Vec<DeviceNodes> = given.devices.iter().filter_map(of).collect();
        if devices.is_empty() {
            return None;
        }
        let has = |place: Place| devices.iter().any(|one| one.place == place);
        let verdict = match cpus.len() {
            0 => NodesVerdict::NoCpus,
            _ if has(Place::Away) || !memory.is_subset(&cpus) => NodesVerdict::Apart,
            _ if has(Place::Either) => NodesVerdict::Uncertain,
            1 => NodesVerdict::OneNode,
            nodes if fewer_suffice(needs, nodes) => NodesVerdict::Spread,
            _ => NodesVerdict::SameNodes,
        };
        Some(Self {
            cpus,
            memory,
            devices,
            verdict,
        })
    }

    /// `CPUs on NUMA node 0, memory on 0, nvidia.com/gpu on 1`
    pub fn words(&self) -> String {
        let noun = if self.cpus.len() == 1 {
            "NUMA node"
        } else {
            "NUMA nodes"
        };
        let cpus = if self.cpus.is_empty() {
            "no exclusive CPUs".to_owned()
        } else {
            format!("CPUs on {noun} {}", self.cpus)
        };
        let memory = (!self.memory.is_empty()).then(|| format!("memory on {}", self.memory));
        let devices = self.devices.iter().map(DeviceNodes::words);
        let words: Vec<String> = [cpus].into_iter().chain(memory).chain(devices).collect();
        words.join(", ")
    }

    /// The verdict with its reasons, as `plan` prints it.
    pub fn sentence(&self) -> String {
        let verdict = match self.verdict {
            NodesVerdict::OneNode => "together on one NUMA node",
            NodesVerdict::SameNodes => "together on the NUMA nodes of its CPUs",
            NodesVerdict::Spread => "on more NUMA nodes than necessary",
            NodesVerdict::Uncertain => "perhaps not together",
            NodesVerdict::Apart | NodesVerdict::NoCpus => "not together",
        };
        format!("{verdict}: {}", self.words())
    }
}

/// So many CPUs, devices of one resource, or bytes of one kind of memory, and what the node has of them: how much on which NUMA nodes. What is on
/// several can be had on each.
struct Need {
    amount: u64,
    offers: Vec<(NodeSet, u64)>,
}

impl Need {
    /// So many of these, each with its NUMA nodes.
    fn each(count: usize, nodes: impl Iterator<Item = NodeSet>) -> Self {
        Self {
            amount: count as u64,
            offers: nodes.map(|nodes| (nodes, 1)).collect(),
        }
    }

    /// What is offered by those whose NUMA nodes fit.
    fn offered(&self, fits: impl Fn(&NodeSet) -> bool) -> u64 {
        let fitting = self.offers.iter().filter(|(nodes, _)| fits(nodes));
        fitting.fold(0, |sum, (_, amount)| sum.saturating_add(*amount))
    }

    fn has_enough_on(&self, nodes: &NodeSet) -> bool {
        self.offered(|one| !one.is_disjoint(nodes)) >= self.amount
    }

    /// Whether all NUMA nodes together have enough.
    fn has_enough(&self) -> bool {
        self.offered(|_| true) >= self.amount
    }

    /// On how many NUMA nodes it is at least.
    fn fewest(&self) -> usize {
        let mut sizes: BTreeMap<u32, u64> = BTreeMap::new();
        for (nodes, amount) in &self.offers {
            for node in nodes {
                let size = sizes.entry(*node).or_default();
                *size = size.saturating_add(*amount);
            }
        }
        fewest(sizes.into_values().collect(), self.amount)
    }
}

/// How many NUMA nodes of these sizes an amount needs at least.
pub(crate) fn fewest(mut sizes: Vec<u64>, amount: u64) -> usize {
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let sums = sizes.iter().scan(0u64, |sum, size| {
        *sum = sum.saturating_add(*size);
        Some(*sum)
    });
    sums.take_while(|sum| *sum < amount).count() + 1
}

/// What a container has of each kind of memory, and what the Memory Manager may give of it on each NUMA node.
fn memory_needs(given: &[MemoryBlock], state: &MemoryState) -> Vec<Need> {
    let mut amounts: BTreeMap<&str, u64> = BTreeMap::new();
    for block in given {
        let amount = amounts.entry(&block.kind).or_default();
        *amount = amount.saturating_add(block.size);
    }
    let need = |(kind, amount): (&str, u64)| Need {
        amount,
        offers: state
            .nodes
            .iter()
            .filter_map(|(id, node)| Some(([*id].into(), node.tables.get(kind)?.allocatable)))
            .collect(),
    };
    amounts.into_iter().map(need).collect()
}

/// Whether fewer NUMA nodes than this hold all these needs together. Needs that all NUMA nodes together do not hold are not counted.
fn fewer_suffice(needs: &[Need], count: usize) -> bool {
    let needs: Vec<&Need> = needs.iter().filter(|need| need.has_enough()).collect();
    let least = needs.iter().map(|need| need.fewest()).max().unwrap_or(0);
    let all: NodeSet = needs
        .iter()
        .flat_map(|need| need.offers.iter().flat_map(|(nodes, _)| nodes).copied())
        .collect();
    let all: Vec<u32> = all.into_iter().collect();
    if count <= least || all.len() > MAX_COMBINED_NODES {
        // With more NUMA nodes each need is only compared by itself: two that can only be met on different nodes are not noticed.
        return count > least;
    }
    let sets = 1u32..1 << all.len();
    let mut fewer = sets.filter(|set| (set.count_ones() as usize) < count);
    fewer.any(|set| {
        let nodes = all.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0);
        let nodes: NodeSet = nodes.map(|(_, node)| *node).collect();
        needs.iter().all(|need| need.has_enough_on(&nodes))
    })
}

impl DeviceNodes {
    /// `None` where no device of the resource has a NUMA node, as far as is known.
    fn of(state: &DeviceState, resource: &str, chosen: &Chosen, cpus: &NodeSet) -> Option<Self> {
        let all = state.resources.get(resource)?;
        if all.values().all(|device| device.nodes.is_empty()) && !state.unplaced.contains(resource) {
            return None;
        }
        let empty = NodeSet::new();
        let candidates = if chosen.certain { &chosen.ids } else { &chosen.among };
        let nodes_of = |id: &String| all.get(id).map_or(&empty, |device| &device.nodes);
        let mut different: Vec<&NodeSet> = candidates.iter().map(nodes_of).collect();
        let near = different.iter().filter(|nodes| !nodes.is_disjoint(cpus));
        let (near, unknown) = (near.count(), different.iter().filter(|nodes| nodes.is_empty()).count());
        let place = match near {
            near if near == candidates.len() => Place::Near,
            // However it is chosen, one is away.
            near if near + unknown < chosen.ids.len() => Place::Away,
            _ => Place::Either,
        };
        different.dedup();
        Some(Self {
            resource: resource.to_owned(),
            nodes: different.iter().flat_map(|nodes| nodes.iter().copied()).collect(),
            certain: chosen.certain || different.len() == 1,
            has_unknown: unknown > 0,
            place,
        })
    }

    /// `nvidia.com/gpu on 0-1`
    fn words(&self) -> String {
        let Self { resource, nodes, .. } = self;
        match (nodes.is_empty(), self.has_unknown, self.certain) {
            (true, ..) => format!("{resource} on an unknown NUMA node"),
            (false, false, true) => format!("{resource} on {nodes}"),
            (false, false, false) => format!("{resource} on some of {nodes}"),
            (false, true, true) => format!("{resource} on {nodes} and an unknown NUMA node"),
            (false, true, false) => format!("{resource} on some of {nodes} or an unknown NUMA node"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kubelet_planner::devices::Device;
    use kubelet_planner::merge::Merged;
    use rstest::rstest;
    use stelia_kubelet::memory::{MemoryTable, NumaNodeState};

    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    fn set(text: &str) -> NodeSet {
        text.parse().unwrap()
    }

    /// `0` to `3` at NUMA node 0, `4` to `7` at 1, `8` at none.
    fn state() -> DeviceState {
        let device = |number: u32| {
            let nodes = match number {
                0..4 => [0].into(),
                4..8 => [1].into(),
                _ => [].into(),
            };
            (number.to_string(), Device { nodes, healthy: true })
        };
        DeviceState {
            resources: [(GPU.to_owned(), (0..9).map(device).collect())].into(),
            ..DeviceState::default()
        }
    }

    fn need(count: usize, nodes: &[u32]) -> Need {
        Need::each(count, nodes.iter().map(|node| [*node].into()))
    }

    fn locality(cpus: &str, memory: &str, ids: &[u32], among: &[u32]) -> Option<PlannedNodes> {
        let names = |ids: &[u32]| -> BTreeSet<String> { ids.iter().map(u32::to_string).collect() };
        let chosen = Chosen {
            ids: names(ids),
            certain: ids == among,
            among: names(among),
        };
        let hint = Merged {
            nodes: None,
            preferred: false,
            admitted: true,
        };
        let given = ContainerAllocation {
            container: "vm".to_owned(),
            hint,
            cpus: Cpus::Shared,
            memory: Vec::new(),
            devices: [(GPU.to_owned(), chosen)].into(),
        };
        let devices = state().resources.remove(GPU).unwrap().into_values();
        let needs = [
            need(1, &[0, 1]),
            Need::each(ids.len(), devices.map(|device| device.nodes)),
        ];
        PlannedNodes::judge(set(cpus), set(memory), &state(), &given, &needs)
    }

    #[rstest]
    #[case("0", "", &[1], &[1], NodesVerdict::OneNode, "together on one NUMA node: CPUs on NUMA node 0, nvidia.com/gpu on 0")]
    #[case("0", "0", &[1], &[0, 1, 2], NodesVerdict::OneNode, "together on one NUMA node: CPUs on NUMA node 0, memory on 0, nvidia.com/gpu on 0")]
    #[case("0-1", "1", &[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4], NodesVerdict::SameNodes, "together on the NUMA nodes of its CPUs: CPUs on NUMA nodes 0-1, memory on 1, nvidia.com/gpu on 0-1")]
    // Both would be on one NUMA node if others there were free.
    #[case("0-1", "1", &[0, 4], &[0, 4], NodesVerdict::Spread, "on more NUMA nodes than necessary: CPUs on NUMA nodes 0-1, memory on 1, nvidia.com/gpu on 0-1")]
    #[case("0-1", "", &[0], &[0], NodesVerdict::Spread, "on more NUMA nodes than necessary: CPUs on NUMA nodes 0-1, nvidia.com/gpu on 0")]
    #[case("0", "0", &[4], &[4, 5], NodesVerdict::Apart, "not together: CPUs on NUMA node 0, memory on 0, nvidia.com/gpu on 1")]
    #[case("0", "1", &[0], &[0], NodesVerdict::Apart, "not together: CPUs on NUMA node 0, memory on 1, nvidia.com/gpu on 0")]
    #[case("0", "", &[0], &[0, 4], NodesVerdict::Uncertain, "perhaps not together: CPUs on NUMA node 0, nvidia.com/gpu on some of 0-1")]
    // Whichever two of three it gets, one is away.
    #[case("0", "", &[0, 4], &[0, 4, 5], NodesVerdict::Apart, "not together: CPUs on NUMA node 0, nvidia.com/gpu on some of 0-1")]
    #[case("0", "0", &[0, 8], &[0, 8], NodesVerdict::Uncertain, "perhaps not together: CPUs on NUMA node 0, memory on 0, nvidia.com/gpu on 0 and an unknown NUMA node")]
    #[case("0", "", &[0], &[0, 8], NodesVerdict::Uncertain, "perhaps not together: CPUs on NUMA node 0, nvidia.com/gpu on some of 0 or an unknown NUMA node")]
    #[case("0", "", &[8], &[8], NodesVerdict::Uncertain, "perhaps not together: CPUs on NUMA node 0, nvidia.com/gpu on an unknown NUMA node")]
    // Wherever the unknown one is, the other is away.
    #[case("0", "", &[4, 8], &[4, 8], NodesVerdict::Apart, "not together: CPUs on NUMA node 0, nvidia.com/gpu on 1 and an unknown NUMA node")]
    #[case("", "", &[0], &[0], NodesVerdict::NoCpus, "not together: no exclusive CPUs, nvidia.com/gpu on 0")]
    fn a_container_is_together_where_none_of_it_is_away_from_its_cpus(
        #[case] cpus: &str,
        #[case] memory: &str,
        #[case] ids: &[u32],
        #[case] among: &[u32],
        #[case] verdict: NodesVerdict,
        #[case] sentence: &str,
    ) {
        let found = locality(cpus, memory, ids, among).unwrap();
        assert_eq!((found.verdict, found.sentence().as_str()), (verdict, sentence));
    }

    #[test]
    fn the_fewest_numa_nodes_are_those_with_the_most() {
        let counts = [0, 3, 4, 5, 6].map(|count| need(count, &[0, 1, 1, 2, 2, 2]).fewest());
        assert_eq!(counts, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn needs_that_are_on_different_nodes_need_both() {
        let (cpus, gpu) = (|| need(2, &[0, 0, 1, 1]), || need(1, &[0]));
        assert!(fewer_suffice(&[cpus(), gpu()], 2));
        // A network card that is only there forces the CPUs onto both; one that is on both does not.
        assert!(!fewer_suffice(&[cpus(), gpu(), need(1, &[1])], 2));
        assert!(fewer_suffice(&[cpus(), gpu(), need(1, &[0, 1])], 2));
        // What nothing could hold says nothing.
        assert!(fewer_suffice(&[cpus(), need(2, &[1])], 2));
        assert!(!fewer_suffice(&[need(3, &[0, 0, 1, 1])], 2));
        let many: Vec<u32> = (0..9).collect();
        assert!(fewer_suffice(&[need(1, &many), gpu(), need(1, &[1])], 2), "each alone");
    }

    #[test]
    fn memory_that_one_node_does_not_have_needs_several() {
        const GIB: u64 = 1 << 30;
        let table = |allocatable| MemoryTable {
            total: allocatable,
            system_reserved: 0,
            allocatable,
            reserved: 0,
            free: 0,
        };
        let node = |id: u32| {
            let tables = [("memory", 512 * GIB), ("hugepages-1Gi", 8 * GIB)];
            let state = NumaNodeState {
                assignments: 1,
                cells: vec![id],
                tables: tables.map(|(kind, bytes)| (kind.to_owned(), table(bytes))).into(),
            };
            (id, state)
        };
        let state = MemoryState {
            nodes: [node(0), node(1)].into(),
            ..MemoryState::default()
        };
        let block = |kind: &str, size| MemoryBlock {
            nodes: vec![0, 1],
            kind: kind.to_owned(),
            size,
        };
        for (memory, huge, expected) in [
            (600 * GIB, 0, false),
            (512 * GIB, 8 * GIB, true),
            (GIB, 9 * GIB, false),
            // What nothing could hold says nothing.
            (2000 * GIB, GIB, true),
        ] {
            let given = [
                block("memory", memory / 2),
                block("memory", memory / 2),
                block("hugepages-1Gi", huge),
            ];
            let mut needs = memory_needs(&given, &state);
            needs.extend([need(2, &[0, 0, 1, 1]), need(1, &[0])]);
            assert_eq!(fewer_suffice(&needs, 2), expected, "{memory} and {huge} bytes");
        }
    }

    #[test]
    fn a_resource_without_numa_nodes_says_nothing() {
        let mut state = state();
        state.resources.get_mut(GPU).unwrap().retain(|id, _| id == "8");
        let chosen = Chosen {
            ids: ["8".to_owned()].into(),
            certain: true,
            among: ["8".to_owned()].into(),
        };
        assert_eq!(DeviceNodes::of(&state, GPU, &chosen, &set("0")), None);
    }
}
