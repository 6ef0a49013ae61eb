//! The CPUs, or the pool, of a container that asks.

use std::collections::BTreeMap;

use super::{Allocation, AllocatorPolicies, Ground, Held, Wish};
use crate::alloc::{
    self, CpuBindPolicy, Exclusivity, Host, NumaTopologyAlignmentPolicy, Pools, Qos, Room, align, allocate,
    constrained_burst,
};
use crate::cpuset::CpuSet;
use crate::kubelet::QosClass;
use crate::plan::admission::{Kind, Refusal};
use crate::plan::{Facts, Snapshot};

/// Who asks, by what the kernel says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// Kubernetes' class of the pod, by its cgroup's path.
    pub class: QosClass,
    /// The least CPU limit of the container and its pod (`cpu.max`), thousandths of a CPU; `None` without one.
    pub limit_milli: Option<u64>,
    /// Whether it speaks for itself: then its words only narrow what the kernel says. An administrator's stand.
    pub bound: bool,
}

impl Ground {
    /// Decide. The CPUs are none for a class that has none of its own.
    ///
    /// # Errors
    /// `InvalidArgument`, `NotGuaranteed`, `NotAllocated`, `Failed`.
    pub fn allot(&self, wish: &Wish, asker: &Asker) -> Result<(CpuSet, Allocation), Refusal> {
        let node = &self.policies;
        let qos = class(wish, asker, node)?;
        let allocation = Allocation {
            qos,
            cpus: 0,
            bind: wish.bind.unwrap_or_default().or(node.bind),
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

/// The refusal where kubelet's file cannot be used.
pub(crate) fn unknown(reason: &str) -> Refusal {
    Kind::KubeletStateUnusable.because(format!("what kubelet holds is not known: {reason}"))
}

/// The refusal where steliad does not choose.
pub(crate) fn kubelets() -> Refusal {
    Kind::Failed.because("kubelet chooses the CPUs on this node")
}

/// Decide by what was found on this node.
///
/// # Errors
/// As [`Ground::allot`], and `KubeletStateUnusable`.
pub fn allot(
    wish: &Wish,
    asker: &Asker,
    snapshot: &Snapshot,
    facts: &Facts,
    node: &AllocatorPolicies,
) -> Result<(CpuSet, Allocation), Refusal> {
    let pools = match (&snapshot.kubelet, facts.pools()) {
        (Ok(_), Some(pools)) => pools.clone(),
        (Err(reason), _) => return Err(unknown(reason)),
        (Ok(_), None) => return Err(kubelets()),
    };
    Ground::new(&snapshot.topology, pools, &Held::of(snapshot), node.clone()).allot(wish, asker)
}

/// The class: the caller's, or the one that Kubernetes' class stands for.
fn class(wish: &Wish, asker: &Asker, node: &AllocatorPolicies) -> Result<Qos, Refusal> {
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
        return Err(Kind::NotGuaranteed.because(text).lasting());
    }
    Ok(qos)
}

/// How many CPUs: what is asked for, as far as the limit goes, or the limit.
fn count(wish: &Wish, asker: &Asker, qos: Qos) -> Result<u32, Refusal> {
    let whole = asker
        .limit_milli
        .filter(|milli| *milli > 0 && milli.is_multiple_of(1000));
    let limit = whole.and_then(|milli| u32::try_from(milli / 1000).ok());
    if asker.bound && limit.is_none() {
        let text = match asker.limit_milli {
            Some(milli) => format!(
                "class {} needs a whole number of CPUs as limit, the container's is {milli}m",
                qos.name()
            ),
            None => format!(
                "class {} needs a CPU limit, and the container has no cpu.max",
                qos.name()
            ),
        };
        return Err(Kind::NotGuaranteed.because(text).lasting());
    }
    let count = wish.cpus.or(limit).ok_or_else(|| {
        Kind::InvalidArgument.because("option \"cpus\" is missing, and the container has no whole CPU limit")
    })?;
    if count == 0 {
        return Err(Kind::InvalidArgument.because("option \"cpus\" is 0"));
    }
    if let Some(limit) = limit.filter(|limit| asker.bound && count > *limit) {
        let text = format!("option \"cpus\" is {count}, the container's CPU limit is {limit}");
        return Err(Kind::InvalidArgument.because(text));
    }
    Ok(count)
}

fn exclusive(
    wish: &Wish,
    asker: &Asker,
    ground: &Ground,
    mut allocation: Allocation,
) -> Result<(CpuSet, Allocation), Refusal> {
    let Ground {
        host,
        pools,
        usage,
        policies: node,
        ..
    } = ground;
    if let Some((scope, reason)) = &ground.unreadable {
        let text = format!("nobody knows which CPUs {scope} has: {reason}");
        return Err(Kind::Failed.because(text));
    }
    if wish.limit_milli.is_some() {
        let text = format!(
            "option \"cpu-limit\" is for ConstrainedBurst, not for class {}",
            allocation.qos.name()
        );
        return Err(Kind::InvalidArgument.because(text));
    }
    if allocation.bind == CpuBindPolicy::ConstrainedBurst {
        let text = format!(
            "class {} has CPUs of its own: ConstrainedBurst is for LS",
            allocation.qos.name()
        );
        return Err(Kind::InvalidArgument.because(text));
    }
    let count = count(wish, asker, allocation.qos)?;
    if let Some(required) = node.required.policy() {
        if wish
            .bind
            .is_some_and(|bind| bind != CpuBindPolicy::Default && bind != required)
        {
            let text = format!(
                "the node requires the bind policy {}, not {}",
                required.name(),
                allocation.bind.name()
            );
            return Err(Kind::NotAllocated.because(text));
        }
        (allocation.bind, allocation.required) = (required, true);
    }
    allocation.cpus = count;
    let count = count as usize;

    let free = usage.available(&pools.allocatable);
    let refused =
        |cause: alloc::Refusal| Kind::NotAllocated.because(format!("{cause}; free: {}", by_node(host, &free)));
    let everything = ground.capacity();
    let required = allocation.required.then_some(allocation.bind);
    let room = Room::new(host, &everything, &free, required);
    let nodes = align(allocation.alignment, allocation.strategy, count, &room).map_err(refused)?;
    let request = alloc::Request {
        count,
        bind: allocation.bind,
        required: allocation.required,
        exclusive: allocation.exclusive,
        strategy: allocation.strategy,
        preferred: CpuSet::new(),
        nodes: nodes.clone(),
    };
    let answer = allocate(host, usage, &free, &request).map_err(refused)?;
    if pools.shared.difference(&answer.cpus).is_empty() {
        let text = format!("{count} CPUs would leave none that is shared: there would be nowhere to float");
        return Err(Kind::NotAllocated.because(text));
    }
    allocation.exclusivity = answer.exclusive;
    let chosen = nodes.map_or("every NUMA node open".to_owned(), |nodes| {
        let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
        format!("NUMA nodes {}", nodes.join(","))
    });
    allocation.explanation = vec![
        format!(
            "{count} CPUs for class {}; free were {}",
            allocation.qos.name(),
            by_node(host, &free)
        ),
        format!("alignment policy {}: {chosen}", allocation.alignment.name()),
        format!(
            "bind policy {} ({}), strategy {}",
            allocation.bind.name(),
            if allocation.required { "required" } else { "preferred" },
            allocation.strategy.name()
        ),
        format!("chosen: {}", layout(host, &answer.cpus)),
    ];
    allocation.explanation.extend(company(&allocation));
    Ok((answer.cpus, allocation))
}

/// The pool of a class without CPUs of its own.
fn shared(wish: &Wish, asker: &Asker, pools: &Pools, mut allocation: Allocation) -> Result<Allocation, Refusal> {
    let qos = allocation.qos;
    if wish.cpus.is_some() {
        let text = format!(
            "option \"cpus\" is for LSE and LSR: class {} has no CPUs of its own",
            qos.name()
        );
        return Err(Kind::InvalidArgument.because(text));
    }
    if pools.shared.is_empty() {
        return Err(Kind::NotAllocated.because("the shared pool is empty: there is nowhere to float"));
    }
    let burst = allocation.bind == CpuBindPolicy::ConstrainedBurst;
    if qos == Qos::Be {
        if burst {
            return Err(Kind::InvalidArgument.because("ConstrainedBurst is for class LS"));
        }
        allocation.explanation = vec![format!("class BE: the BE shared pool, now {}", pools.be_shared)];
        return Ok(allocation);
    }
    let strict = matches!(
        allocation.alignment,
        NumaTopologyAlignmentPolicy::Restricted | NumaTopologyAlignmentPolicy::SingleNumaNode
    );
    if !burst && !strict {
        allocation.explanation = vec![format!("class LS: the shared pool, now {}", pools.shared)];
        return Ok(allocation);
    }
    let limit = wish.limit_milli.map(u64::from).or(asker.limit_milli);
    let limit = match limit {
        Some(limit) => limit,
        None if burst => {
            let text = "ConstrainedBurst needs the CPU limit: option \"cpu-limit\", or cpu.max of the container";
            return Err(Kind::InvalidArgument.because(text));
        }
        // Some node's pool, then.
        None => 1000,
    };
    let node = constrained_burst(limit, allocation.strategy, pools)
        .map_err(|cause| Kind::NotAllocated.because(cause.to_string()))?;
    let sizes: Vec<String> = pools
        .shared_by_node
        .iter()
        .map(|(node, pool)| format!("{node}: {}", pool.cpus))
        .collect();
    let why = match burst {
        true => format!("bind policy {}", allocation.bind.name()),
        false => format!("alignment policy {}", allocation.alignment.name()),
    };
    allocation.limit_milli = limit;
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

/// What to say of an exclusive policy.
fn company(allocation: &Allocation) -> Option<String> {
    let policy = allocation.exclusive.name();
    match allocation.exclusivity {
        Exclusivity::NotAsked => None,
        Exclusivity::Kept => Some(format!("exclusive policy {policy}: kept")),
        Exclusivity::Downgraded => Some(format!(
            "exclusive policy {policy}: a NUMA node is shared with an instance of the same policy, no core is"
        )),
        Exclusivity::Dropped => Some(format!(
            "exclusive policy {policy}: could not be kept, a core is shared with an instance of the same policy"
        )),
    }
}

/// `0: 2-3 (2 CPUs); 1: 4-7 (4 CPUs)`.
fn by_node(host: &Host, cpus: &CpuSet) -> String {
    let by_node: BTreeMap<u32, CpuSet> = host.by_node(cpus);
    if by_node.is_empty() {
        return "none".to_owned();
    }
    let parts: Vec<String> = by_node
        .iter()
        .map(|(node, cpus)| format!("{node}: {cpus} ({} CPUs)", cpus.len()))
        .collect();
    parts.join("; ")
}

/// `0-3: 2 whole cores on NUMA node 0`.
fn layout(host: &Host, cpus: &CpuSet) -> String {
    let whole = host.whole_cores(cpus);
    let cores = whole.len() / host.threads().max(1);
    let single = cpus.len() - whole.len();
    let nodes: Vec<String> = host.nodes_of(cpus).iter().map(u32::to_string).collect();
    format!(
        "{cpus}: {cores} whole cores and {single} CPUs of others, NUMA nodes {}",
        nodes.join(",")
    )
}
