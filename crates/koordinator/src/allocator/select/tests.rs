use std::collections::BTreeMap;

use rstest::rstest;
use stelia_cpus::testing::Shape;
use stelia_cpus::{NodeSet, Topology};

use super::*;
use crate::allocator::*;

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// Siblings are n and n + nodes × cores.
fn topology(nodes: u32, cores: u32) -> Topology {
    Shape {
        nodes,
        cores,
        threads: 2,
        interleaved: true,
    }
    .topology()
}

fn request(count: usize, bind: CpuBindPolicy) -> CpuSelection {
    CpuSelection {
        count,
        bind,
        required: false,
        exclusive: CpuExclusivePolicy::None,
        strategy: NumaAllocateStrategy::MostAllocated,
        preferred: CpuSet::new(),
        nodes: None,
    }
}

fn held(text: &str, exclusive: CpuExclusivePolicy) -> InUse {
    InUse {
        cpus: cpus(text),
        exclusive,
    }
}

/// What is chosen on a host of which this is in use.
fn choose(topology: &Topology, in_use: &[InUse], request: &CpuSelection) -> Result<(String, Exclusivity), Unsatisfied> {
    let usage = Usage {
        in_use: in_use.to_vec(),
    };
    let available = usage.available(&topology.online());
    let answer = select_cpus(&HostTables::new(topology), &usage, &available, request)?;
    Ok((answer.cpus.to_string(), answer.exclusive))
}

fn chosen(topology: &Topology, in_use: &[InUse], request: &CpuSelection) -> String {
    choose(topology, in_use, request).unwrap().0
}

#[rstest]
#[case(40, CpuBindPolicy::FullPcpus, "0-9,32-41,64-73,96-105")]
#[case(40, CpuBindPolicy::SpreadByPcpus, "0-19,32-51")]
// A core is not split for the sake of evenness, and the odd CPU is one.
#[case(6, CpuBindPolicy::FullPcpus, "0,32-33,64,96-97")]
#[case(5, CpuBindPolicy::FullPcpus, "0,32-33,64,96")]
fn distribute_evenly_takes_the_same_from_every_node(
    #[case] count: usize,
    #[case] bind: CpuBindPolicy,
    #[case] expected: &str,
) {
    let mut request = request(count, bind);
    request.strategy = NumaAllocateStrategy::DistributeEvenly;
    assert_eq!(chosen(&topology(2, 32), &[], &request), expected);
}

#[test]
fn a_node_that_has_less_than_its_share_gives_all_it_has() {
    // Node 1 (4-7 and 20-23) has 22 and 23 left; the hint names it after node 3, which has everything.
    let in_use = [held("4-7,20-21", CpuExclusivePolicy::None)];
    let mut request = request(6, CpuBindPolicy::SpreadByPcpus);
    request.nodes = Some([1, 3].into());
    assert_eq!(chosen(&topology(4, 4), &in_use, &request), "12-15,22-23");
    request.count = 11;
    let refusal = choose(&topology(4, 4), &in_use, &request).unwrap_err();
    let not_enough = Unsatisfied::NotEnough {
        wanted: 11,
        available: 10,
    };
    assert_eq!(refusal, not_enough);
}

#[test]
fn what_became_of_an_exclusive_policy_is_told() {
    use CpuExclusivePolicy::{NumaNodeLevel, PcpuLevel};
    let host = topology(2, 4);
    let ask = |exclusive, in_use: &[InUse]| {
        let mut request = request(2, CpuBindPolicy::SpreadByPcpus);
        request.exclusive = exclusive;
        choose(&host, in_use, &request).unwrap()
    };
    let told = |cpus: &str, exclusive| (cpus.to_owned(), exclusive);
    assert_eq!(ask(CpuExclusivePolicy::None, &[]), told("0-1", Exclusivity::NotAsked));
    let one = [held("0", PcpuLevel)];
    assert_eq!(ask(PcpuLevel, &one), told("1-2", Exclusivity::Honored));
    let every_core = [held("0-7", PcpuLevel)];
    assert_eq!(ask(PcpuLevel, &every_core), told("8-9", Exclusivity::Dropped));
    assert_eq!(
        ask(NumaNodeLevel, &[held("0", NumaNodeLevel)]),
        told("4-5", Exclusivity::Honored)
    );
    // Both nodes have such an instance: its cores at least are avoided, as the document says.
    let both = [held("0-1,4-5", NumaNodeLevel)];
    assert_eq!(ask(NumaNodeLevel, &both), told("2-3", Exclusivity::Downgraded));
    let every_core = [held("0-7", NumaNodeLevel)];
    assert_eq!(ask(NumaNodeLevel, &every_core), told("8-9", Exclusivity::Dropped));
}

