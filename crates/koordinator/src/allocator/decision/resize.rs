//! Another number of CPUs for an instance that runs. What it keeps stays where it is: a vCPU moves only if its CPU is given up.

use std::cmp::Ordering;

use stelia_api::{Error, ErrorKind};
use stelia_cpus::{CpuSet, NodeSet};

use super::words::{exclusivity_conflicts, layout};
use super::{Allocation, AllocatorNode};
use crate::allocator::select::satisfying;
use crate::allocator::{CpuBindPolicy, CpuSelection, Room, Unsatisfied, satisfies, select_cpus};

/// An instance that is to have another number of CPUs.
#[derive(Debug, Clone, Copy)]
pub struct ResizeRequest<'a> {
    /// Its CPUs. The node's usage must be without them.
    pub now: &'a CpuSet,
    pub allocation: &'a Allocation,
    /// The NUMA nodes that its memory may come from; `None` for any.
    pub memory: Option<&'a NodeSet>,
    /// How many CPUs it is to have.
    pub count: usize,
}

/// The CPUs after the resize, with the allocation that describes them.
///
/// # Errors
/// `InvalidArgument`: no CPU would remain. `NotAllocated`: too few are free, a policy that must be satisfied would not be, or none would be
/// shared any more.
pub(super) fn resize(node: &AllocatorNode, request: ResizeRequest<'_>) -> Result<(CpuSet, Allocation), Error> {
    let ResizeRequest {
        now, allocation, count, ..
    } = request;
    if count == 0 {
        return Err(ErrorKind::InvalidArgument.because("a VM has at least one CPU"));
    }
    let cpus = match count.cmp(&now.len()) {
        Ordering::Equal => return Ok((now.clone(), allocation.clone())),
        Ordering::Greater => now.union(&more(node, request, count - now.len())?),
        Ordering::Less => fewer(node, request),
    };
    check(node, allocation, &cpus)?;
    if node.pools.shared.difference(&cpus).is_empty() {
        let text = format!("{count} CPUs would leave none that is shared: there would be nowhere to float");
        return Err(ErrorKind::NotAllocated.because(text));
    }
    let mut next = allocation.clone();
    // Only these CPUs are open, so this tells how the exclusive policy is kept by them.
    let selection = CpuSelection {
        required: false,
        ..allocation.selection(cpus.len())
    };
    let judged = select_cpus(&node.host, &node.usage, &cpus, &selection);
    next.exclusivity = judged.map_or(allocation.exclusivity, |judged| judged.exclusive);
    next.cpus = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
    next.note_resize(&format!("from {now} to {count} CPUs: {}", layout(&node.host, &cpus)));
    next.explanation
        .extend(exclusivity_conflicts(&next).filter(|line| !allocation.explanation.contains(line)));
    Ok((cpus, next))
}

/// Refuses CPUs that do not satisfy a required bind policy or a strict alignment policy: both hold for as long as the instance lives.
fn check(node: &AllocatorNode, allocation: &Allocation, cpus: &CpuSet) -> Result<(), Error> {
    let required = allocation.required.then_some(allocation.bind);
    let wanted = cpus.len();
    let suitable = satisfying(&node.host, cpus, &CpuSet::new(), required).len();
    let room = Room::new(&node.host, &node.capacity(), cpus, required);
    let cause = if suitable < wanted {
        Unsatisfied::Bind {
            wanted,
            suitable,
            bind: allocation.bind,
        }
    } else if !satisfies(allocation.alignment, node.host.nodes_of(cpus).len(), wanted, &room) {
        Unsatisfied::Alignment {
            wanted,
            policy: allocation.alignment,
        }
    } else {
        return Ok(());
    };
    Err(ErrorKind::NotAllocated.because(cause.to_string()))
}

