//! The CPUs, or the pool, of a container that asks.

use std::collections::BTreeSet;

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kubelet::QosClass;

use super::exclusive::exclusive;
use super::schedule::list;
use crate::{
    Allocation, AllocatorPolicies, CpuBindPolicy, Exclusivity, Ground, Held, NumaTopologyAlignmentPolicy, Pools, Qos,
    Wish, constrained_burst,
};

/// Who asks, by what the kernel says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// Kubernetes' class of the pod, by its cgroup's path.
    pub class: QosClass,
    /// The least CPU limit of the container and its pod (`cpu.max`), thousandths of a CPU; `None` without one.
    pub limit_milli: Option<u64>,
    /// Whether it speaks for itself: then its words only narrow what the kernel says. An administrator's stand.
    pub bound: bool,
    /// The NUMA nodes its memory and huge pages may come from (`cpuset.mems`, kubelet's memory manager's); `None` for any.
    pub memory: Option<BTreeSet<u32>>,
}

impl Ground {
    /// Decide. The CPUs are none for a class that has none of its own.
    ///
    /// # Errors
    /// `InvalidArgument`, `NotGuaranteed`, `NotAllocated`, `Failed`.
    pub fn allot(&self, wish: &Wish, asker: &Asker) -> Result<(CpuSet, Allocation), Error> {
        let node = &self.policies;
        let qos = class(wish, asker, node)?;
        let allocation = Allocation {
            qos,
            cpus: 0,
            bind: wish.required.or(wish.bind).unwrap_or_default().or(node.bind),
            required: false,
            exclusive: wish.exclusive.unwrap_or_default().or(node.exclusive),
            strategy: wish.strategy.unwrap_or(node.strategy),
            alignment: wish.alignment.unwrap_or(node.alignment),
            limit_milli: 0,
            numa_node: None,
            exclusivity: Exclusivity::NotAsked,
            explanation: Vec::new(),
        };
        if qos.is_exclusive() {
            exclusive(wish, asker, self, allocation)
        } else {
            let allocation = shared(wish, asker, &self.pools, allocation)?;
            Ok((CpuSet::new(), allocation))
        }
    }
}

/// The class: the caller's, or the one that Kubernetes' class stands for.
fn class(wish: &Wish, asker: &Asker, node: &AllocatorPolicies) -> Result<Qos, Error> {
    let qos = wish.qos.unwrap_or(match asker.class {
        QosClass::Guaranteed => node.qos,
        QosClass::Burstable => Qos::Ls,
        QosClass::BestEffort => Qos::Be,
    });
    let may = match qos {
        Qos::Lse | Qos::Lsr => asker.class == QosClass::Guaranteed,
        Qos::Ls => asker.class != QosClass::BestEffort,
        Qos::Be => true,
    };
    if asker.bound && !may {
        let text = format!("a {} pod cannot be of class {}", asker.class.name(), qos.name());
        return Err(ErrorKind::NotGuaranteed.because(text).lasting());
    }
    Ok(qos)
}

/// The pool of a class without CPUs of its own.
fn shared(wish: &Wish, asker: &Asker, pools: &Pools, mut allocation: Allocation) -> Result<Allocation, Error> {
    let qos = allocation.qos;
    if wish.cpus.is_some() {
        let text = format!(
            "option \"cpus\" is for LSE and LSR: class {} has no CPUs of its own",
            qos.name()
        );
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    if wish.schedule.cpus.is_some() {
        let text = format!("the scheduler chose CPUs, and class {} has none of its own", qos.name());
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    if pools.shared.is_empty() {
        return Err(ErrorKind::NotAllocated.because("the shared pool is empty: there is nowhere to float"));
    }
    let named = named(wish, pools)?;
    let burst = allocation.bind == CpuBindPolicy::ConstrainedBurst;
    if qos == Qos::Be {
        if burst {
            return Err(ErrorKind::InvalidArgument.because("ConstrainedBurst is for class LS"));
        }
        if let Some(nodes) = named {
            let text = format!(
                "the scheduler named NUMA nodes {}, and the BE shared pool is that of all",
                list(nodes)
            );
            return Err(ErrorKind::NotAllocated.because(text));
        }
        allocation.explanation = vec![format!("class BE: the BE shared pool, now {}", pools.be_shared)];
        return Ok(allocation);
    }
    let strict = matches!(
        allocation.alignment,
        NumaTopologyAlignmentPolicy::Restricted | NumaTopologyAlignmentPolicy::SingleNumaNode
    );
    if !burst && !strict && named.is_none() {
        allocation.explanation = vec![format!("class LS: the shared pool, now {}", pools.shared)];
        return Ok(allocation);
    }
    let limit = wish.limit_milli.map(u64::from).or(asker.limit_milli);
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
    of_one_node(pools, named, burst, allocation)
}

/// The shared pool of one NUMA node, of those that a scheduler named where it did.
fn of_one_node(
    pools: &Pools,
    named: Option<&BTreeSet<u32>>,
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
        (false, Some(nodes)) => format!("the scheduler named NUMA nodes {}", list(nodes)),
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

/// The NUMA nodes that a scheduler named; `None` also where these are all of them.
fn named<'a>(wish: &'a Wish, pools: &Pools) -> Result<Option<&'a BTreeSet<u32>>, Error> {
    let Some(named) = &wish.schedule.nodes else {
        return Ok(None);
    };
    let here: BTreeSet<u32> = pools.shared_by_node.keys().copied().collect();
    if named.is_empty() || !named.is_subset(&here) {
        let text = format!(
            "the scheduler named NUMA nodes {:?}, this host has {}",
            list(named),
            list(&here)
        );
        return Err(ErrorKind::NotAllocated.because(text));
    }
    Ok((*named != here).then_some(named))
}
