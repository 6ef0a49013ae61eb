//! The choice of CPUs, as Koordinator's documents say it: which NUMA nodes ([`align`](fn@align)), which CPUs of them
//! ([`select_cpus`]), and below them Koordinator's own function ([`take_preferred_cpus`]).

mod accumulator;
mod align;
mod host;
#[cfg(test)]
mod laws;
mod take;
#[cfg(test)]
mod tests;
mod usage;

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::text::named;
use stelia_cpus::{CpuSet, NodeSet};

use crate::allocator::{CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy};
pub use align::{Room, align, satisfies};
pub use host::HostTables;
use take::take_preferred;
pub use take::{TakeCriteria, take_preferred_cpus};
pub use usage::{InUse, Unsatisfied, Usage};

/// Which CPUs an instance is to get, every default resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuSelection {
    pub count: usize,
    /// How they lie on cores.
    pub bind: CpuBindPolicy,
    /// Whether `bind` must be satisfied; otherwise it is a preference.
    pub required: bool,
    /// Which neighbours are avoided.
    pub exclusive: CpuExclusivePolicy,
    /// Which NUMA nodes they come from.
    pub strategy: NumaAllocateStrategy,
    /// CPUs to take before others.
    pub preferred: CpuSet,
    /// The NUMA nodes to take them from, each its even share; `None` for any.
    pub nodes: Option<NodeSet>,
}

named! {
    /// Whether an exclusive policy is satisfied.
    pub enum Exclusivity {
        /// No exclusive policy was asked for.
        NotAsked = "not-asked",
        Honored = "kept",
        /// NUMANodeLevel: a NUMA node is shared with an instance of the same policy, no core is.
        Downgraded = "downgraded",
        /// A core is shared with an instance of the same policy.
        Dropped = "dropped",
    }
}

/// The CPUs of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedCpus {
    /// The CPUs: as many as asked for.
    pub cpus: CpuSet,
    pub exclusive: Exclusivity,
}

/// Choose the CPUs of an instance from those that are available.
///
/// # Errors
/// Too few CPUs, or none that satisfy a required bind policy.
pub fn select_cpus(
    host: &HostTables,
    usage: &Usage,
    available: &CpuSet,
    request: &CpuSelection,
) -> Result<SelectedCpus, Unsatisfied> {
    if request.bind == CpuBindPolicy::ConstrainedBurst {
        return Err(Unsatisfied::NotExclusive);
    }
    let choice = suitable(host, available, request)?;
    let answer = |cpus: CpuSet| SelectedCpus {
        exclusive: exclusivity(host, usage, &cpus, request.exclusive),
        cpus,
    };
    let first = answer(take(host, usage, &choice, request, request.exclusive)?);
    if (request.exclusive, first.exclusive) != (CpuExclusivePolicy::NumaNodeLevel, Exclusivity::Dropped) {
        return Ok(first);
    }
    // No NUMA node is without instances of the same policy: at least their cores are avoided.
    let mut cores = usage.clone();
    for held in &mut cores.in_use {
        if held.exclusive == CpuExclusivePolicy::NumaNodeLevel {
            held.exclusive = CpuExclusivePolicy::PcpuLevel;
        }
    }
    let second = answer(take(host, &cores, &choice, request, CpuExclusivePolicy::PcpuLevel)?);
    Ok(if second.exclusive == Exclusivity::Dropped {
        first
    } else {
        second
    })
}

/// The CPUs that may be taken, and those of them that are preferred.
struct Choice {
    cpus: CpuSet,
    preferred: CpuSet,
}

/// The available CPUs of the named nodes, and where the bind policy is required only those that satisfy it.
fn suitable(host: &HostTables, available: &CpuSet, request: &CpuSelection) -> Result<Choice, Unsatisfied> {
    let cpus = match &request.nodes {
        Some(nodes) => host.within(available, nodes),
        None => available.intersection(host.online()),
    };
    let preferred = cpus.intersection(&request.preferred);
    if cpus.len() < request.count {
        return Err(Unsatisfied::NotEnough {
            wanted: request.count,
            available: cpus.len(),
        });
    }
    let required = request.required.then_some(request.bind);
    let threads = host.threads();
    if required == Some(CpuBindPolicy::FullPcpus) && !request.count.is_multiple_of(threads) {
        return Err(Unsatisfied::PartOfCore {
            wanted: request.count,
            threads,
        });
    }
    let choice = Choice {
        cpus: satisfying(host, &cpus, &preferred, required),
        // Half a preferred core would split it.
        preferred: satisfying(host, &preferred, &preferred, required),
    };
    if choice.cpus.len() < request.count {
        return Err(Unsatisfied::Bind {
            wanted: request.count,
            suitable: choice.cpus.len(),
            bind: request.bind,
        });
    }
    Ok(choice)
}

/// The CPUs of a set that satisfy a required bind policy: those of whole cores, or one of each core, a preferred one
/// where there is one.
pub(super) fn satisfying(
    host: &HostTables,
    cpus: &CpuSet,
    preferred: &CpuSet,
    required: Option<CpuBindPolicy>,
) -> CpuSet {
    match required {
        None => cpus.clone(),
        Some(CpuBindPolicy::FullPcpus) => host.whole_cores(cpus),
        Some(_) => host.one_per_core(cpus, preferred),
    }
}