#[test]
fn a_required_bind_policy_is_satisfied_or_refused() {
    let host = topology(1, 4);
    let ask = |count, bind, in_use: &str, preferred: &str| {
        let mut request = request(count, bind);
        request.required = true;
        request.preferred = cpus(preferred);
        choose(&host, &[held(in_use, CpuExclusivePolicy::None)], &request).map(|(cpus, _)| cpus)
    };
    let full = CpuBindPolicy::FullPcpus;
    assert_eq!(ask(4, full, "0", ""), Ok("1-2,5-6".into()));
    // Half a preferred core splits none.
    assert_eq!(ask(4, full, "0", "2-3,6"), Ok("1-2,5-6".into()));
    assert_eq!(
        ask(3, full, "", ""),
        Err(Unsatisfied::PartOfCore { wanted: 3, threads: 2 })
    );
    let refused = |wanted, suitable, bind| Err(Unsatisfied::Bind { wanted, suitable, bind });
    assert_eq!(ask(4, full, "0,1,2", ""), refused(4, 2, full));
    let spread = CpuBindPolicy::SpreadByPcpus;
    assert_eq!(ask(3, spread, "0", "6"), Ok("1,3,6".into()));
    assert_eq!(ask(5, spread, "", ""), refused(5, 4, spread));
    assert_eq!(
        ask(1, CpuBindPolicy::ConstrainedBurst, "", ""),
        Err(Unsatisfied::NotExclusive)
    );
}

#[test]
fn a_core_whose_sibling_is_offline_is_not_whole_and_leaves_the_others_so() {
    let mut host = topology(1, 4);
    host.cpus.remove(&4);
    let mut request = request(4, CpuBindPolicy::FullPcpus);
    assert_eq!(chosen(&host, &[], &request), "1-2,5-6");
    request.required = true;
    assert_eq!(chosen(&host, &[], &request), "1-2,5-6");
}

#[rstest]
#[case(NumaTopologyAlignmentPolicy::None, "8,8", 4, Ok(None))]
#[case(NumaTopologyAlignmentPolicy::BestEffort, "2,8,5", 4, Ok(Some("2")))]
#[case(NumaTopologyAlignmentPolicy::BestEffort, "2,3,3", 4, Ok(Some("0-1")))]
#[case(NumaTopologyAlignmentPolicy::BestEffort, "1,1,1", 4, Ok(None))]
#[case(NumaTopologyAlignmentPolicy::Restricted, "2,3,3", 4, Err(()))]
#[case(NumaTopologyAlignmentPolicy::Restricted, "8,8,3", 10, Ok(Some("0,2")))]
#[case(NumaTopologyAlignmentPolicy::SingleNumaNode, "8,8,3", 10, Err(()))]
#[case(NumaTopologyAlignmentPolicy::SingleNumaNode, "8,4,3", 4, Ok(Some("1")))]
fn alignment_chooses_the_nodes(
    #[case] policy: NumaTopologyAlignmentPolicy,
    #[case] free: &str,
    #[case] count: usize,
    #[case] expected: Result<Option<&str>, ()>,
) {
    let free = free.split(',').map(|count| count.parse::<usize>().unwrap());
    let available: BTreeMap<u32, usize> = (0..).zip(free).collect();
    let room = Room {
        capacity: available.keys().map(|node| (*node, 8)).collect(),
        available,
    };
    let nodes = |text: &str| -> NodeSet { cpus(text).iter().collect() };
    let refusal = Unsatisfied::Alignment { wanted: count, policy };
    let expected = expected.map(|some| some.map(nodes)).map_err(|()| refusal);
    assert_eq!(
        align(
            policy,
            NumaAllocateStrategy::MostAllocated,
            count,
            &room,
            &NodeSet::new()
        ),
        expected
    );
}

/// Nodes of devices come first among sets that are equally small, and never make one larger.
#[rstest]
#[case("8,8,8,8", 4, "2", "2")]
#[case("8,8,2,8", 4, "2", "0")]
#[case("8,8,8,8", 12, "2", "0,2")]
#[case("8,8,8,8", 12, "2-3", "2-3")]
#[case("8,8,2,8", 12, "2-3", "0,3")]
#[case("4,6,8,8", 4, "1-2", "1")]
#[case("4,6,8,8", 4, "", "0")]
#[case("4,6,8,8", 4, "9", "0")]
fn nodes_of_devices_come_first(#[case] free: &str, #[case] count: usize, #[case] near: &str, #[case] expected: &str) {
    let free = free.split(',').map(|count| count.parse::<usize>().unwrap());
    let available: BTreeMap<u32, usize> = (0..).zip(free).collect();
    let room = Room {
        capacity: available.keys().map(|node| (*node, 8)).collect(),
        available,
    };
    let nodes = |text: &str| -> NodeSet { cpus(text).iter().collect() };
    let (policy, strategy) = (
        NumaTopologyAlignmentPolicy::BestEffort,
        NumaAllocateStrategy::MostAllocated,
    );
    assert_eq!(
        align(policy, strategy, count, &room, &nodes(near)),
        Ok(Some(nodes(expected)))
    );
}

