//! The node as kubelet's CPU manager sees it.

use std::collections::BTreeMap;

use stelia_cpus::{Cpu, CpuSet, Topology};

use crate::merge::NodeMask;

/// What CPUs are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Core,
    Cache,
    Node,
    Socket,
}

impl Level {
    pub(super) const ALL: [Self; 4] = [Self::Core, Self::Cache, Self::Node, Self::Socket];
}

/// The groups of one level; positions ascend as their ids do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Groups {
    ids: Vec<u32>,
    /// The positions of each group's CPUs, ascending.
    members: Vec<Vec<usize>>,
    /// The group of each CPU.
    of: Vec<usize>,
}

impl Groups {
    fn new(id_of: &[u32]) -> Self {
        let mut ids = id_of.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let mut groups = Self {
            members: vec![Vec::new(); ids.len()],
            of: Vec::with_capacity(id_of.len()),
            ids,
        };
        for (cpu, id) in id_of.iter().enumerate() {
            let group = groups.ids.partition_point(|other| other < id);
            groups.of.push(group);
            groups.members[group].push(cpu);
        }
        groups
    }
}

/// The node's CPUs with their cores, L3 caches, NUMA nodes and sockets.
///
/// Cores are as in kubelet's library cadvisor: CPUs of the same NUMA node, socket and `core_id`. A core's id is the lowest number
/// of its CPUs; a CPU of unknown L3 cache counts to that of its socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuGroups {
    /// By position, ascending.
    numbers: Vec<u32>,
    levels: [Groups; 4],
}

impl CpuGroups {
    /// The tables of the online CPUs; `caches` are the ids of their L3 caches (`cache/index3/id`), as far as they are known.
    pub fn new(topology: &Topology, caches: &BTreeMap<u32, u32>) -> Self {
        let mut lowest = BTreeMap::new();
        let core = |(number, cpu): (&u32, &Cpu)| *lowest.entry((cpu.node, cpu.package, cpu.core)).or_insert(*number);
        let cores: Vec<u32> = topology.cpus.iter().map(core).collect();
        let sockets: Vec<u32> = topology.cpus.values().map(|cpu| cpu.package).collect();
        let nodes: Vec<u32> = topology.cpus.values().map(|cpu| cpu.node).collect();
        let cache = |(number, cpu): (&u32, &Cpu)| caches.get(number).copied().unwrap_or(cpu.package);
        let caches: Vec<u32> = topology.cpus.iter().map(cache).collect();
        Self {
            numbers: topology.cpus.keys().copied().collect(),
            levels: [&cores, &caches, &nodes, &sockets].map(|ids| Groups::new(ids)),
        }
    }

    /// All CPUs.
    pub fn cpus(&self) -> CpuSet {
        self.numbers.iter().copied().collect()
    }

    /// CPUs per core: the average, rounded down, as kubelet takes it. 1 where only some cores have two threads.
    pub fn cpus_per_core(&self) -> usize {
        self.average(Level::Core)
    }

    /// The ids of the NUMA nodes, ascending.
    pub fn nodes(&self) -> &[u32] {
        &self.groups(Level::Node).ids
    }

    /// How many sockets there are.
    pub fn sockets(&self) -> usize {
        self.count(Level::Socket)
    }

    /// The id of a CPU's core: the lowest number of its CPUs.
    pub fn core(&self, cpu: u32) -> Option<u32> {
        let position = self.position(cpu)?;
        Some(self.groups(Level::Core).ids[self.group(Level::Core, position)])
    }

    /// The CPUs of the cores of `cpus`.
    pub fn siblings(&self, cpus: &CpuSet) -> CpuSet {
        self.spanned(Level::Core, cpus)
    }

    /// The NUMA nodes of `cpus`.
    pub(crate) fn nodes_of(&self, cpus: &CpuSet) -> CpuSet {
        self.touched(Level::Node, cpus).collect()
    }

    /// The ids of the groups that `cpus` touch.
    fn touched(&self, level: Level, cpus: &CpuSet) -> impl Iterator<Item = u32> {
        let positions = self.positions(cpus).into_iter();
        let groups = distinct(positions.map(|cpu| self.group(level, cpu)));
        groups.into_iter().map(move |group| self.groups(level).ids[group])
    }

    /// All CPUs of the groups that `cpus` touch.
    pub(super) fn spanned(&self, level: Level, cpus: &CpuSet) -> CpuSet {
        let positions = self.positions(cpus).into_iter();
        let touched = distinct(positions.map(|cpu| self.group(level, cpu))).into_iter();
        let cpus = touched.flat_map(|group| self.members(level, group));
        cpus.map(|cpu| self.numbers[*cpu]).collect()
    }

    /// The CPUs of these NUMA nodes.
    pub(super) fn in_nodes(&self, mask: NodeMask) -> CpuSet {
        let of = |group: usize| self.members(Level::Node, group).iter().map(|cpu| self.numbers[*cpu]);
        let nodes = self.nodes().iter().enumerate().filter(|(_, id)| mask.contains(**id));
        nodes.flat_map(|(group, _)| of(group)).collect()
    }

    /// The NUMA node of a CPU; 0 for a CPU that does not exist, as in kubelet's table.
    pub(super) fn node_of(&self, cpu: u32) -> u32 {
        let group = self.position(cpu).map(|position| self.group(Level::Node, position));
        group.map_or(0, |group| self.nodes()[group])
    }

    /// The sockets of a NUMA node, by position.
    pub(super) fn sockets_of_node(&self, node: usize) -> Vec<usize> {
        let cpus = self.members(Level::Node, node).iter();
        distinct(cpus.map(|cpu| self.group(Level::Socket, *cpu)))
    }

    /// The average size of a group, rounded down.
    pub(super) fn average(&self, level: Level) -> usize {
        self.numbers.len().checked_div(self.count(level)).unwrap_or(0)
    }

    /// How many groups there are.
    pub(super) fn count(&self, level: Level) -> usize {
        self.groups(level).ids.len()
    }

    /// The CPUs of a group, by position.
    pub(super) fn members(&self, level: Level, group: usize) -> &[usize] {
        &self.groups(level).members[group]
    }

    /// The group of a CPU.
    pub(super) fn group(&self, level: Level, cpu: usize) -> usize {
        self.groups(level).of[cpu]
    }

    /// How many CPUs there are.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The positions of those of `cpus` that exist, ascending.
    pub(super) fn positions(&self, cpus: &CpuSet) -> Vec<usize> {
        cpus.iter().filter_map(|cpu| self.position(cpu)).collect()
    }

    /// The numbers of the CPUs at these positions.
    pub(super) fn set(&self, positions: &[usize]) -> CpuSet {
        positions.iter().map(|position| self.numbers[*position]).collect()
    }

    fn position(&self, cpu: u32) -> Option<usize> {
        self.numbers.binary_search(&cpu).ok()
    }

    fn groups(&self, level: Level) -> &Groups {
        &self.levels[level as usize]
    }
}

/// Positions in ascending order, each once.
pub(super) fn distinct(positions: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut positions: Vec<usize> = positions.collect();
    positions.sort_unstable();
    positions.dedup();
    positions
}
