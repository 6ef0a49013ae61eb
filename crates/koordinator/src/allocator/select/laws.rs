//! What holds of every allocation, on any host and with any CPUs in use.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use stelia_cpus::testing::{Shape, shapes};
use stelia_cpus::{NodeSet, Topology};

use super::*;
use crate::allocator::*;

/// A host, the CPUs in use there, and a request.
#[derive(Debug, Clone)]
struct Case {
    shape: Shape,
    /// Two NUMA nodes to a socket.
    paired: bool,
    /// By CPU: 0 to 3 are held with that exclusive policy, 4 is offline, 5 is preferred, the others are free.
    fates: Vec<usize>,
    request: CpuSelection,
}

impl Case {
    fn fate(&self, cpu: u32) -> usize {
        self.fates[cpu as usize % self.fates.len()]
    }

    fn topology(&self) -> Topology {
        let mut topology = self.shape.topology();
        topology.cpus.retain(|cpu, _| self.fate(*cpu) != 4);
        if self.paired {
            for cpu in topology.cpus.values_mut() {
                cpu.package = cpu.node / 2;
                cpu.core += cpu.node % 2 * self.shape.cores;
            }
        }
        topology
    }

    fn usage(&self, topology: &Topology) -> Usage {
        let held = |(fate, exclusive): (usize, CpuExclusivePolicy)| InUse {
            cpus: topology.online().iter().filter(|cpu| self.fate(*cpu) == fate).collect(),
            exclusive,
        };
        Usage {
            in_use: (0..).zip(CpuExclusivePolicy::ALL).map(held).collect(),
        }
    }

    fn request(&self, topology: &Topology) -> CpuSelection {
        CpuSelection {
            preferred: topology.online().iter().filter(|cpu| self.fate(*cpu) == 5).collect(),
            ..self.request.clone()
        }
    }
}

fn nodes() -> impl Strategy<Value = Option<NodeSet>> {
    proptest::option::of(proptest::collection::btree_set(0u32..8, 1..4).prop_map(NodeSet::from_iter))
}

fn requests() -> impl Strategy<Value = CpuSelection> {
    (
        1usize..48,
        select(&CpuBindPolicy::ALL[..3]),
        any::<bool>(),
        select(&CpuExclusivePolicy::ALL[..]),
        select(&NumaAllocateStrategy::ALL[..]),
        nodes(),
    )
        .prop_map(|(count, bind, required, exclusive, strategy, nodes)| CpuSelection {
            count,
            bind,
            required,
            exclusive,
            strategy,
            preferred: CpuSet::new(),
            nodes,
        })
}

fn all_but<T: Copy + PartialEq>(all: &[T], one: T) -> Vec<T> {
    all.iter().copied().filter(|value| *value != one).collect()
}

fn cases() -> impl Strategy<Value = Case> {
    // From crowded to empty: with few fates drawn, most CPUs are free.
    let fates = (7usize..40).prop_flat_map(|most| proptest::collection::vec(0..most, 1024));
    (shapes(), any::<bool>(), fates, requests()).prop_map(|(shape, paired, fates, request)| Case {
        shape,
        paired,
        fates,
        request,
    })
}

/// Node by node, of those a request may use: what it took, and what was available.
fn taken_of(topology: &Topology, available: &CpuSet, request: &CpuSelection, taken: &CpuSet) -> Vec<(usize, usize)> {
    let mut nodes: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for cpu in available.iter() {
        let node = topology.cpus[&cpu].node;
        if request.nodes.as_ref().is_none_or(|nodes| nodes.contains(&node)) {
            let counts = nodes.entry(node).or_default();
            counts.0 += usize::from(taken.contains(cpu));
            counts.1 += 1;
        }
    }
    nodes.into_values().collect()
}

/// No node gives more than a step more than another, but where that one has not as much.
fn is_even(nodes: &[(usize, usize)], step: usize) -> bool {
    let fair = |(taken, room): &(usize, usize), most: usize| taken + step >= most || taken + step > *room;
    let most = nodes.iter().map(|(taken, _)| *taken).max().unwrap_or(0);
    nodes.iter().all(|node| fair(node, most))
}