#[test]
fn room_counts_what_satisfies_a_required_policy() {
    let topology = topology(2, 2);
    let room = |required| {
        let available = cpus("0-1,3-5,7");
        Room::new(&HostTables::new(&topology), &topology.online(), &available, required).available
    };
    assert_eq!(room(None), [(0, 4), (1, 2)].into());
    assert_eq!(room(Some(CpuBindPolicy::FullPcpus)), [(0, 4), (1, 2)].into());
    assert_eq!(room(Some(CpuBindPolicy::SpreadByPcpus)), [(0, 2), (1, 1)].into());
}

#[test]
fn pools_are_those_of_the_qos_classes() {
    let topology = topology(2, 4);
    let (lse, kubelets, lsr) = (cpus("1,9"), cpus("2,10"), cpus("4-5,12-13"));
    let pools = Pools::new(&topology, &cpus("0,8"), &lse.union(&kubelets), &lsr);
    assert_eq!(pools.exclusive, cpus("1-2,4-5,9-10,12-13"));
    assert_eq!(pools.shared, cpus("0,3,6-8,11,14-15"));
    assert_eq!(pools.allocatable, cpus("3,6-7,11,14-15"));
    assert_eq!(pools.be_shared, cpus("0,3-8,11-15"));
    assert_eq!(pools.shared_by_node[&0].cpus, cpus("0,3,8,11"));
    assert_eq!(
        (pools.shared_by_node[&1].socket, &pools.shared_by_node[&1].cpus),
        (1, &cpus("6-7,14-15"))
    );
    let own = cpus("4-5");
    assert_eq!(pools.cpus_of(Qos::Lsr, &own), &own);
    assert_eq!(pools.cpus_of(Qos::Ls, &own), &pools.shared);
    assert_eq!(pools.cpus_of(Qos::Be, &own), &pools.be_shared);
    let without_kubelet = Pools::new(&topology, &cpus("0,8"), &lse, &lsr);
    assert_eq!(without_kubelet.be_shared, cpus("0,2-8,10-15"));
}

#[test]
fn constrained_burst_is_one_nodes_pool_with_room_for_the_limit() {
    let topology = topology(2, 4);
    let nothing = CpuSet::new();
    let pools = Pools::new(&topology, &nothing, &cpus("1,9"), &nothing);
    let ask = |limit, strategy| constrained_burst(limit, strategy, &pools);
    assert_eq!(ask(5500, NumaAllocateStrategy::MostAllocated), Ok(0));
    assert_eq!(ask(5500, NumaAllocateStrategy::LeastAllocated), Ok(1));
    assert_eq!(ask(6001, NumaAllocateStrategy::MostAllocated), Ok(1));
    let refusal = Unsatisfied::NoSharedPool { wanted: 9, largest: 8 };
    assert_eq!(ask(8001, NumaAllocateStrategy::MostAllocated), Err(refusal));
}

#[test]
fn names_are_koordinators_and_lead_back() {
    assert_eq!(
        CpuBindPolicy::ALL.map(CpuBindPolicy::name)[1..3],
        ["FullPCPUs", "SpreadByPCPUs"]
    );
    for policy in CpuExclusivePolicy::ALL {
        assert_eq!(CpuExclusivePolicy::parse(policy.name()), Some(policy));
    }
    assert_eq!(Qos::parse("lse"), None);
    assert_eq!(
        CpuBindPolicy::Default.or(CpuBindPolicy::FullPcpus),
        CpuBindPolicy::FullPcpus
    );
    assert_eq!(
        CpuExclusivePolicy::None.or(CpuExclusivePolicy::PcpuLevel),
        CpuExclusivePolicy::None
    );
}

#[test]
fn a_host_of_1024_cpus_takes_milliseconds() {
    let topology = topology(8, 64);
    let host = HostTables::new(&topology);
    let usage = Usage {
        in_use: (0..64)
            .map(|cpu| held(&format!("{cpu}"), CpuExclusivePolicy::PcpuLevel))
            .collect(),
    };
    let available = usage.available(&topology.online());
    let mut request = request(777, CpuBindPolicy::SpreadByPcpus);
    request.exclusive = CpuExclusivePolicy::PcpuLevel;
    let started = std::time::Instant::now();
    for _ in 0..10 {
        assert_eq!(
            select_cpus(&host, &usage, &available, &request).unwrap().cpus.len(),
            777
        );
    }
    // Unoptimised and on a busy host; what is quadratic takes far longer.
    assert!(started.elapsed().as_secs() < 2, "{:?}", started.elapsed());
}
