//! Which shared CPUs an instance floats on.

use stelia_cpus::CpuSet;
use stelia_model::FloatReason;
use stelia_model::record::Phase;
use stelia_settings::FloatPolicy;

use super::{Instance, ThreadedCgroup};

/// What a float is chosen from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shared<'a> {
    /// kubelet's shared pool: no CPU of any entry.
    pub pool: &'a CpuSet,
    /// The pod's own shared pool, where kubelet gave it one.
    pub pod: Option<&'a CpuSet>,
    /// The CPUs of the NUMA nodes of the instance's own CPUs.
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
    let of_all = if policy == FloatPolicy::Node || shared.near.is_empty() {
        FloatReason::Pool
    } else {
        FloatReason::TooFewNear
    };
    of_pod()
        .map(because(FloatReason::PodPool))
        .or_else(|| of_nodes().map(because(FloatReason::Near)))
        .or_else(|| usable(shared.pool).map(because(of_all)))
}

/// The same with the container's own CPUs that are no vCPU's, or in place these alone. Where none of the container's CPUs is online, the kernel lets the container use those of
/// all pods, so the chosen CPUs are its float's too.
pub(crate) fn with_spare(
    instance: &Instance,
    online: &CpuSet,
    chosen: Option<(CpuSet, FloatReason)>,
) -> Option<(CpuSet, FloatReason)> {
    let spare = &instance.record.spare;
    if spare.is_empty() || (!online.is_empty() && instance.record.own().is_disjoint(online)) {
        return chosen;
    }
    let pool = chosen.map(|(pool, _)| pool);
    let cpus = instance.behaviour().with_spare(pool.as_ref(), spare)?;
    Some((cpus, FloatReason::Spare))
}

/// Whether its own CPUs stand idle, because its vCPUs are not attached yet: nobody else may use them, and no partition has them.
pub fn has_idle_cpus(instance: &Instance) -> bool {
    instance.behaviour().has_idle_cpus(instance)
}

/// Whether its guest was shut down and its VMM stays: vCPUs were attached, and their threads have all ended.
fn is_shut_down(instance: &Instance) -> bool {
    let no_thread = |vcpu: &ThreadedCgroup| vcpu.threads.is_empty();
    instance.record.phase == Phase::Isolated && instance.populated && instance.vcpu().is_some_and(no_thread)
}

/// The float of an instance whose vCPUs are not attached: what its threads touch first is the guest's memory (a snapshot that is
/// restored, a migration that comes in, preallocation), and the kernel takes it from the NUMA node of the CPU that touches it. Where the
/// nodes of its own CPUs, `near`, have too few shared ones it has its own CPUs instead of those of other nodes. At an attach its
/// record changes first, so its float leaves them before a partition is made of them. A guest that was shut down has a partition still: its VMM
/// has the few shared CPUs that are near until vCPU threads are there again.
pub(crate) fn until_attached(
    instance: &Instance,
    near: &CpuSet,
    online: &CpuSet,
    chosen: Option<(CpuSet, FloatReason)>,
) -> Option<(CpuSet, FloatReason)> {
    let (pool, reason) = chosen?;
    let own = &instance.record.exclusive;
    let near = pool.intersection(near);
    let until_attached = match reason {
        FloatReason::TooFewNear if has_idle_cpus(instance) && !own.is_disjoint(online) => near.union(own),
        FloatReason::TooFewNear if is_shut_down(instance) && !near.is_disjoint(online) => near,
        _ => return Some((pool, reason)),
    };
    Some((until_attached, FloatReason::UntilAttached))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stelia_cpus::testing::{Shape, shapes};
    use stelia_model::record::{Home, Record};
    use stelia_settings::Policies;

    use super::*;
    use crate::testing::{instance, snapshot};

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn vcpu(instance: &mut Instance) -> &mut ThreadedCgroup {
        let inner = instance.inner.get_or_insert_default();
        inner.vcpu.get_or_insert_default()
    }

    #[test]
    fn in_place_the_spare_cpus_are_the_floats_unless_none_of_the_containers_cpus_is_online() {
        let mut instance = instance();
        instance.record.home = Home::InPlace;
        instance.record.spare = cpus("4");
        let chosen = Some((cpus("0-1"), FloatReason::Pool));
        let float = |online: &str| with_spare(&instance, &cpus(online), chosen.clone());
        assert_eq!(float("0-7"), Some((cpus("4"), FloatReason::Spare)));
        assert_eq!(float("0-3,5-7"), Some((cpus("4"), FloatReason::Spare)));
        assert_eq!(float("0-1,5-7"), chosen);
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

    #[test]
    fn until_its_vcpus_are_attached_a_float_has_its_own_cpus_rather_than_those_of_other_nodes() {
        let (near, online) = (cpus("0-3"), cpus("0-7"));
        let chosen = |reason| Some((cpus("1,4-7"), reason));
        let far = || chosen(FloatReason::TooFewNear);
        let waiting = instance();
        let own = waiting.record.exclusive.to_string();
        assert_eq!(own, "2-3");
        let floats = |instance: &Instance, chosen| until_attached(instance, &near, &online, chosen);
        let expected = Some((cpus("1-3"), FloatReason::UntilAttached));
        assert_eq!(floats(&waiting, far()), expected);
        let floating = Instance {
            record: Record {
                phase: Phase::Floating,
                ..waiting.record.clone()
            },
            ..waiting.clone()
        };
        assert_eq!(floats(&floating, far()), expected);
        // Where it is near already, or the setting is the whole pool, or there is none, that stays.
        for reason in [FloatReason::Near, FloatReason::Pool, FloatReason::PodPool] {
            assert_eq!(floats(&waiting, chosen(reason)), chosen(reason));
        }
        assert_eq!(floats(&waiting, None), None);
        assert_eq!(until_attached(&waiting, &near, &cpus("0-1,4-7"), far()), far());
        // Spare CPUs of its container come on top.
        let mut with_more = snapshot(vec![floating.clone()]);
        let one = with_more.instances.values_mut().next().unwrap();
        one.record.spare = cpus("1");
        one.record.entry = cpus("1-3");
        let state = with_more.kubelet.as_mut().unwrap();
        (
            state.default_cpus,
            *state.entries.values_mut().next().unwrap().values_mut().next().unwrap(),
        ) = (cpus("0,4-7"), cpus("1-3"));
        let policies = Policies {
            float: FloatPolicy::Numa,
            float_min_cpus: 2,
            ..Policies::default()
        };
        let chosen = with_more.assess(&policies, with_more.instances.values().next().unwrap());
        assert_eq!(chosen.float, Some(cpus("0-3")));
        // One that has vCPUs, had some, leaves, or runs already never has them.
        let changes: [fn(&mut Instance); 10] = [
            |one| one.record.phase = Phase::Attaching,
            |one| one.record.phase = Phase::Leaving,
            |one| one.record.home = Home::InPlace,
            |one| one.scope_exclusive = cpus("2-3"),
            |one| one.record.vcpus = stelia_model::record::testing::record().vcpus,
            |one| one.record.adopted = stelia_model::record::testing::adopted().adopted,
            |one| one.inner.get_or_insert_default().exclusive = cpus("2-3"),
            |one| vcpu(one).exclusive = cpus("2-3"),
            |one| vcpu(one).threads = vec![50],
            |one| vcpu(one).partition = "root".into(),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut other = waiting.clone();
            change(&mut other);
            assert_eq!(floats(&other, far()), far(), "{number}");
        }
    }
}
