//! The packed algorithm: whole NUMA nodes and sockets, L3 caches, cores, then single CPUs; best fit at each level.

use super::accumulator::Accumulator;
use super::refusal::CpuRefusal;
use super::topology::{CpuGroups, Level, distinct};

/// How the packed algorithm takes CPUs below the level of sockets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Packing {
    /// Single CPUs in the order of their numbers, socket after socket, instead of whole cores.
    pub(super) spread: bool,
    /// All CPUs from one L3 cache, where one has enough.
    pub(super) caches: bool,
}

/// Takes `count` of the available CPUs (`takeByTopologyNUMAPacked`).
pub(super) fn packed(
    topology: &CpuGroups,
    available: &[usize],
    count: usize,
    packing: Packing,
) -> Result<Vec<usize>, CpuRefusal> {
    let mut accumulator = Accumulator::new(topology, available, count);
    if count > available.len() {
        return Err(CpuRefusal::NotEnough {
            requested: count,
            available: available.len(),
        });
    }
    for level in accumulator.outer_first() {
        if !accumulator.satisfied() {
            accumulator.take_full(level);
        }
    }
    if packing.caches && !accumulator.satisfied() {
        from_caches(topology, &mut accumulator);
    }
    if !packing.spread && !accumulator.satisfied() {
        accumulator.take_full(Level::Core);
    }
    if !accumulator.satisfied() {
        let cpus = accumulator.free_by(if packing.spread { Level::Socket } else { Level::Core });
        accumulator.take(&cpus[..accumulator.wanted().min(cpus.len())]);
    }
    if accumulator.satisfied() {
        Ok(accumulator.into_taken())
    } else {
        Err(CpuRefusal::Failed)
    }
}

/// Takes whole L3 caches if at least an average one is needed; then the whole rest from one of them. The order of the
/// caches is determined once.
///
/// kubelet looks for whole caches before each cache that it tries. Only the first time can find any, because nothing
/// changes in between.
fn from_caches(topology: &CpuGroups, accumulator: &mut Accumulator) {
    let caches = accumulator.order(Level::Cache);
    if accumulator.needs(topology.average(Level::Cache)) {
        accumulator.take_full(Level::Cache);
    }
    for cache in caches {
        if accumulator.satisfied() {
            return;
        }
        from_cache(topology, accumulator, cache);
    }
}

/// Takes everything that is still needed, or nothing, from the first cores of the cache that have a free CPU
/// (`takePartialUncore`).
fn from_cache(topology: &CpuGroups, accumulator: &mut Accumulator, cache: usize) {
    let (needed, per_core) = (accumulator.wanted(), topology.cpus_per_core());
    let free = accumulator.free_of(Level::Cache, cache).into_iter();
    let mut cores = distinct(free.map(|cpu| topology.group(Level::Core, cpu)));
    cores.truncate(needed.div_ceil(per_core.max(1)));
    let cpus = cores
        .into_iter()
        .flat_map(|core| accumulator.free_of(Level::Core, core));
    let mut cpus: Vec<usize> = cpus.collect();
    cpus.sort_unstable();
    if needed % 2 == 1 && per_core > 1 && cpus.len() > needed {
        cpus.pop();
    }
    if cpus.len() == needed {
        accumulator.take(&cpus);
    }
}
