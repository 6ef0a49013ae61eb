//! Nodes on which steliad chooses the CPUs.

use proptest::option;
use proptest::sample::select;
use stelia_koordinator::allocator::Allocation;
use stelia_koordinator::report::{Kubelet, testing::numa};

use super::*;

fn any_policies() -> impl Strategy<Value = AllocatorPolicies> {
    let exclusive = CpuExclusivePolicy::ALL;
    let policies = (
        select(vec![Qos::Lse, Qos::Lsr]),
        select(vec![CpuBindPolicy::FullPcpus, CpuBindPolicy::SpreadByPcpus]),
        select(RequiredBind::ALL.to_vec()),
        select(exclusive.to_vec()),
        select(NumaAllocateStrategy::ALL.to_vec()),
        select(NumaTopologyAlignmentPolicy::ALL.to_vec()),
    );
    policies.prop_map(
        |(qos, bind, required, exclusive, strategy, alignment)| AllocatorPolicies {
            source: CpuSource::Steliad,
            reserved: CpuSet::new(),
            qos,
            bind,
            required,
            exclusive,
            strategy,
            alignment,
        },
    )
}

fn any_allocation() -> impl Strategy<Value = AllocationRequest> {
    let options = (
        option::of(select(Qos::ALL.to_vec())),
        option::of(select(CpuBindPolicy::ALL.to_vec())),
        option::of(select(CpuExclusivePolicy::ALL.to_vec())),
        option::of(select(NumaTopologyAlignmentPolicy::ALL.to_vec())),
    );
    options.prop_map(|(qos, bind, exclusive, alignment)| AllocationRequest {
        qos,
        cpu_bind_policy: bind,
        cpu_exclusive_policy: exclusive,
        numa_topology_alignment_policy: alignment,
        ..AllocationRequest::default()
    })
}

/// With nothing allocated.
fn allocator(policies: AllocatorPolicies) -> Allocator {
    Allocator {
        policies,
        held: HeldCpus::default(),
        lsr: CpuSet::new(),
    }
}

/// A node on which steliad allocates, and its kubelet has the policies `none`.
fn empty_of(host: Shape, policies: AllocatorPolicies) -> Facts {
    let topology = host.topology();
    let reserved = topology.siblings(0);
    Facts {
        numa: numa(host.nodes),
        shared: topology.online(),
        reserved: reserved.clone(),
        exclusive: CpuSet::new(),
        allocations: Vec::new(),
        kubelet: Kubelet {
            cpu_policy: "none".to_owned(),
            ..Kubelet::default()
        },
        allocator: Some(allocator(AllocatorPolicies { reserved, ..policies })),
        topology,
        ..stelia_koordinator::report::testing::facts()
    }
}

/// What the daemon reports once an instance has these CPUs.
fn with_instance(facts: &Facts, number: u128, cpus: &CpuSet, allocation: &Allocation) -> Facts {
    let mut facts = facts.clone();
    if cpus.is_empty() {
        return facts;
    }
    testing::allocate(&mut facts, uid(number), cpus);
    let allocator = facts.allocator.as_mut().unwrap();
    if allocation.qos == Qos::Lsr {
        allocator.lsr.union_with(cpus);
    }
    match allocation.exclusive {
        CpuExclusivePolicy::PcpuLevel => allocator.held.pcpu_level.union_with(cpus),
        CpuExclusivePolicy::NumaNodeLevel => allocator.held.numa_node_level.union_with(cpus),
        CpuExclusivePolicy::Default | CpuExclusivePolicy::None => {}
    }
    facts
}

fn requester(cpus: u64) -> Requester {
    Requester {
        class: QosClass::Guaranteed,
        limit_milli: Some(cpus * 1000),
        bound: true,
        memory: None,
        devices: Default::default(),
    }
}

