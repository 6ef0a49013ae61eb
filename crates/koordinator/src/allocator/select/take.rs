//! Taking a number of CPUs from those that are available: Koordinator's `takePreferredCPUs`.

use stelia_cpus::CpuSet;

use super::accumulator::Accumulator;
use super::{HostTables, Unsatisfied, Usage};
use crate::allocator::{CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy};

/// What to take, in Koordinator's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeCriteria {
    pub count: usize,
    /// [`CpuBindPolicy::FullPcpus`]; every other policy spreads.
    pub bind: CpuBindPolicy,
    /// Which neighbours are avoided.
    pub exclusive: CpuExclusivePolicy,
    /// [`NumaAllocateStrategy::MostAllocated`]; every other strategy takes most free CPUs first.
    pub strategy: NumaAllocateStrategy,
}

/// Take CPUs as Koordinator does, its count of threads a core included: first of those that are preferred, the rest of those that are
/// not.
///
/// # Errors
/// Fewer CPUs are available.
pub fn take_preferred_cpus(
    host: &HostTables,
    usage: &Usage,
    available: &CpuSet,
    preferred: &CpuSet,
    wanted: TakeCriteria,
) -> Result<CpuSet, Unsatisfied> {
    take_preferred(host, host.mean_threads(), usage, available, preferred, wanted)
}

/// The same with `threads` free CPUs making a core whole.
pub(super) fn take_preferred(
    host: &HostTables,
    threads: usize,
    usage: &Usage,
    available: &CpuSet,
    preferred: &CpuSet,
    wanted: TakeCriteria,
) -> Result<CpuSet, Unsatisfied> {
    let online = available.intersection(host.online());
    if online.len() < wanted.count {
        return Err(Unsatisfied::NotEnough {
            wanted: wanted.count,
            available: online.len(),
        });
    }
    let first = online.intersection(preferred);
    let count = wanted.count.min(first.len());
    let take = |available: &CpuSet, count| {
        Accumulator::new(host, threads, usage, available, TakeCriteria { count, ..wanted }).run()
    };
    let rest = wanted.count - count;
    Ok(take(&first, count).union(&take(&online.difference(&first), rest)))
}