/// Take the request as a whole, or each node's share of it.
fn take(
    host: &HostTables,
    usage: &Usage,
    choice: &Choice,
    request: &CpuSelection,
    exclusive: CpuExclusivePolicy,
) -> Result<CpuSet, Unsatisfied> {
    let run = |cpus: &CpuSet, count| {
        let wanted = TakeCriteria {
            count,
            bind: request.bind,
            exclusive,
            strategy: request.strategy,
        };
        take_preferred(host, host.threads(), usage, cpus, &choice.preferred, wanted)
    };
    if request.nodes.is_none() && request.strategy != NumaAllocateStrategy::DistributeEvenly {
        return run(&choice.cpus, request.count);
    }
    let mut by_node = host.by_node(&choice.cpus);
    if exclusive == CpuExclusivePolicy::NumaNodeLevel {
        let others = host.nodes_of(&holders(usage, &[exclusive]));
        let mut avoiding = by_node.clone();
        avoiding.retain(|node, _| !others.contains(node));
        if avoiding.values().map(CpuSet::len).sum::<usize>() >= request.count {
            by_node = avoiding;
        }
    }
    let mut taken = CpuSet::new();
    for (node, count) in shares(host, &by_node, request) {
        taken = taken.union(&run(&by_node[&node], count)?);
    }
    Ok(taken)
}

/// How many CPUs each node gives. The nodes together have enough.
fn shares(host: &HostTables, by_node: &BTreeMap<u32, CpuSet>, request: &CpuSelection) -> BTreeMap<u32, usize> {
    let room = |cpus: &dyn Fn(&CpuSet) -> usize| -> BTreeMap<u32, usize> {
        by_node.iter().map(|(node, free)| (*node, cpus(free))).collect()
    };
    let free = room(&CpuSet::len);
    let threads = host.threads();
    if request.bind == CpuBindPolicy::FullPcpus {
        let cores = room(&|free| host.whole_cores(free).len() / threads);
        // Whole cores evenly; the part of a core comes from the node with most CPUs left.
        if let Some(shares) = evenly(request.count / threads, &cores) {
            let mut shares: BTreeMap<u32, usize> = shares.into_iter().map(|(node, n)| (node, n * threads)).collect();
            let left = |node: &u32| free[node] - shares[node];
            let roomiest = free.keys().max_by_key(|node| (left(node), **node));
            let part = request.count % threads;
            if let Some(node) = roomiest.copied().filter(|node| left(node) >= part) {
                *shares.entry(node).or_default() += part;
                return shares;
            }
        }
    }
    evenly(request.count, &free).unwrap_or_default()
}

/// Split an amount over nodes as evenly as their room allows; what does not divide goes to those with most room, of equals
/// to the last. `None` where they have too little together.
///
/// Nodes with least room come first: each takes its part of what is left, or all it has. Those after it have at least as
/// much room, so nothing is left at the end.
fn evenly(amount: usize, room: &BTreeMap<u32, usize>) -> Option<BTreeMap<u32, usize>> {
    let mut order: Vec<(u32, usize)> = room.iter().map(|(node, room)| (*node, *room)).collect();
    order.sort_by_key(|(node, room)| (*room, *node));
    let mut left = amount;
    let mut shares = BTreeMap::new();
    for (done, (node, room)) in order.iter().enumerate() {
        let share = (left / (order.len() - done)).min(*room);
        shares.insert(*node, share);
        left -= share;
    }
    (left == 0).then_some(shares)
}

/// The CPUs held with one of these policies.
fn holders(usage: &Usage, policies: &[CpuExclusivePolicy]) -> CpuSet {
    let held = usage.in_use.iter().filter(|held| policies.contains(&held.exclusive));
    held.flat_map(|held| held.cpus.iter()).collect()
}

/// The CPUs on which an instance of this exclusive policy would have the company it avoids.
pub fn exclusivity_conflicts(host: &HostTables, usage: &Usage, policy: CpuExclusivePolicy) -> CpuSet {
    let others = holders(usage, &[policy]);
    let cores = host.cores_of(&others);
    let nodes: BTreeSet<usize> = host.places_of(&others).map(|place| place.node).collect();
    let avoided = host.places.iter().filter(|place| match policy {
        CpuExclusivePolicy::Default | CpuExclusivePolicy::None => false,
        CpuExclusivePolicy::PcpuLevel => cores.contains(&place.core),
        CpuExclusivePolicy::NumaNodeLevel => nodes.contains(&place.node),
    });
    avoided.map(|place| place.cpu).collect()
}

/// Which of the others' company these CPUs have.
fn exclusivity(host: &HostTables, usage: &Usage, cpus: &CpuSet, policy: CpuExclusivePolicy) -> Exclusivity {
    let same_core = |others: &CpuSet| !host.cores_of(cpus).is_disjoint(&host.cores_of(others));
    let others = holders(usage, &[policy]);
    match policy {
        CpuExclusivePolicy::Default | CpuExclusivePolicy::None => Exclusivity::NotAsked,
        CpuExclusivePolicy::PcpuLevel if same_core(&others) => Exclusivity::Dropped,
        CpuExclusivePolicy::PcpuLevel => Exclusivity::Honored,
        CpuExclusivePolicy::NumaNodeLevel if host.nodes_of(cpus).is_disjoint(&host.nodes_of(&others)) => {
            Exclusivity::Honored
        }
        CpuExclusivePolicy::NumaNodeLevel if same_core(&holders(usage, &[policy, CpuExclusivePolicy::PcpuLevel])) => {
            Exclusivity::Dropped
        }
        CpuExclusivePolicy::NumaNodeLevel => Exclusivity::Downgraded,
    }
}