/// So many free CPUs: of the NUMA nodes that it has CPUs of, if these have enough. The siblings of its own come first where it is to have whole
/// cores, and last where it is to have one CPU of each.
fn more(node: &AllocatorNode, request: ResizeRequest<'_>, count: usize) -> Result<CpuSet, Error> {
    let ResizeRequest {
        now,
        allocation,
        memory,
        ..
    } = request;
    let AllocatorNode { host, pools, usage, .. } = node;
    let free = usage.available(&pools.allocatable).difference(now);
    let free = memory.map_or_else(|| free.clone(), |nodes| host.within(&free, nodes));
    let near = host.within(&free, &host.nodes_of(now));
    let own_cores = host.cores_of(now);
    let is_sibling = |cpu: &u32| host.cores_of(&CpuSet::from_iter([*cpu])).is_subset(&own_cores);
    let siblings: CpuSet = free.iter().filter(is_sibling).collect();
    let (preferred, avoided) = match allocation.bind {
        CpuBindPolicy::FullPcpus => (siblings, CpuSet::new()),
        CpuBindPolicy::SpreadByPcpus => (CpuSet::new(), siblings),
        _ => Default::default(),
    };
    let rest = CpuSelection {
        preferred,
        ..allocation.selection(count)
    };
    let mut refused = None;
    // A sibling of its own CPUs is a last resort where one CPU of each core is preferred, and none where it is required.
    let excluded = if allocation.required { &avoided } else { &CpuSet::new() };
    let sets = [&near, &free];
    for open in sets
        .into_iter()
        .flat_map(|set| [set.difference(&avoided), set.difference(excluded)])
    {
        match select_cpus(host, usage, &open, &rest) {
            Ok(chosen) => return Ok(chosen.cpus),
            Err(cause) => refused = Some(cause),
        }
    }
    let cause = refused.map(|cause| cause.to_string()).unwrap_or_default();
    Err(ErrorKind::NotAllocated.because(format!("{count} more CPUs are not available: {cause}")))
}

/// So many of its CPUs: of the NUMA nodes that most of them are on; there first one of each core, where they are to be spread, and otherwise
/// whole cores.
fn fewer(node: &AllocatorNode, request: ResizeRequest<'_>) -> CpuSet {
    let ResizeRequest {
        now, allocation, count, ..
    } = request;
    let host = &node.host;
    let mut by_node: Vec<CpuSet> = host.by_node(now).into_values().collect();
    by_node.sort_by_key(|cpus| std::cmp::Reverse(cpus.len()));
    let in_order = by_node.into_iter().flat_map(|cpus| {
        let first = match allocation.bind {
            CpuBindPolicy::SpreadByPcpus => host.one_per_core(&cpus, &CpuSet::new()),
            _ => host.whole_cores(&cpus),
        };
        let core = |cpu: &u32| host.cores_of(&CpuSet::from_iter([*cpu]));
        let mut ordered: Vec<u32> = cpus.iter().collect();
        ordered.sort_by_key(|cpu| (!first.contains(*cpu), core(cpu)));
        ordered
    });
    in_order.take(count).collect()
}

#[cfg(test)]
mod tests {
    use stelia_cpus::{Cpu, Topology};

    use super::*;
    use crate::allocator::{AllocationRequest, AllocatorPolicies, HeldCpus, Pools, Qos};

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// Two NUMA nodes of 4 cores with 2 threads: CPU 2n and 2n + 1 are siblings; CPUs 0-7 are on node 0.
    fn topology() -> Topology {
        let cpu = |number: u32| Cpu {
            package: number / 8,
            core: number / 2 % 4,
            node: number / 8,
        };
        Topology {
            cpus: (0..16).map(|number| (number, cpu(number))).collect(),
        }
    }

    fn resized(bind: CpuBindPolicy, now: &str, held: &str, count: usize) -> Result<String, Error> {
        let policies = AllocatorPolicies::default();
        let closed = cpus(now).union(&cpus(held));
        let pools = Pools::new(&topology(), &cpus("0"), &closed, &CpuSet::new());
        let node = AllocatorNode::new(&topology(), pools, &HeldCpus::default(), policies.clone());
        let mut allocation = Allocation::begin(Qos::Lse, &AllocationRequest::default(), &policies);
        allocation.bind = bind;
        let request = ResizeRequest {
            now: &cpus(now),
            allocation: &allocation,
            memory: None,
            count,
        };
        let (cpus, next) = node.resize(request)?;
        assert_eq!((next.cpus as usize, cpus.len()), (count, count));
        assert!(next.explanation.iter().any(|line| line.starts_with("resized from ")));
        Ok(cpus.to_string())
    }

