//! The host's topology as tables, for orders and counts over all CPUs.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::{CpuSet, NodeSet, Topology};

/// A CPU's place, by position in the tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuPosition {
    /// The CPU's number.
    pub(super) cpu: u32,
    pub(super) core: usize,
    pub(super) node: usize,
    pub(super) socket: usize,
}

/// The online CPUs; positions of CPUs, cores, NUMA nodes and sockets ascend as their ids do.
#[derive(Debug, Clone)]
pub struct HostTables {
    pub(super) places: Vec<CpuPosition>,
    /// Ids of NUMA nodes.
    pub(super) nodes: Vec<u32>,
    /// The socket of each NUMA node: that of its first CPU.
    pub(super) socket_of: Vec<usize>,
    pub(super) sockets: usize,
    /// Online CPUs of each core.
    pub(super) core_sizes: Vec<usize>,
    /// The position of a CPU by its number; [`NO_POSITION`] for one that is not online.
    position_of: Vec<u32>,
    online: CpuSet,
    /// The CPUs of each NUMA node.
    of_node: Vec<CpuSet>,
    /// The id of the socket of each NUMA node's first CPU.
    socket_ids: Vec<u32>,
}

const NO_POSITION: u32 = u32::MAX;

impl HostTables {
    /// The tables of a topology.
    pub fn new(topology: &Topology) -> Self {
        let all = || topology.cpus.values();
        let cores: BTreeSet<(u32, u32)> = all().map(|cpu| (cpu.package, cpu.core)).collect();
        let nodes: BTreeSet<u32> = all().map(|cpu| cpu.node).collect();
        let sockets: BTreeSet<u32> = all().map(|cpu| cpu.package).collect();
        let (cores, nodes, sockets) = (positions(cores), positions(nodes), positions(sockets));
        let mut socket_of = vec![None; nodes.len()];
        let mut core_sizes = vec![0; cores.len()];
        let mut of_node = vec![CpuSet::new(); nodes.len()];
        let place = |(number, cpu): (&u32, &stelia_cpus::Cpu)| {
            let place = CpuPosition {
                cpu: *number,
                core: cores[&(cpu.package, cpu.core)],
                node: nodes[&cpu.node],
                socket: sockets[&cpu.package],
            };
            socket_of[place.node].get_or_insert(place.socket);
            core_sizes[place.core] += 1;
            of_node[place.node].insert(place.cpu);
            place
        };
        let places: Vec<CpuPosition> = topology.cpus.iter().map(place).collect();
        let mut position_of = vec![NO_POSITION; places.last().map_or(0, |last| last.cpu as usize + 1)];
        for (position, place) in (0..).zip(&places) {
            position_of[place.cpu as usize] = position;
        }
        let socket_ids: Vec<u32> = sockets.keys().copied().collect();
        let of_socket = |place: &Option<usize>| place.and_then(|at| socket_ids.get(at)).copied().unwrap_or_default();
        Self {
            socket_ids: socket_of.iter().map(of_socket).collect(),
            online: topology.online(),
            position_of,
            of_node,
            places,
            socket_of: socket_of.into_iter().flatten().collect(),
            sockets: sockets.len(),
            nodes: nodes.into_keys().collect(),
            core_sizes,
        }
    }

    /// The online CPUs.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// Each NUMA node's id, the id of its first CPU's socket, and its online CPUs.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, u32, &CpuSet)> {
        let nodes = self.nodes.iter().zip(&self.socket_ids).zip(&self.of_node);
        nodes.map(|((id, socket), cpus)| (*id, *socket, cpus))
    }

    /// Position of a CPU; none for one that is not online.
    pub(super) fn position(&self, cpu: u32) -> Option<usize> {
        let position = self.position_of.get(cpu as usize).filter(|at| **at != NO_POSITION)?;
        Some(*position as usize)
    }

    /// Places of the online CPUs of a set.
    pub(super) fn places_of<'a>(&'a self, cpus: &'a CpuSet) -> impl Iterator<Item = &'a CpuPosition> {
        cpus.iter().filter_map(|cpu| Some(&self.places[self.position(cpu)?]))
    }

    /// How many CPUs each core has: the most any has, so that an offline sibling makes no other core less whole.
    pub fn threads(&self) -> usize {
        self.core_sizes.iter().copied().max().unwrap_or(1)
    }

    /// CPUs by cores as Koordinator counts it: without remainder, so that one offline sibling makes it 1.
    pub(super) fn mean_threads(&self) -> usize {
        self.share(self.core_sizes.len())
    }

    /// The number of CPUs in each of this many equal parts, rounded down.
    pub(super) fn share(&self, parts: usize) -> usize {
        self.places.len() / parts.max(1)
    }

    /// The NUMA nodes of a set's CPUs, by id.
    pub fn nodes_of(&self, cpus: &CpuSet) -> NodeSet {
        let here = self.nodes.iter().zip(&self.of_node);
        let here = here.filter(|(_, all)| !all.is_disjoint(cpus));
        here.map(|(id, _)| *id).collect()
    }

    /// A set's CPUs by NUMA node; nodes without any are left out.
    pub fn by_node(&self, cpus: &CpuSet) -> BTreeMap<u32, CpuSet> {
        let parts = self.nodes.iter().zip(&self.of_node);
        let parts = parts.map(|(id, all)| (*id, all.intersection(cpus)));
        parts.filter(|(_, part)| !part.is_empty()).collect()
    }

    /// How many of a set's CPUs each NUMA node has; nodes without any are left out.
    pub fn counts(&self, cpus: &CpuSet) -> BTreeMap<u32, usize> {
        let parts = self.by_node(cpus).into_iter();
        parts.map(|(id, part)| (id, part.len())).collect()
    }

    /// The CPUs of a set that are of these NUMA nodes.
    pub fn within(&self, cpus: &CpuSet, nodes: &NodeSet) -> CpuSet {
        let parts = self
            .nodes
            .iter()
            .zip(&self.of_node)
            .filter(|(id, _)| nodes.contains(id));
        let mut all = CpuSet::new();
        for (_, part) in parts {
            all.union_with(part);
        }
        all.intersection(cpus)
    }

    /// The cores of a set's CPUs, by position.
    pub fn cores_of(&self, cpus: &CpuSet) -> BTreeSet<usize> {
        self.places_of(cpus).map(|place| place.core).collect()
    }

    /// The cores of which a set has every thread, none of them offline.
    pub fn whole_cores(&self, cpus: &CpuSet) -> CpuSet {
        let mut found = vec![0; self.core_sizes.len()];
        for place in self.places_of(cpus) {
            found[place.core] += 1;
        }
        let threads = self.threads();
        let whole = self.places_of(cpus).filter(|place| found[place.core] == threads);
        whole.map(|place| place.cpu).collect()
    }

    /// One CPU of every core of a set: the lowest, of those in `first` where there are some.
    pub fn one_per_core(&self, cpus: &CpuSet, first: &CpuSet) -> CpuSet {
        let mut seen = vec![false; self.core_sizes.len()];
        let (preferred, others) = (cpus.intersection(first), cpus.difference(first));
        let unseen = |place: &&CpuPosition| !std::mem::replace(&mut seen[place.core], true);
        let all = self.places_of(&preferred).chain(self.places_of(&others));
        all.filter(unseen).map(|place| place.cpu).collect()
    }
}

/// Each key with its rank.
fn positions<K: Ord>(keys: BTreeSet<K>) -> BTreeMap<K, usize> {
    keys.into_iter().enumerate().map(|(rank, key)| (key, rank)).collect()
}
