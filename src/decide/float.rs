//! Which shared CPUs an instance floats on.

use stelia_cpus::CpuSet;
use stelia_settings::FloatPolicy;
use stelia_text::named;

use super::Instance;

/// What decided which CPUs an instance floats on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatReason {
    /// The setting is `pod`, and kubelet gave the pod a shared pool of its own.
    PodPool,
    /// The setting is `pod` or `numa`: the shared pool within the NUMA nodes of its own CPUs.
    Near,
    /// These have fewer CPUs than `float-min-cpus`, so that it is the whole shared pool.
    TooFewNear,
    /// The setting is `node`, or it has no CPUs of its own to be near to: the whole shared pool.
    Pool,
    /// Class LS: the shared pool of the NUMA node that was chosen for it.
    NodePool,
    /// Class BE: the BE shared pool.
    BePool,
    /// Where others pin its vCPUs: the container's own CPUs that no vCPU is pinned to; in a scope the shared pool, too.
    Spare,
    /// None could be chosen: it keeps what it had. The reasons of degradation say why.
    Kept,
}

named!(FloatReason {
    PodPool = "pod-pool",
    Near = "near",
    TooFewNear = "too-few-near",
    Pool = "pool",
    NodePool = "node-pool",
    BePool = "be-pool",
    Spare = "spare",
    Kept = "kept"
});

/// What a float is chosen from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shared<'a> {
    /// kubelet's shared pool: no CPU of any entry.
    pub pool: &'a CpuSet,
    /// The pod's own shared pool, where kubelet gave it one.
    pub pod: Option<&'a CpuSet>,
    /// The CPUs of the NUMA nodes that the instance's own CPUs are of.
    pub near: &'a CpuSet,
    /// The exclusive CPUs of all instances.
    pub owned: &'a CpuSet,
}

/// The CPUs to float on, never an exclusive one, whatever the policy, and what decided. `None` when no CPU is free.
pub(crate) fn choose(
    policy: FloatPolicy,
    least: usize,
    shared: &Shared<'_>,
    online: &CpuSet,
) -> Option<(CpuSet, FloatReason)> {
    // The kernel treats a list of offline CPUs as empty.
    let usable = |cpus: &CpuSet| {
        let cpus = cpus.difference(shared.owned);
        let usable = !cpus.is_disjoint(online);
        usable.then_some(cpus)
    };
    let of_pod = || usable(shared.pod.filter(|_| policy == FloatPolicy::Pod)?);
    let of_nodes = || {
        let near = shared.pool.intersection(shared.near);
        usable(&near).filter(|cpus| policy != FloatPolicy::Node && cpus.len() >= least)
    };
    let because = |reason| move |cpus| (cpus, reason);
    let of_all = match policy == FloatPolicy::Node || shared.near.is_empty() {
        true => FloatReason::Pool,
        false => FloatReason::TooFewNear,
    };
    of_pod()
        .map(because(FloatReason::PodPool))
        .or_else(|| of_nodes().map(because(FloatReason::Near)))
        .or_else(|| usable(shared.pool).map(because(of_all)))
}

/// The same with the container's own CPUs that are no vCPU's. In place these alone: while the container has CPUs of its own left, the
/// kernel lets nothing below it use others.
pub(crate) fn with_spare(instance: &Instance, chosen: Option<(CpuSet, FloatReason)>) -> Option<(CpuSet, FloatReason)> {
    let spare = &instance.record.spare;
    if spare.is_empty() {
        return chosen;
    }
    if !instance.is_in_place() {
        return chosen.map(|(pool, _)| (pool.union(spare), FloatReason::Spare));
    }
    Some((spare.clone(), FloatReason::Spare))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stelia_cpus::testing::{Shape, shapes};

    use super::*;

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn near_cpus_are_chosen_while_enough_of_them_are_left() {
        let topology = Shape {
            nodes: 2,
            cores: 4,
            threads: 1,
            interleaved: true,
        }
        .topology();
        let choose = |policy, pool: &str, pod: Option<&str>, least| {
            let (pool, pod) = (cpus(pool), pod.map(cpus));
            let shared = Shared {
                pool: &pool,
                pod: pod.as_ref(),
                near: &topology.near(&cpus("2-3")),
                owned: &cpus("2-3,7"),
            };
            choose(policy, least, &shared, &topology.online()).map(|(cpus, reason)| (cpus.to_string(), reason))
        };
        let some = |text: &str, reason| Some((text.to_owned(), reason));
        let near = some("0-1", FloatReason::Near);
        assert_eq!(choose(FloatPolicy::Numa, "0-1,4-7", None, 2), near);
        let whole = |reason| some("0-1,4-6", reason);
        assert_eq!(
            choose(FloatPolicy::Numa, "0-1,4-7", None, 3),
            whole(FloatReason::TooFewNear)
        );
        assert_eq!(choose(FloatPolicy::Node, "0-1,4-7", None, 2), whole(FloatReason::Pool));
        let of_pod = some("5", FloatReason::PodPool);
        assert_eq!(choose(FloatPolicy::Pod, "0-1,4-7", Some("5"), 2), of_pod);
        assert_eq!(choose(FloatPolicy::Pod, "0-1,4-7", None, 2), near);
        assert_eq!(choose(FloatPolicy::Numa, "2-3", None, 2), None);
    }

    proptest! {
        #[test]
        fn no_float_meets_an_exclusive_cpu_or_is_empty(
            shape in shapes(), kinds in proptest::collection::vec(0u8..4, 1024), least in 1usize..9,
        ) {
            let topology = shape.topology();
            let of = |kind: u8| -> CpuSet {
                topology.online().iter().filter(|cpu| kinds[*cpu as usize % 1024] == kind).collect()
            };
            // The pool may name CPUs of instances: kubelet's file and the records can be at odds for a moment.
            let (own, others, pool) = (of(0), of(1), of(2).union(&of(1)));
            let owned = own.union(&others);
            let pod = of(3);
            let near = topology.near(&own);
            let shared = Shared { pool: &pool, pod: Some(&pod), near: &near, owned: &owned };
            for policy in FloatPolicy::ALL {
                match choose(policy, least, &shared, &topology.online()) {
                    Some((cpus, _)) => {
                        prop_assert!(!cpus.is_empty() && cpus.is_disjoint(&owned));
                        prop_assert!(cpus.is_subset(&pool.union(&pod)));
                    }
                    None => prop_assert!(pool.difference(&owned).is_empty()),
                }
            }
        }
    }
}