proptest! {
    #![proptest_config(cases(96))]

    /// VMs are placed one after the other. Each gets what the allocator itself gives on the full description, and what is told to the
    /// node is taken there whatever the order in which the VMs register; the reservations leave what the next object says.
    #[test]
    fn where_steliad_chooses_the_answer_is_the_allocators(
        host in any_host(), policies in any_policies(),
        asked in vec((1u64..9, any_allocation()), 1..6), backwards in any::<bool>(),
    ) {
        let empty = empty_of(host, policies);
        let (shape, described) = read(&empty);
        let (mut facts, mut arrivals, mut told) = (empty.clone(), Vec::new(), Vec::new());
        for (number, (cpus, allocation)) in asked.into_iter().enumerate() {
            let number = number as u128 + 1;
            let request = testing::vm_with(cpus, allocation.clone(), true);
            let now = forecast(&shape, described.clone(), arrivals.clone());
            let answer = evaluate(&shape, &now, &request);
            match facts.allocator_node().unwrap().allot(&allocation, &requester(cpus)) {
                Err(refusal) => {
                    let answer = answer.unwrap_err();
                    prop_assert_eq!((answer.name, answer.text), (refusal.kind.name(), refusal.to_string()));
                }
                Ok((own, allotted)) => {
                    // Pods without CPUs of their own are not told any, so they depend on the order.
                    let Ok(answer) = answer else {
                        prop_assert!(told.len() < arrivals.len() || own.is_empty());
                        continue;
                    };
                    prop_assert_eq!(&answer.outcome.cpus, &own);
                    facts = with_instance(&facts, number, &own, &allotted);
                    arrivals.push(coming(request, answer.assigned_cpus.clone()));
                    if let Some(cpus) = answer.assigned_cpus {
                        told.push((number, allocation, cpus));
                    }
                }
            }
        }
        let after = forecast(&shape, described, arrivals).expected;
        prop_assert_eq!(after, read(&facts).1.available);
        if backwards {
            told.reverse();
        }
        let mut node = empty;
        for (number, allocation, cpus) in told {
            let mut wanted = allocation;
            wanted.schedule.cpus = Some(cpus.clone());
            let (own, allotted) = node.allocator_node().unwrap().allot(&wanted, &requester(cpus.len() as u64)).unwrap();
            prop_assert_eq!(&own, &cpus);
            node = with_instance(&node, number, &own, &allotted);
        }
    }
}

#[test]
fn kubelet_beside_the_allocator_knows_nothing_of_steliads_cpus() {
    let mut facts = stelia_koordinator::report::testing::facts();
    facts.allocator = Some(allocator(AllocatorPolicies {
        source: CpuSource::Steliad,
        reserved: "0".parse().unwrap(),
        ..AllocatorPolicies::default()
    }));
    // Kubelet has 2-3 given away and takes 4-5 for free, which steliad's instance has.
    let (shape, described) = read(&facts);
    let forecast = forecast(&shape, described, Vec::new());
    let refusal = evaluate(&shape, &forecast, &testing::vm(2)).unwrap_err();
    assert_eq!(refusal.name, "CpusetConflict");
    assert!(refusal.text.contains("4-5"), "{refusal}");
    // For what has no CPUs of kubelet's the allocator chooses.
    let mut vm = testing::vm(1);
    vm.vm.as_mut().unwrap().allocation.qos = Some(Qos::Ls);
    vm.pod = testing::pod(1500, 1);
    let placement = evaluate(&shape, &forecast, &vm).unwrap();
    let qos = placement.outcome.allocation.map(|allocation| allocation.qos);
    assert_eq!((qos, placement.assigned_cpus), (Some(Qos::Ls), None));
}

/// The CPUs of a promise stay its own, where the node refuses the pod too; another scheduler's pod takes only what is free.
#[test]
fn nobody_is_displaced_from_what_it_was_promised() {
    let (shape, described) = read(&empty_of(host(2, 8, 2), AllocatorPolicies::default()));
    let arrival = |size: u64, cpus: &str, is_ours: bool| Arrival {
        is_late: !is_ours,
        is_ours,
        ..coming(testing::vm(size), Some(cpus.parse().unwrap()))
    };
    let with = |arrivals: Vec<Arrival>| NodeForecast::new(&shape, described.available.clone(), arrivals);
    let both = with(vec![arrival(2, "2-3", false), arrival(4, "2-5", true)]);
    assert_eq!(both.arrivals[0].cpus, Some("2-5".parse().unwrap()));
    assert_eq!((both.arrivals[1].cpus.as_ref(), both.arrivals.len()), (None, 2));
    assert_eq!(both.expected.free.len(), described.available.free.len() - 6);
    // Its author made it too large for the node.
    let refused = with(vec![arrival(1000, "2-9", false), arrival(1000, "2-5", true)]);
    assert_eq!(refused.arrivals, []);
    for left in [&refused.expected.free, &refused.published.free] {
        assert_eq!(*left, described.available.free.difference(&"2-9".parse().unwrap()));
    }
}
