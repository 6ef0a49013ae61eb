//! What a scheduler chose, what kubelet's memory manager chose, and the node's defaults.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rstest::rstest;
use stelia_api::ErrorKind;
use stelia_cpus::testing::shapes;
use stelia_koordinator::allocator::{
    CpuBindPolicy, Exclusivity, NumaTopologyAlignmentPolicy, Qos, RequiredBind, Schedule,
};

use super::tests::{allot, cpus, empty, hold, node, request, requester};
use super::*;

/// The scheduler's word; "" for none.
fn scheduled(list: &str, nodes: &[u32]) -> AllocationRequest {
    AllocationRequest {
        schedule: Schedule {
            cpus: (!list.is_empty()).then(|| cpus(list)),
            nodes: (!nodes.is_empty()).then(|| nodes.iter().copied().collect()),
        },
        ..AllocationRequest::default()
    }
}

#[rstest]
#[case("2-3", &[])]
#[case("4-5", &[1])]
// What the node only prefers is the scheduler's to depart from.
#[case("1,6", &[])]
fn cpus_that_can_be_had_are_given_as_they_were_chosen(#[case] list: &str, #[case] nodes: &[u32]) {
    let request = scheduled(list, nodes);
    let (given, allocation) = allot(&request, &requester(2000), &empty(), &node()).unwrap();
    assert_eq!((given, allocation.cpus), (cpus(list), 2));
    assert!(
        allocation
            .explanation
            .contains(&format!("the scheduler chose the CPUs {list}")),
        "{allocation:?}"
    );
}

#[rstest]
#[case("2-4", &[], ErrorKind::CpusetMismatch, "3 CPUs")]
#[case("2,8", &[], ErrorKind::NotAllocated, "8 are not online")]
#[case("0,2", &[], ErrorKind::NotAllocated, "0 are reserved")]
#[case("6-7", &[], ErrorKind::NotAllocated, "7 are not free")]
#[case("2-3", &[1], ErrorKind::CpusetMismatch, "NUMA nodes 1")]
#[case("", &[7], ErrorKind::NotAllocated, "this host has 0,1")]
fn cpus_that_cannot_be_had_are_refused_with_the_reason(
    #[case] list: &str,
    #[case] nodes: &[u32],
    #[case] kind: ErrorKind,
    #[case] told: &str,
) {
    let mut host = empty();
    let other = allot(&scheduled("7", &[]), &requester(1000), &host, &node()).unwrap();
    hold(&mut host, 1, other);
    let refusal = allot(&scheduled(list, nodes), &requester(2000), &host, &node()).unwrap_err();
    assert_eq!(refusal.kind, kind, "{refusal}");
    assert!(refusal.text.contains(told), "{refusal}");
    // No time makes it true.
    assert!(!refusal.may_pass);
}

#[test]
fn what_is_required_is_required_of_a_scheduler_too() {
    let kind = |request: &AllocationRequest, node: &AllocatorPolicies| {
        allot(request, &requester(2000), &empty(), node).map_err(|refusal| refusal.kind)
    };
    let whole = AllocatorPolicies {
        required: RequiredBind::FullPcpusOnly,
        ..node()
    };
    let single = AllocatorPolicies {
        alignment: NumaTopologyAlignmentPolicy::SingleNumaNode,
        ..node()
    };
    let restricted = AllocatorPolicies {
        alignment: NumaTopologyAlignmentPolicy::Restricted,
        ..node()
    };
    assert_eq!(kind(&scheduled("3-4", &[]), &whole), Err(ErrorKind::NotAllocated));
    assert!(kind(&scheduled("2-3", &[]), &whole).is_ok());
    assert!(kind(&scheduled("3,6", &[]), &node()).is_ok());
    for node in [&single, &restricted] {
        assert_eq!(kind(&scheduled("3-4", &[]), node), Err(ErrorKind::NotAllocated));
        assert_eq!(kind(&scheduled("", &[0, 1]), node), Err(ErrorKind::NotAllocated));
    }
    // The pod's own word counts as the node's does.
    let own = AllocationRequest {
        required_cpu_bind_policy: Some(CpuBindPolicy::SpreadByPcpus),
        ..scheduled("2-3", &[])
    };
    assert_eq!(kind(&own, &node()), Err(ErrorKind::NotAllocated));
    let own = AllocationRequest {
        required_cpu_bind_policy: Some(CpuBindPolicy::SpreadByPcpus),
        ..scheduled("1,3", &[])
    };
    assert!(kind(&own, &node()).is_ok());
    assert_eq!(kind(&own, &whole), Err(ErrorKind::NotAllocated));
}