proptest! {
    #[test]
    fn an_answer_has_the_count_overlaps_nobody_and_is_the_same_again(case in cases()) {
        let topology = case.topology();
        let (host, usage, request) = (HostTables::new(&topology), case.usage(&topology), case.request(&topology));
        let available = usage.available(&topology.online());
        let answer = select_cpus(&host, &usage, &available, &request);
        let room = taken_of(&topology, &available, &request, &CpuSet::new());
        let room: usize = room.into_iter().map(|(_, room)| room).sum();
        match &answer {
            Ok(answer) => {
                prop_assert_eq!(answer.cpus.len(), request.count);
                prop_assert!(answer.cpus.is_subset(&available));
                prop_assert!(usage.in_use.iter().all(|held| held.cpus.is_disjoint(&answer.cpus)));
                let named = |nodes: &NodeSet| host.nodes_of(&answer.cpus).is_subset(nodes);
                prop_assert!(request.nodes.as_ref().is_none_or(named));
            }
            Err(Unsatisfied::NotEnough { wanted, available }) => {
                prop_assert_eq!((*wanted, *available), (request.count, room));
                prop_assert!(room < request.count);
            }
            Err(refusal) => prop_assert!(request.required, "{}", refusal),
        }
        let mut shuffled = usage.clone();
        shuffled.in_use.reverse();
        prop_assert_eq!(&answer, &select_cpus(&host, &shuffled, &available, &request));
    }

    #[test]
    fn a_strict_policy_never_gives_a_split_answer(case in cases()) {
        let topology = case.topology();
        let (host, usage) = (HostTables::new(&topology), case.usage(&topology));
        let request = CpuSelection { required: true, ..case.request(&topology) };
        let available = usage.available(&topology.online());
        let whole = |cpu: u32| {
            let siblings = topology.siblings(cpu);
            siblings.len() == case.shape.threads as usize && siblings.is_subset(&available)
        };
        match select_cpus(&host, &usage, &available, &request) {
            Ok(answer) => for cpu in answer.cpus.iter() {
                let siblings = topology.siblings(cpu);
                match request.bind {
                    CpuBindPolicy::FullPcpus => prop_assert!(siblings.is_subset(&answer.cpus)),
                    _ => prop_assert_eq!(siblings.intersection(&answer.cpus).len(), 1),
                }
            }
            // And it is not refused where an answer is there.
            Err(Unsatisfied::Bind { suitable, .. }) if request.bind == CpuBindPolicy::FullPcpus && request.nodes.is_none() => {
                let cpus = available.iter().filter(|cpu| whole(*cpu)).count();
                prop_assert!(cpus < request.count || host.threads() < case.shape.threads as usize, "{} {}", cpus, suitable);
            }
            Err(_) => {}
        }
    }

    #[test]
    fn distribute_evenly_and_named_nodes_split_evenly(case in cases(), named in nodes()) {
        let topology = case.topology();
        let (host, usage) = (HostTables::new(&topology), case.usage(&topology));
        let mut request = CpuSelection { exclusive: CpuExclusivePolicy::None, ..case.request(&topology) };
        request.nodes = named;
        if request.nodes.is_none() {
            request.strategy = NumaAllocateStrategy::DistributeEvenly;
        }
        let mut available = usage.available(&topology.online());
        let full = request.bind == CpuBindPolicy::FullPcpus;
        if full {
            // By cores: a node's room is that of its whole cores.
            request.required = true;
            request.count = request.count.next_multiple_of(host.threads());
            available = host.whole_cores(&available);
        } else {
            request.required = false;
        }
        if let Ok(answer) = select_cpus(&host, &usage, &available, &request) {
            let nodes = taken_of(&topology, &available, &request, &answer.cpus);
            prop_assert!(is_even(&nodes, if full { host.threads() } else { 1 }), "{:?}", nodes);
        }
    }

    #[test]
    fn what_named_nodes_give_depends_on_them_alone(case in cases()) {
        let topology = case.topology();
        let (host, usage, request) = (HostTables::new(&topology), case.usage(&topology), case.request(&topology));
        let Some(nodes) = &request.nodes else { return Ok(()) };
        let available = usage.available(&topology.online());
        let answer = select_cpus(&host, &usage, &available, &request);
        // Every other CPU is taken by another instance.
        let named: CpuSet = topology.online().iter().filter(|cpu| nodes.contains(&topology.cpus[cpu].node)).collect();
        let mut crowded = usage.clone();
        crowded.in_use.push(InUse {
            cpus: available.difference(&named),
            exclusive: request.exclusive,
        });
        let available = crowded.available(&topology.online());
        prop_assert_eq!(answer, select_cpus(&host, &crowded, &available, &request));
    }

    #[test]
    fn an_exclusive_policy_that_is_not_kept_is_told(case in cases()) {
        let topology = case.topology();
        let (host, usage, request) = (HostTables::new(&topology), case.usage(&topology), case.request(&topology));
        let available = usage.available(&topology.online());
        let Ok(answer) = select_cpus(&host, &usage, &available, &request) else { return Ok(()) };
        let of = |policy: CpuExclusivePolicy| usage.in_use.iter().filter(move |held| held.exclusive == policy);
        let exclusivity_conflicts = |policy, same: &dyn Fn(u32, u32) -> bool| {
            let mut others = of(policy).flat_map(|held| held.cpus.iter());
            others.any(|other| answer.cpus.iter().any(|cpu| same(cpu, other)))
        };
        let core = |a: u32, b: u32| topology.siblings(a).contains(b);
        let node = |a: u32, b: u32| topology.cpus[&a].node == topology.cpus[&b].node;
        let expected = match request.exclusive {
            CpuExclusivePolicy::Default | CpuExclusivePolicy::None => Exclusivity::NotAsked,
            CpuExclusivePolicy::PcpuLevel if exclusivity_conflicts(CpuExclusivePolicy::PcpuLevel, &core) => Exclusivity::Dropped,
            CpuExclusivePolicy::NumaNodeLevel if exclusivity_conflicts(CpuExclusivePolicy::NumaNodeLevel, &node) => {
                let shares = [CpuExclusivePolicy::NumaNodeLevel, CpuExclusivePolicy::PcpuLevel];
                if shares.into_iter().any(|policy| exclusivity_conflicts(policy, &core)) { Exclusivity::Dropped } else { Exclusivity::Downgraded }
            }
            _ => Exclusivity::Honored,
        };
        prop_assert_eq!(answer.exclusive, expected);
    }

    #[test]
    fn a_preference_on_a_regular_host_is_answered_as_the_original_does(
        case in cases(),
        // The two left out are answered another way here: see docs/allocator-derivation.md.
        exclusive in select(all_but(&CpuExclusivePolicy::ALL, CpuExclusivePolicy::NumaNodeLevel)),
        strategy in select(all_but(&NumaAllocateStrategy::ALL, NumaAllocateStrategy::DistributeEvenly)),
    ) {
        let topology = Case { fates: vec![7], ..case.clone() }.topology();
        let usage = case.usage(&topology);
        let request = CpuSelection { required: false, nodes: None, exclusive, strategy, ..case.request(&topology) };
        let (host, available) = (HostTables::new(&topology), usage.available(&topology.online()));
        let wanted = TakeCriteria {
            count: request.count,
            bind: request.bind,
            exclusive: request.exclusive,
            strategy: request.strategy,
        };
        let ours = select_cpus(&host, &usage, &available, &request).map(|answer| answer.cpus);
        prop_assert_eq!(ours, take_preferred_cpus(&host, &usage, &available, &request.preferred, wanted));
    }

    #[test]
    fn freeing_restores(
        shape in shapes(), all in proptest::collection::vec(requests(), 1..12), gone in any::<prop::sample::Index>(),
    ) {
        let topology = shape.topology();
        let (host, online) = (HostTables::new(&topology), topology.online());
        let mut held: BTreeMap<usize, InUse> = BTreeMap::new();
        let usage = |held: &BTreeMap<usize, InUse>| Usage { in_use: held.values().cloned().collect() };
        let ask = |held: &BTreeMap<usize, InUse>, request: &CpuSelection| {
            select_cpus(&host, &usage(held), &usage(held).available(&online), request)
        };
        for (name, request) in all.iter().enumerate() {
            if let Ok(answer) = ask(&held, request) {
                prop_assert!(held.values().all(|held| held.cpus.is_disjoint(&answer.cpus)));
                held.insert(name, InUse { cpus: answer.cpus, exclusive: request.exclusive });
            }
        }
        // An instance that comes and goes leaves everything as it was; the same request again gets the same CPUs.
        let guest = &all[gone.index(all.len())];
        let before = usage(&held).available(&online);
        if let Ok(answer) = ask(&held, guest) {
            held.insert(all.len(), InUse { cpus: answer.cpus.clone(), exclusive: guest.exclusive });
            prop_assert_eq!(usage(&held).available(&online), before.difference(&answer.cpus));
            held.remove(&all.len());
            prop_assert_eq!(usage(&held).available(&online), before);
            prop_assert_eq!(ask(&held, guest), Ok(answer));
        }
        held.clear();
        prop_assert_eq!(usage(&held).available(&online), online);
    }

    #[test]
    fn aligned_nodes_are_as_few_as_can_be(
        room in proptest::collection::vec((0usize..9, 0usize..9), 1..7), count in 1usize..30,
        policy in select(&NumaTopologyAlignmentPolicy::ALL[1..]), strategy in select(&NumaAllocateStrategy::ALL[..]),
        near in proptest::collection::btree_set(0u32..8, 0..4).prop_map(NodeSet::from_iter),
    ) {
        let room = Room {
            capacity: (0..).zip(room.iter().map(|(free, held)| free + held)).collect(),
            available: (0..).zip(room.iter().map(|(free, _)| *free)).collect(),
        };
        // Every set of nodes, as a mask.
        let fewest = |room: &BTreeMap<u32, usize>| {
            let fits = |mask: &u32| {
                let chosen = room.iter().filter(|(node, _)| mask >> **node & 1 == 1);
                chosen.map(|(_, room)| room).sum::<usize>() >= count
            };
            (1u32..1 << room.len()).filter(fits).map(u32::count_ones).min()
        };
        let (now, empty) = (fewest(&room.available), fewest(&room.capacity));
        let accepted = match policy {
            NumaTopologyAlignmentPolicy::Restricted => now.is_some() && now == empty,
            NumaTopologyAlignmentPolicy::SingleNumaNode => now == Some(1),
            _ => true,
        };
        match align(policy, strategy, count, &room, &near) {
            Ok(Some(nodes)) => {
                prop_assert!(accepted);
                prop_assert_eq!(Some(nodes.len() as u32), now);
                prop_assert!(nodes.iter().map(|node| room.available[node]).sum::<usize>() >= count);
                // Among the sets that are as small, none with enough CPUs has more nodes of devices.
                let best = (1u32..1 << room.available.len()).filter(|mask| {
                    let chosen = room.available.iter().filter(|(node, _)| mask >> **node & 1 == 1);
                    mask.count_ones() as usize == nodes.len() && chosen.map(|(_, room)| room).sum::<usize>() >= count
                });
                let nearness = |mask: u32| near.iter().filter(|node| mask >> **node & 1 == 1).count();
                prop_assert_eq!(Some(nodes.intersection(&near).count()), best.map(nearness).max());
            }
            Ok(None) => prop_assert!(accepted && now.is_none()),
            Err(_) => prop_assert!(!accepted),
        }
    }

    #[test]
    fn nobody_runs_in_a_pool_that_is_not_open_to_it(case in cases()) {
        let topology = case.topology();
        let of = |fate: usize| -> CpuSet { topology.online().iter().filter(|cpu| case.fate(*cpu) == fate).collect() };
        let (lse, lsr, pinned, reserved) = (of(0), of(1), of(2), of(3));
        let closed = lse.union(&pinned);
        let pools = Pools::new(&topology, &reserved, &closed, &lsr);
        prop_assert!(pools.shared.is_disjoint(&closed) && pools.shared.is_disjoint(&lsr));
        prop_assert!(pools.be_shared.is_disjoint(&closed) && lsr.is_subset(&pools.be_shared));
        prop_assert_eq!(&pools.shared.union(&pools.exclusive), &topology.online());
        prop_assert_eq!(&pools.shared.union(&lsr), &pools.be_shared);
        prop_assert!(pools.allocatable.is_subset(&pools.shared));
        prop_assert!(reserved.is_subset(&pools.shared) && reserved.is_disjoint(&pools.allocatable));
        let nodes = pools.shared_by_node.values().flat_map(|pool| pool.cpus.iter());
        prop_assert_eq!(nodes.collect::<CpuSet>(), pools.shared);
    }
}
