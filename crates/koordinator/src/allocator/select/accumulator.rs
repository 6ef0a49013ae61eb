//! The stages in which CPUs are taken.
//!
//! They narrow from one NUMA node over one socket to the whole host. The first candidate that can hold the whole
//! request wins; candidates are in the strategy's order, then by id. Every stage that regards exclusivity runs once
//! with it and once without, so it is best effort here; [`super::select_cpus`] reports what became of it.

use std::cmp::Reverse;

use stelia_cpus::CpuSet;

use super::host::{CpuPosition, HostTables};
use super::take::TakeCriteria;
use super::usage::Usage;
use crate::allocator::{CpuBindPolicy, CpuExclusivePolicy};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Node,
    Socket,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    WholeCores,
    OnePerCore,
    Any,
}

/// Takes CPUs stage by stage. CPUs are positions in the host's tables.
pub(super) struct Accumulator<'a> {
    host: &'a HostTables,
    threads: usize,
    wanted: TakeCriteria,
    free: Vec<bool>,
    exclusive_cores: Vec<bool>,
    exclusive_nodes: Vec<bool>,
    taken: Vec<usize>,
    missing: usize,
}

impl<'a> Accumulator<'a> {
    pub(super) fn new(
        host: &'a HostTables,
        threads: usize,
        usage: &Usage,
        available: &CpuSet,
        wanted: TakeCriteria,
    ) -> Self {
        let mut accumulator = Self {
            host,
            threads,
            wanted,
            free: host.places.iter().map(|place| available.contains(place.cpu)).collect(),
            exclusive_cores: vec![false; host.core_sizes.len()],
            exclusive_nodes: vec![false; host.nodes.len()],
            taken: Vec::new(),
            missing: wanted.count,
        };
        for held in &usage.in_use {
            for position in held.cpus.iter().filter_map(|cpu| host.position(cpu)) {
                let place = host.places[position];
                match wanted.exclusive {
                    CpuExclusivePolicy::PcpuLevel if held.exclusive == wanted.exclusive => {
                        accumulator.exclusive_cores[place.core] = true;
                    }
                    CpuExclusivePolicy::NumaNodeLevel if held.exclusive == wanted.exclusive => {
                        accumulator.exclusive_nodes[place.node] = true;
                    }
                    _ => {}
                }
            }
        }
        accumulator
    }

    /// The CPUs taken: as many as wanted, if so many are available.
    pub(super) fn run(mut self) -> CpuSet {
        let full = self.wanted.bind == CpuBindPolicy::FullPcpus;
        if full || self.threads == 1 {
            self.whole_cores();
        }
        if !full {
            self.within_one(Level::Node, &[(Kind::OnePerCore, true), (Kind::Any, false)]);
            self.within_one(Level::Socket, &[(Kind::OnePerCore, true), (Kind::Any, false)]);
        }
        for regard in [true, false] {
            if self.missing > 0 {
                let cpus = self.spread(self.anywhere(regard));
                self.take_first(&cpus);
            }
        }
        let taken = self.taken.iter().map(|position| self.place(*position).cpu);
        taken.collect()
    }

    fn whole_cores(&mut self) {
        self.within_one(Level::Node, &[(Kind::WholeCores, true), (Kind::WholeCores, false)]);
        self.within_one(Level::Socket, &[(Kind::WholeCores, false)]);
        if self.missing == 0 {
            return;
        }
        // Sockets used up whole, those with most whole cores first; then core by core where fewest are left.
        let mut sockets = self.candidates(Level::Socket, Kind::WholeCores, false);
        sockets.sort_by_key(|cpus| Reverse(cpus.len()));
        let mut left = Vec::new();
        for cpus in sockets {
            if self.missing >= cpus.len() {
                self.take_first(&cpus);
            } else {
                left.push(cpus);
            }
        }
        left.sort_by_key(Vec::len);
        for cpus in left {
            let cores = self.missing / self.threads * self.threads;
            self.take_first(&cpus[..cores.min(cpus.len())]);
        }
    }

    /// Take the whole request from the first candidate that has enough; `ways` are tried in order.
    fn within_one(&mut self, level: Level, ways: &[(Kind, bool)]) {
        if self.missing == 0 || self.missing > self.host.share(self.parts(level)) {
            return;
        }
        for (kind, regard) in ways {
            let candidates = self.candidates(level, *kind, *regard);
            if let Some(cpus) = candidates.into_iter().find(|cpus| cpus.len() >= self.missing) {
                let cpus = if *kind == Kind::WholeCores {
                    cpus
                } else {
                    self.spread(cpus)
                };
                return self.take_first(&cpus);
            }
        }
    }

