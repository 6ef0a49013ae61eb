//! The pool of an instance without exclusive CPUs (LS, BE).

use stelia_api::{Error, ErrorKind};
use stelia_cpus::NodeSet;

use super::{Allocation, Requester, scheduled_nodes};
use crate::allocator::request::numbers;
use crate::allocator::{AllocationRequest, CpuBindPolicy, Pools, Qos, constrained_burst};

pub(super) fn allot(
    request: &AllocationRequest,
    requester: &Requester,
    pools: &Pools,
    mut allocation: Allocation,
) -> Result<Allocation, Error> {
    let qos = allocation.qos;
    if request.cpus.is_some() {
        let text = format!(
            "option \"cpus\" is for LSE and LSR: class {} has no CPUs of its own",
            qos.name()
        );
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    if request.schedule.cpus.is_some() {
        let text = format!("the scheduler chose CPUs, and class {} has none of its own", qos.name());
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    if pools.shared.is_empty() {
        return Err(ErrorKind::NotAllocated.because("the shared pool is empty: there is nowhere to float"));
    }
    let every = |nodes: &NodeSet| nodes.iter().eq(pools.shared_by_node.keys());
    let named = scheduled_nodes(request, pools)?.filter(|nodes| !every(nodes));
    let burst = allocation.bind == CpuBindPolicy::ConstrainedBurst;
    if qos == Qos::Be {
        if burst {
            return Err(ErrorKind::InvalidArgument.because("ConstrainedBurst is for class LS"));
        }
        if let Some(nodes) = named {
            let text = format!(
                "the scheduler named NUMA nodes {}, and the BE shared pool is that of all",
                numbers(nodes)
            );
            return Err(ErrorKind::NotAllocated.because(text));
        }
        allocation.explanation = vec![format!("class BE: the BE shared pool, now {}", pools.be_shared)];
        return Ok(allocation);
    }
    if !burst && !allocation.alignment.is_strict() && named.is_none() {
        allocation.explanation = vec![format!("class LS: the shared pool, now {}", pools.shared)];
        return Ok(allocation);
    }
    let limit = request.cpu_limit.map(u64::from).or(requester.limit_milli);
    let limit = match limit {
        Some(limit) => limit,
        None if burst => {
            let text = "ConstrainedBurst needs the CPU limit: option \"cpu-limit\", or cpu.max of the container";
            return Err(ErrorKind::InvalidArgument.because(text));
        }
        // Some node's pool, then.
        None => 1000,
    };
    allocation.limit_milli = limit;
    one_nodes_pool(pools, named, burst, allocation)
}

/// The shared pool of one NUMA node, of those that a scheduler named where it did.
fn one_nodes_pool(
    pools: &Pools,
    named: Option<&NodeSet>,
    burst: bool,
    mut allocation: Allocation,
) -> Result<Allocation, Error> {
    let limit = allocation.limit_milli;
    let mut open = pools.clone();
    open.shared_by_node
        .retain(|node, _| named.is_none_or(|named| named.contains(node)));
    let node = constrained_burst(limit, allocation.strategy, &open)
        .map_err(|cause| ErrorKind::NotAllocated.because(cause.to_string()))?;
    let sizes: Vec<String> = open
        .shared_by_node
        .iter()
        .map(|(node, pool)| format!("{node}: {}", pool.cpus))
        .collect();
    let why = match (burst, named) {
        (true, _) => format!("bind policy {}", allocation.bind.name()),
        (false, Some(nodes)) => format!("the scheduler named NUMA nodes {}", numbers(nodes)),
        (false, None) => format!("alignment policy {}", allocation.alignment.name()),
    };
    allocation.numa_node = Some(node);
    allocation.explanation = vec![
        format!(
            "class LS, {why}, CPU limit {limit}m; the shared pools by NUMA node were {}",
            sizes.join("; ")
        ),
        format!(
            "strategy {}: the shared pool of NUMA node {node}",
            allocation.strategy.name()
        ),
    ];
    Ok(allocation)
}
