//! The guest's topology on the host's.
//!
//! Guest sockets and NUMA nodes go to host NUMA nodes, the largest first, each to the one it fits best; within it guest
//! cores with several threads go to host cores that have as many siblings free. What finds no such place takes what is
//! left in ascending order, and the note says so. For guest cores of one thread siblings need not be kept together:
//! such guests get ascending CPUs of their node.

use std::collections::BTreeMap;

use stelia_api::ThreadRole;
use stelia_cpus::CpuSet;
use stelia_model::record::Vcpu;

use super::Placement;
use super::host_cores::Core;

/// `(node-id, socket-id)` of a guest; absent properties count as 0.
type GuestPlace = (i64, i64);
/// `die-id`, `cluster-id`, `core-id`.
type GuestCore = (i64, i64, i64);

/// The guest's cores by place; each is its vCPU indexes by thread.
fn guest_places(vcpus: &[&Vcpu]) -> BTreeMap<GuestPlace, Vec<Vec<u32>>> {
    let mut places: BTreeMap<GuestPlace, BTreeMap<GuestCore, Vec<(i64, u32)>>> = BTreeMap::new();
    for vcpu in vcpus {
        let prop = |name: &str| vcpu.props.get(name).copied();
        let id = |name: &str| prop(name).unwrap_or(0);
        // Without a core id nothing is known of siblings: each vCPU is a core.
        let core = prop("core-id").unwrap_or(i64::from(vcpu.index));
        let cores = places.entry((id("node-id"), id("socket-id"))).or_default();
        let threads = cores.entry((id("die-id"), id("cluster-id"), core)).or_default();
        threads.push((id("thread-id"), vcpu.index));
    }
    let in_order = |mut threads: Vec<(i64, u32)>| {
        threads.sort_unstable();
        threads.into_iter().map(|(_, index)| index).collect()
    };
    places
        .into_iter()
        .map(|(place, cores)| (place, cores.into_values().map(in_order).collect()))
        .collect()
}

/// What is still free of the host.
struct Free {
    cores: Vec<Core>,
}

impl Free {
    fn count(&self, place: (u32, u32)) -> usize {
        let cores = self.cores.iter().filter(|core| core.place == place);
        cores.map(|core| core.cpus.len()).sum()
    }

    /// The place with the fewest free CPUs that has room for `wanted`; where there is none, the one with most room.
    fn best_place(&self, wanted: usize) -> Option<(u32, u32)> {
        let mut places: Vec<(u32, u32)> = self.cores.iter().map(|core| core.place).collect();
        places.dedup();
        let fitting = places.iter().filter(|place| self.count(**place) >= wanted);
        let fitting = fitting.min_by_key(|place| (self.count(**place), **place));
        let roomiest = || {
            places
                .iter()
                .max_by_key(|place| (self.count(**place), std::cmp::Reverse(**place)))
        };
        fitting.or_else(roomiest).copied()
    }

    /// `wanted` siblings of one core of a place, of the core that leaves least over.
    fn siblings(&mut self, place: (u32, u32), wanted: usize) -> Option<Vec<u32>> {
        let cores = self.cores.iter_mut().filter(|core| core.place == place);
        let core = cores
            .filter(|core| core.cpus.len() >= wanted)
            .min_by_key(|core| (core.cpus.len(), core.cpus.first().copied()))?;
        let taken = core.cpus.drain(..wanted).collect();
        self.forget_full();
        Some(taken)
    }

    /// The lowest CPU that is free, in a place or anywhere.
    fn lowest(&mut self, place: Option<(u32, u32)>) -> Option<u32> {
        let cores = self.cores.iter_mut();
        let core = cores
            .filter(|core| place.is_none_or(|place| core.place == place))
            .min_by_key(|core| core.cpus.first().copied())?;
        let taken = core.cpus.remove(0);
        self.forget_full();
        Some(taken)
    }

    fn forget_full(&mut self) {
        self.cores.retain(|core| !core.cpus.is_empty());
    }
}

pub(super) fn place(vcpus: &[&Vcpu], cores: &[Core], offline: &CpuSet) -> Placement {
    let mut free = Free { cores: cores.to_vec() };
    let mut pins: BTreeMap<u32, u32> = BTreeMap::new();
    let (mut split, mut homeless) = (Vec::new(), Vec::new());
    let mut places: Vec<(GuestPlace, Vec<Vec<u32>>)> = guest_places(vcpus).into_iter().collect();
    places.sort_by_key(|(place, cores)| (std::cmp::Reverse(cores.iter().map(Vec::len).sum::<usize>()), *place));
    for (_, cores) in &places {
        let wanted = cores.iter().map(Vec::len).sum();
        let Some(host) = free.best_place(wanted) else {
            homeless.extend(cores.iter().flatten());
            continue;
        };
        // Guest cores with several threads first: single threads could split a host core.
        for core in cores.iter().filter(|core| core.len() > 1) {
            match free.siblings(host, core.len()) {
                Some(cpus) => pins.extend(core.iter().copied().zip(cpus)),
                None => split.push(core),
            }
        }
        for index in cores.iter().filter(|core| core.len() == 1).flatten() {
            match free.lowest(Some(host)) {
                Some(cpu) => drop(pins.insert(*index, cpu)),
                None => homeless.push(index),
            }
        }
    }
    let mut notes = Vec::new();
    // A guest core for which its place has no siblings left may find some in another place; only then is it split.
    let mut torn = 0;
    for core in split {
        let elsewhere = free
            .best_place(core.len())
            .and_then(|place| free.siblings(place, core.len()));
        match elsewhere {
            Some(cpus) => pins.extend(core.iter().copied().zip(cpus)),
            None => {
                torn += 1;
                homeless.extend(core);
            }
        }
    }
    if torn > 0 {
        notes.push(format!("{torn} guest cores are split over several host cores"));
    }
    homeless.sort_unstable();
    let mut offline = offline.iter();
    for index in &homeless {
        if let Some(cpu) = free.lowest(None).or_else(|| offline.next()) {
            pins.insert(**index, cpu);
        }
    }
    if let Some(note) = spanning(&places, &pins, cores) {
        notes.push(note);
    }
    Placement {
        pins: vcpus
            .iter()
            .map(|vcpu| (ThreadRole::Vcpu(vcpu.index), pins.get(&vcpu.index).copied()))
            .collect(),
        note: (!notes.is_empty()).then(|| notes.join("; ")),
    }
}

/// Guest sockets or NUMA nodes that lie on more than one NUMA node of the host.
fn spanning(places: &[(GuestPlace, Vec<Vec<u32>>)], pins: &BTreeMap<u32, u32>, cores: &[Core]) -> Option<String> {
    let node = |cpu: u32| {
        let core = cores.iter().find(|core| core.cpus.contains(&cpu))?;
        Some(core.place.0)
    };
    let spans = |indexes: &[Vec<u32>]| {
        let cpus = indexes.iter().flatten().filter_map(|index| pins.get(index));
        let mut nodes: Vec<u32> = cpus.filter_map(|cpu| node(*cpu)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len() > 1
    };
    let count = places.iter().filter(|(_, cores)| spans(cores)).count();
    (count > 0).then(|| format!("{count} guest sockets or NUMA nodes lie on several NUMA nodes of the host"))
}