    fn take_first(&mut self, cpus: &[usize]) {
        let count = cpus.len().min(self.missing);
        for position in &cpus[..count] {
            self.free[*position] = false;
            // From here on its own nodes count, so that what is left over goes to another node.
            if self.wanted.exclusive == CpuExclusivePolicy::NumaNodeLevel {
                self.exclusive_nodes[self.host.places[*position].node] = true;
            }
        }
        self.taken.extend(&cpus[..count]);
        self.missing -= count;
    }

    fn place(&self, position: usize) -> &'a CpuPosition {
        &self.host.places[position]
    }

    /// The free CPUs that `keep` keeps, by number.
    fn usable(&self, keep: impl Fn(&CpuPosition) -> bool) -> Vec<usize> {
        let free = (0..self.free.len()).filter(|position| self.free[*position] && keep(self.place(*position)));
        free.collect()
    }

    fn rank(&self, free: usize) -> isize {
        self.wanted.strategy.rank(free)
    }

    /// How many NUMA nodes or sockets there are.
    fn parts(&self, level: Level) -> usize {
        match level {
            Level::Node => self.host.nodes.len(),
            Level::Socket => self.host.sockets,
        }
    }

    /// What each NUMA node or socket has, in the strategy's order.
    fn candidates(&self, level: Level, kind: Kind, regard: bool) -> Vec<Vec<usize>> {
        let nodes = regard && level == Level::Node;
        let cores = regard && kind != Kind::WholeCores;
        let mut usable = self
            .usable(|place| !(nodes && self.exclusive_nodes[place.node] || cores && self.exclusive_cores[place.core]));
        let (in_node, in_socket, in_core) = self.counts(&usable);
        match kind {
            Kind::WholeCores => {
                usable.retain(|position| in_core[self.place(*position).core] == self.threads);
                usable.sort_by_key(|position| self.place(*position).core);
            }
            Kind::OnePerCore => {
                let mut seen = vec![false; in_core.len()];
                usable.retain(|position| !std::mem::replace(&mut seen[self.place(*position).core], true));
            }
            Kind::Any => {}
        }
        let mut candidates = vec![Vec::new(); self.parts(level)];
        for position in usable {
            let place = self.place(position);
            let part = match level {
                Level::Node => place.node,
                Level::Socket => place.socket,
            };
            candidates[part].push(position);
        }
        let mut candidates: Vec<(usize, Vec<usize>)> = candidates.into_iter().enumerate().collect();
        candidates.sort_by_key(|(part, cpus)| match level {
            Level::Node if kind == Kind::WholeCores => {
                (self.rank(cpus.len()), self.rank(in_socket[self.host.socket_of[*part]]))
            }
            Level::Node => (
                self.rank(in_node[*part]),
                self.rank(in_socket[self.host.socket_of[*part]]),
            ),
            Level::Socket => (self.rank(cpus.len()), 0),
        });
        candidates.into_iter().map(|(_, cpus)| cpus).collect()
    }

    /// How many of these CPUs are in each NUMA node, socket and core.
    fn counts(&self, cpus: &[usize]) -> (Vec<usize>, Vec<usize>, Vec<usize>) {
        let mut nodes = vec![0; self.host.nodes.len()];
        let mut sockets = vec![0; self.host.sockets];
        let mut cores = vec![0; self.host.core_sizes.len()];
        for place in cpus.iter().map(|position| self.place(*position)) {
            nodes[place.node] += 1;
            sockets[place.socket] += 1;
            cores[place.core] += 1;
        }
        (nodes, sockets, cores)
    }

    /// Every CPU, by core: sockets that gave most come first, then the strategy's order, then the fullest cores.
    fn anywhere(&self, regard: bool) -> Vec<usize> {
        let mut cpus =
            self.usable(|place| !(regard && (self.exclusive_nodes[place.node] || self.exclusive_cores[place.core])));
        let (in_node, in_socket, in_core) = self.counts(&cpus);
        let (_, gave, _) = self.counts(&self.taken);
        cpus.sort_by_key(|position| {
            let CpuPosition { core, node, socket, .. } = *self.place(*position);
            let gave = Reverse(gave[socket]);
            let free = (self.rank(in_socket[socket]), self.rank(in_node[node]), in_core[core]);
            (gave, free, socket, core)
        });
        cpus
    }

    /// The first CPU listed of every core, then the second, and so on.
    fn spread(&self, mut cpus: Vec<usize>) -> Vec<usize> {
        if cpus.len() <= self.threads {
            return cpus;
        }
        let mut met = vec![0; self.host.core_sizes.len()];
        let mut turn = vec![0; self.free.len()];
        for position in &cpus {
            let core = self.place(*position).core;
            turn[*position] = met[core];
            met[core] += 1;
        }
        cpus.sort_by_key(|position| turn[*position]);
        cpus
    }
}