#[test]
fn the_nodes_that_a_scheduler_named_are_where_cpus_and_pools_are_taken() {
    let given = |request: &AllocationRequest| allot(request, &requester(2000), &empty(), &node());
    assert_eq!(given(&scheduled("", &[1])).unwrap().0, cpus("4-5"));
    // Each of two gives its part.
    assert_eq!(given(&scheduled("", &[0, 1])).unwrap().0.len(), 2);
    let of_class = |qos, nodes: &[u32]| AllocationRequest {
        qos: Some(qos),
        ..scheduled("", nodes)
    };
    let pool = |nodes: &[u32]| given(&of_class(Qos::Ls, nodes)).map(|(_, one)| one.numa_node);
    assert_eq!(pool(&[1]), Ok(Some(1)));
    // All of them are the pool of all.
    assert_eq!(pool(&[0, 1]), Ok(None));
    assert_eq!(pool(&[2]).map_err(|refusal| refusal.kind), Err(ErrorKind::NotAllocated));
    let be = given(&of_class(Qos::Be, &[1])).unwrap_err();
    assert_eq!(be.kind, ErrorKind::NotAllocated);
    let own = AllocationRequest {
        qos: Some(Qos::Ls),
        ..scheduled("2-3", &[])
    };
    assert_eq!(given(&own).unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn cpus_come_from_where_kubelets_memory_manager_bound_the_memory() {
    let memory = |policy, limit: u64, nodes: &[u32]| {
        let requester = Requester {
            memory: Some(nodes.iter().copied().collect()),
            ..requester(limit)
        };
        let request = AllocationRequest {
            numa_topology_alignment_policy: Some(policy),
            ..AllocationRequest::default()
        };
        allot(&request, &requester, &empty(), &node())
    };
    use NumaTopologyAlignmentPolicy::{BestEffort, None, Restricted, SingleNumaNode};
    for policy in [BestEffort, Restricted, SingleNumaNode] {
        let (given, allocation) = memory(policy, 2000, &[1]).unwrap();
        assert_eq!(given, cpus("4-5"), "{allocation:?}");
        assert!(
            allocation.explanation[1].contains("memory comes from (1)"),
            "{allocation:?}"
        );
    }
    // Node 0 comes first otherwise.
    assert_eq!(memory(None, 2000, &[1]).unwrap().0, cpus("2-3"));
    // Five are more than node 1 has.
    assert_eq!(memory(BestEffort, 5000, &[1]).unwrap().0.len(), 5);
    for policy in [Restricted, SingleNumaNode] {
        let refusal = memory(policy, 5000, &[1]).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::NotAllocated);
        assert!(refusal.text.contains("its memory comes from NUMA nodes 1"), "{refusal}");
    }
}

#[test]
fn a_numa_node_with_whole_cores_comes_before_one_where_others_have_halves() {
    let mut host = empty();
    // 1 and 2-3 are free on node 0 (0 is reserved); after this 1 and 3 are, each with a neighbour.
    let half = allot(&scheduled("2", &[]), &requester(1000), &host, &node()).unwrap();
    hold(&mut host, 1, half);
    let (given, _) = allot(&AllocationRequest::default(), &requester(2000), &host, &node()).unwrap();
    assert_eq!(given, cpus("4-5"), "node 0 has two as well, and the fewest");
}

#[test]
fn a_numa_node_without_the_company_to_be_avoided_comes_first() {
    let alone = |exclusive| AllocationRequest {
        cpu_exclusive_policy: Some(exclusive),
        ..request(Qos::Lse)
    };
    let mut host = empty();
    let policy = CpuExclusivePolicy::NumaNodeLevel;
    let first = allot(&alone(policy), &requester(1000), &host, &node()).unwrap();
    hold(&mut host, 1, first);
    let second = allot(&alone(policy), &requester(1000), &host, &node()).unwrap();
    assert_eq!(second.1.exclusivity, Exclusivity::Honored, "{:?}", second.1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn by_default_no_two_instances_of_whole_cores_share_one(
        shape in shapes(), wants in proptest::collection::vec((1u64..4, any::<bool>()), 1..10),
    ) {
        let mut host = empty();
        host.topology = shape.topology();
        let threads = stelia_koordinator::allocator::HostTables::new(&host.topology).threads() as u64;
        for (number, (cores, ends)) in wants.iter().enumerate() {
            let Ok(answer) = allot(&AllocationRequest::default(), &requester(1000 * cores * threads), &host, &node()) else { continue };
            if *ends && !host.instances.is_empty() {
                host.instances.pop_first();
            }
            hold(&mut host, number, answer);
        }
        let core = |cpu: u32| (host.topology.cpus[&cpu].package, host.topology.cpus[&cpu].core);
        let whole = |cpus: &CpuSet| stelia_koordinator::allocator::HostTables::new(&host.topology).whole_cores(cpus) == *cpus;
        let mut seen = BTreeSet::new();
        for instance in host.instances.values() {
            let exclusive = &instance.record.exclusive;
            let cores: BTreeSet<(u32, u32)> = exclusive.iter().map(core).collect();
            // A core with a sibling offline or reserved is not a whole core.
            if whole(exclusive) {
                prop_assert!(seen.is_disjoint(&cores), "{} shares a core", exclusive);
            }
            seen.extend(cores);
        }
    }
}
