//! Which shared CPUs an instance floats on.

use stelia_cpus::CpuSet;
use stelia_settings::FloatPolicy;

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

/// The CPUs to float on, never an exclusive one, whatever the policy. `None` when no CPU is free.
pub(crate) fn float(policy: FloatPolicy, least: usize, shared: &Shared<'_>, online: &CpuSet) -> Option<CpuSet> {
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
    of_pod().or_else(of_nodes).or_else(|| usable(shared.pool))
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
            float(policy, least, &shared, &topology.online()).map(|cpus| cpus.to_string())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(choose(FloatPolicy::Numa, "0-1,4-7", None, 2), some("0-1"));
        assert_eq!(choose(FloatPolicy::Numa, "0-1,4-7", None, 3), some("0-1,4-6"));
        assert_eq!(choose(FloatPolicy::Node, "0-1,4-7", None, 2), some("0-1,4-6"));
        assert_eq!(choose(FloatPolicy::Pod, "0-1,4-7", Some("5"), 2), some("5"));
        assert_eq!(choose(FloatPolicy::Pod, "0-1,4-7", None, 2), some("0-1"));
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
                match float(policy, least, &shared, &topology.online()) {
                    Some(cpus) => {
                        prop_assert!(!cpus.is_empty() && cpus.is_disjoint(&owned));
                        prop_assert!(cpus.is_subset(&pool.union(&pod)));
                    }
                    None => prop_assert!(pool.difference(&owned).is_empty()),
                }
            }
        }
    }
}
