use kubelet_planner::manifest::in_words;
use proptest::prelude::*;
use stelia_cpus::testing::{Shape, shapes};
use stelia_koordinator::allocator::{
    AllocationRequest, AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource, HeldCpus,
};
use stelia_koordinator::report::Allocator;
use stelia_koordinator::report::testing::facts;

use super::NumaTopologyAlignmentPolicy as Alignment;
use super::*;

/// A node of this shape of which a core is reserved and some CPUs are taken; kubelet chooses, with these policies.
fn kubelets(shape: Shape, taken: &CpuSet, policy: &str, whole: bool) -> Facts {
    let topology = shape.topology();
    let reserved = topology.siblings(0);
    let exclusive = taken.intersection(&topology.online()).difference(&reserved);
    let mut node = Facts {
        shared: topology.online().difference(&exclusive),
        numa: stelia_koordinator::report::testing::numa(shape.nodes),
        reserved: reserved.clone(),
        exclusive,
        allocations: Vec::new(),
        topology,
        ..facts()
    };
    node.kubelet.reserved = reserved;
    node.kubelet.cpu_options = [("full-pcpus-only".to_owned(), whole.to_string())].into();
    node.kubelet.alignment.as_mut().unwrap().policy = policy.to_owned();
    node.kubelet.alignment.as_mut().unwrap().scope = "container".to_owned();
    node
}

/// So many, with no reason why not one more.
fn only(count: u64) -> Fits {
    Fits {
        count,
        ..Fits::default()
    }
}

fn steliads(mut node: Facts, alignment: Alignment, required: RequiredBind) -> Facts {
    node.allocator = Some(Allocator {
        policies: AllocatorPolicies {
            source: CpuSource::Steliad,
            reserved: node.reserved.clone(),
            alignment,
            required,
            ..AllocatorPolicies::default()
        },
        held: HeldCpus::default(),
        lsr: CpuSet::new(),
    });
    node
}

fn chooser(facts: &Facts) -> Chooser {
    match facts.allocator_node() {
        Ok(node) => Chooser::Steliad(Box::new((facts.clone(), node))),
        Err(_) => Chooser::Kubelet(Box::new(Subject::described(facts).unwrap())),
    }
}

fn pod_request(cpus: u64) -> PodRequest {
    let words = format!("cpus={cpus},memory=1Mi");
    PodRequest::in_words(&[words], &AllocationRequest::default()).unwrap()
}

const SMALL: Shape = Shape {
    nodes: 2,
    cores: 4,
    threads: 2,
    interleaved: true,
};

#[test]
fn the_largest_vm_is_of_one_numa_node_where_it_must_be() {
    // Node 0: 0-3,8-11; node 1: 4-7,12-15. CPUs 0 and 8 are reserved.
    let taken: CpuSet = "1,5-6".parse().unwrap();
    let largest = |policy, whole| chooser(&kubelets(SMALL, &taken, policy, whole)).largest();
    // Free are 2-3,9-11 and 4,7,12-15.
    assert_eq!(largest("single-numa-node", false), Some(6));
    // kubelet's full-pcpus-only wants the CPUs of whole cores in number, and takes broken ones where there are no others.
    assert_eq!(largest("single-numa-node", true), Some(6));
    assert_eq!(largest("none", false), Some(11));
    assert_eq!(largest("none", true), Some(10));
    let mut none = kubelets(SMALL, &taken, "none", false);
    none.kubelet.cpu_policy = "none".to_owned();
    none.exclusive = CpuSet::new();
    assert_eq!(chooser(&none).largest(), None);
}

#[test]
fn a_vm_of_one_cpu_a_core_may_need_two_nodes_where_its_cpus_alone_would_not() {
    let shape = Shape {
        interleaved: false,
        ..SMALL
    };
    // Free are 2-7 of node 0 and 9,11-15 of node 1: four cores of one node are too few for seven CPUs.
    let node = kubelets(shape, &"8,10".parse().unwrap(), "none", false);
    let node = steliads(node, Alignment::Restricted, RequiredBind::SpreadByPcpus);
    assert_eq!(chooser(&node).largest(), Some(7));
}

#[test]
fn the_allocator_is_filled_as_instances_would_register() {
    let empty = || kubelets(SMALL, &CpuSet::new(), "none", false);
    let node = steliads(empty(), Alignment::SingleNumaNode, RequiredBind::FullPcpusOnly);
    let fits = chooser(&node).until_full(&pod_request(4), 256);
    // One on node 0, where a core is reserved, and two on node 1.
    assert_eq!(fits.count, 3);
    assert!(fits.then.unwrap().what.contains("NotAllocated"));
    assert_eq!(chooser(&node).until_full(&pod_request(4), 2), only(2));

    // Whoever avoids others of its kind on a core gets a core of its own.
    let spread = steliads(empty(), Alignment::None, RequiredBind::None);
    let mut alone = pod_request(1);
    alone.allocation.cpu_bind_policy = Some(CpuBindPolicy::SpreadByPcpus);
    alone.allocation.cpu_exclusive_policy = Some(CpuExclusivePolicy::PcpuLevel);
    let fits = chooser(&spread).until_full(&alone, 256).count;
    assert!((7..=14).contains(&fits), "{fits}");

    // On a shared pool nothing is used up.
    let mut shared = pod_request(1);
    shared.allocation.qos = Some(Qos::Ls);
    assert_eq!(chooser(&spread).until_full(&shared, 9), only(9));
}