    #[test]
    fn it_grows_beside_the_cpus_it_has_and_keeps_them() {
        use CpuBindPolicy::{FullPcpus, SpreadByPcpus};
        assert_eq!(resized(FullPcpus, "2-3", "", 4).unwrap(), "2-5");
        // The sibling of its single CPU first.
        assert_eq!(resized(FullPcpus, "2", "", 2).unwrap(), "2-3");
        // On its own node as long as that has enough.
        assert_eq!(
            resized(FullPcpus, "8-9", "", 16).unwrap_err().kind,
            ErrorKind::NotAllocated
        );
        assert_eq!(resized(FullPcpus, "8-9", "", 8).unwrap(), "8-15");
        assert_eq!(resized(FullPcpus, "12-13", "2-11", 4).unwrap(), "12-15");
        assert_eq!(resized(SpreadByPcpus, "2", "1", 2).unwrap(), "2,4");
        // No other core is free on its node.
        assert_eq!(resized(SpreadByPcpus, "2", "1,4-7", 2).unwrap(), "2-3");
    }

    #[test]
    fn it_shrinks_to_cpus_that_it_has_by_its_bind_policy() {
        use CpuBindPolicy::{FullPcpus, SpreadByPcpus};
        assert_eq!(resized(FullPcpus, "2-5", "", 2).unwrap(), "2-3");
        assert_eq!(resized(FullPcpus, "3-5", "", 2).unwrap(), "4-5");
        assert_eq!(resized(SpreadByPcpus, "2-5", "", 2).unwrap(), "2,4");
        // It leaves the node of which it has least.
        assert_eq!(resized(FullPcpus, "6-7,8-11", "", 4).unwrap(), "8-11");
        assert_eq!(
            resized(FullPcpus, "2-3", "", 0).unwrap_err().kind,
            ErrorKind::InvalidArgument
        );
    }

    #[test]
    fn what_is_required_holds_after_a_resize_too() {
        use crate::allocator::NumaTopologyAlignmentPolicy::{BestEffort, Restricted, SingleNumaNode};
        use CpuBindPolicy::{FullPcpus, SpreadByPcpus};
        let resized = |bind, required, alignment, now: &str, held: &str, count| {
            let policies = AllocatorPolicies::default();
            let pools = Pools::new(&topology(), &cpus("0"), &cpus(now).union(&cpus(held)), &CpuSet::new());
            let node = AllocatorNode::new(&topology(), pools, &HeldCpus::default(), policies.clone());
            let allocation = Allocation {
                bind,
                required,
                alignment,
                ..Allocation::begin(Qos::Lse, &AllocationRequest::default(), &policies)
            };
            let request = ResizeRequest {
                now: &cpus(now),
                allocation: &allocation,
                memory: None,
                count,
            };
            let cpus = node.resize(request).map(|(cpus, _)| cpus.to_string());
            cpus.map_err(|error| error.kind)
        };
        let refused = Err(ErrorKind::NotAllocated);
        assert_eq!(resized(FullPcpus, false, SingleNumaNode, "2-3", "1,4-7", 4), refused);
        assert_eq!(resized(FullPcpus, false, Restricted, "2-3", "1,4-7", 4), refused);
        assert_eq!(
            resized(FullPcpus, false, BestEffort, "2-3", "1,4-7", 4),
            Ok("2-3,8-9".to_owned())
        );
        assert_eq!(resized(FullPcpus, true, BestEffort, "2-5", "", 3), refused);
        assert_eq!(resized(FullPcpus, true, BestEffort, "2-5", "", 2), Ok("2-3".to_owned()));
        assert_eq!(resized(SpreadByPcpus, true, BestEffort, "2", "1,4-15", 2), refused);
        assert_eq!(
            resized(SpreadByPcpus, true, BestEffort, "2", "1,4-7", 2),
            Ok("2,8".to_owned())
        );
    }
}