#[test]
fn a_refusal_is_in_the_words_of_who_chooses() {
    let node = kubelets(SMALL, &CpuSet::new(), "single-numa-node", true);
    let refusal = chooser(&node).admit(&pod_request(3)).unwrap_err();
    assert_eq!(refusal.what, "kubelet would reject it: SMTAlignmentError");
    let refusal = chooser(&node).admit(&pod_request(10)).unwrap_err();
    assert_eq!(refusal.what, "kubelet would reject it: TopologyAffinityError");
    assert!(refusal.detail.contains("no NUMA node has"), "{}", refusal.detail);
    let node = steliads(node, Alignment::SingleNumaNode, RequiredBind::None);
    let refusal = chooser(&node).admit(&pod_request(10)).unwrap_err();
    assert_eq!(refusal.what, "steliad would refuse it: NotAllocated");
    let mut burstable = pod_request(2);
    burstable.pod = in_words(&["cpus=2".to_owned()]).unwrap();
    burstable.allocation.qos = Some(Qos::Lse);
    let refusal = chooser(&node).admit(&burstable).unwrap_err();
    assert_eq!(refusal.what, "steliad would refuse it: NotGuaranteed");
}

#[test]
fn amounts_answer_with_the_most_that_they_allow() {
    let zones = |policy: &str| {
        Chooser::Amounts(Zones {
            free: [(0, 5), (7, 9)].into(),
            policy: Some(policy.to_owned()),
        })
    };
    let single = zones("single-numa-node");
    assert_eq!(single.largest(), Some(9));
    assert_eq!(single.until_full(&pod_request(4), 256).count, 3);
    let detail = single.admit(&pod_request(10)).unwrap_err().detail;
    assert!(detail.contains("5 on 0, 9 on 7"), "{detail}");
    let any = zones("best-effort");
    assert_eq!((any.largest(), any.until_full(&pod_request(4), 2)), (Some(14), only(2)));
    assert!(any.admit(&pod_request(14)).is_ok());
    // A pod without CPUs of its own fits wherever requests do.
    assert_eq!(single.until_full(&pod_request(0), 7).count, 7);
}

#[test]
fn absurd_nodes_are_refused_and_nothing_overflows() {
    let mut node = kubelets(SMALL, &CpuSet::new(), "single-numa-node", true);
    // Seventeen NUMA nodes, with ids as high as they go.
    for (number, cpu) in &mut node.topology.cpus {
        cpu.node = u32::MAX - number;
    }
    assert!(Subject::described(&node).is_err() || chooser(&node).largest().is_some());
    let huge = Chooser::Amounts(Zones {
        free: (0..1024).map(|id| (id, u64::MAX)).collect(),
        policy: None,
    });
    assert_eq!(huge.largest(), Some(u64::MAX));
    assert_eq!(huge.until_full(&pod_request(3), u64::MAX).count, u64::MAX / 3);
    let node = kubelets(SMALL, &CpuSet::new(), "none", false);
    assert!(chooser(&node).admit(&pod_request(1 << 40)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// What is found from the top on is what trying every size finds.
    #[test]
    fn the_largest_vm_is_the_largest_that_is_admitted(
        shape in shapes().prop_filter("small", |shape| shape.nodes <= 4 && shape.nodes * shape.cores * shape.threads <= 64),
        taken in proptest::collection::btree_set(0u32..64, 0..40),
        policy in prop_oneof![Just("none"), Just("best-effort"), Just("restricted"), Just("single-numa-node")],
        whole in any::<bool>(),
        alignment in proptest::sample::select(Alignment::ALL.to_vec()),
        required in proptest::sample::select(RequiredBind::ALL.to_vec()),
        allocates in any::<bool>(),
    ) {
        let node = kubelets(shape, &taken.into_iter().collect(), policy, whole);
        let node = if allocates { steliads(node, alignment, required) } else { node };
        let chooser = chooser(&node);
        let all = node.topology.cpus.len() as u64;
        let tried = (1..=all).rev().find(|count| {
            let mut pod_request = pod_request(*count);
            pod_request.allocation.qos = allocates.then_some(Qos::Lse);
            chooser.admit(&pod_request).is_ok()
        });
        prop_assert_eq!(chooser.largest(), Some(tried.unwrap_or(0)));
    }
}
