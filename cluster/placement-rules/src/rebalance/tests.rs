use stelia_cpus::testing::Shape;
use stelia_koordinator::allocator::{AllocationRequest, HeldCpus, NumaTopologyAlignmentPolicy};
use stelia_koordinator::report::testing::{large, numa};
use stelia_koordinator::report::{Facts, PodAllocation};

use super::*;
use crate::testing::{published, uid, vm, vm_with};

/// Two NUMA nodes of four cores; steliad chooses, the first core is reserved. VMs by number, each with its CPUs.
fn node(vms: &[(u128, &str)]) -> Facts {
    let host = Shape {
        nodes: 2,
        cores: 4,
        threads: 2,
        interleaved: false,
    };
    let mut facts = large();
    facts.kubelet.cpu_policy = "none".to_owned();
    facts.topology = host.topology();
    facts.numa = numa(2);
    facts.reserved = "0-1".parse().unwrap();
    facts.kubelet.reserved = facts.reserved.clone();
    facts.allocations = vms
        .iter()
        .map(|(number, cpus)| PodAllocation {
            pod: uid(*number),
            name: None,
            cpus: cpus.parse().unwrap(),
            by_kubelet: false,
        })
        .collect();
    facts.exclusive = facts.allocations.iter().flat_map(|one| one.cpus.iter()).collect();
    facts.shared = facts.topology.online().difference(&facts.exclusive);
    let allocator = facts.allocator.as_mut().unwrap();
    allocator.policies.reserved = facts.reserved.clone();
    allocator.held = HeldCpus::default();
    facts
}

fn cluster(nodes: &[(&str, Facts)]) -> Cluster {
    let mut cluster = Cluster::default();
    for (name, facts) in nodes {
        cluster.put(name, published(facts).as_bytes()).unwrap();
    }
    cluster
}

fn resident(number: u128, cpus: u64, rebinds: bool, migrates: bool) -> Resident {
    Resident {
        uid: Uid(number),
        request: SharedRequest::new(vm(cpus)),
        rebinds,
        migrates,
    }
}

/// A pod of whole cores on one NUMA node.
fn single(cpus: u64) -> Request {
    let allocation = AllocationRequest {
        numa_topology_alignment_policy: Some(NumaTopologyAlignmentPolicy::SingleNumaNode),
        ..AllocationRequest::default()
    };
    vm_with(cpus, allocation, true)
}

#[test]
fn a_pod_that_fits_moves_nobody() {
    let mut cluster = cluster(&[("a", node(&[(1, "2-3")]))]);
    let answer = rebalance(&mut cluster, &Residents::new(), &vm(4), Limits::default(), &|_, _| true);
    assert_eq!((answer.fits.as_deref(), answer.plans.len()), (Some("a"), 0));
}

#[test]
fn a_rebind_on_the_node_is_better_than_a_migration() {
    // Four CPUs are free on each NUMA node, and the pod wants six of one.
    let mut cluster = cluster(&[("a", node(&[(1, "2-3"), (2, "12-15")])), ("b", node(&[(3, "2-15")]))]);
    let residents = Residents::from([(
        "a".to_owned(),
        vec![resident(1, 2, true, true), resident(2, 4, true, true)],
    )]);
    let answer = rebalance(&mut cluster, &residents, &single(6), Limits::default(), &|_, _| true);
    assert_eq!(answer.fits, None);
    let best = &answer.plans[0];
    let [one] = best.moves.as_slice() else {
        panic!("{best:?}")
    };
    assert_eq!(
        (one.how, one.to.as_str(), one.uid),
        (MoveKind::Rebind, "a", Uid(1)),
        "{best:?}"
    );
    assert_eq!(one.from_cpus.to_string(), "2-3");
    assert!(
        one.cpus.is_disjoint(&best.placement.cpus) && one.cpus.is_subset(&"8-11".parse().unwrap()),
        "{best:?}"
    );
    assert_eq!(best.placement.cpus.to_string(), "2-7");
    assert_eq!((best.gain.cpus, best.gain.moved_cpus, best.gain.copied), (6, 2, 0));
    assert_eq!(answer.search.passed_over, BTreeMap::from([(NO_VMS, 1)]));
    assert!(!answer.search.cut);
}

#[test]
fn where_nothing_is_left_on_the_node_a_vm_goes_to_another() {
    let full = node(&[(1, "2-5"), (2, "6-7"), (3, "8-15")]);
    let mut cluster = cluster(&[("a", full), ("b", node(&[(9, "2-11")]))]);
    let residents = Residents::from([(
        "a".to_owned(),
        vec![
            resident(1, 4, true, true),
            resident(2, 2, true, false),
            resident(3, 8, false, true),
        ],
    )]);
    // The pod wants six CPUs: b has four, a has none.
    let answer = rebalance(&mut cluster, &residents, &single(6), Limits::default(), &|_, _| true);
    assert_eq!(answer.plans, []);
    let answer = rebalance(&mut cluster, &residents, &vm(4), Limits::default(), &|_, _| true);
    assert_eq!(answer.fits.as_deref(), Some("b"));
    cluster.put("b", published(&node(&[(9, "2-9")])).as_bytes()).unwrap();
    let alone = Residents::from([("a".to_owned(), vec![resident(1, 4, false, true)])]);
    let mut wide = vm(4);
    wide.vm.as_mut().unwrap().allocation.numa_topology_alignment_policy =
        Some(NumaTopologyAlignmentPolicy::SingleNumaNode);
    // Taken up to a last core each.
    cluster.put("c", published(&node(&[(8, "2-15")])).as_bytes()).unwrap();
    assert!(
        rebalance(&mut cluster, &alone, &wide, Limits::default(), &|_, _| true)
            .fits
            .is_some()
    );
}

#[test]
fn a_migration_is_told_with_its_destination_and_its_memory() {
    // Two CPUs are free on a and four on b; the pod wants six.
    let mut cluster = cluster(&[("a", node(&[(1, "2-5"), (3, "8-15")])), ("b", node(&[(9, "2-11")]))]);
    let residents = Residents::from([("a".to_owned(), vec![resident(1, 4, false, true)])]);
    let answer = rebalance(&mut cluster, &residents, &single(6), Limits::default(), &|_, _| true);
    let [plan] = answer.plans.as_slice() else {
        panic!("{answer:?}")
    };
    let [one] = plan.moves.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(
        (one.how, one.to.as_str(), one.cpus.to_string().as_str()),
        (MoveKind::Migrate, "b", "12-15")
    );
    assert_eq!((one.memory, plan.gain.copied), (1 << 30, 1 << 30));
    assert_eq!(
        (plan.node.as_str(), plan.placement.cpus.to_string().as_str()),
        ("a", "2-7")
    );
    // Whoever must stay stays.
    let fixed = Residents::from([("a".to_owned(), vec![resident(1, 4, false, false)])]);
    assert_eq!(
        rebalance(&mut cluster, &fixed, &single(6), Limits::default(), &|_, _| true).plans,
        []
    );
}

#[test]
fn two_vms_that_go_to_one_node_both_find_room_there() {
    // Each of a's two VMs would fit on b, and both together do not.
    let a = node(&[(1, "2-5"), (2, "8-11"), (3, "12-15")]);
    let b = node(&[(9, "2-11")]);
    let mut cluster = cluster(&[("a", a), ("b", b)]);
    let residents = Residents::from([(
        "a".to_owned(),
        vec![resident(1, 4, false, true), resident(2, 4, false, true)],
    )]);
    let answer = rebalance(&mut cluster, &residents, &vm(10), Limits::default(), &|_, _| true);
    assert_eq!(answer.plans, []);
    cluster.put("b", published(&node(&[(9, "2-7")])).as_bytes()).unwrap();
    let answer = rebalance(&mut cluster, &residents, &vm(10), Limits::default(), &|_, _| true);
    let [plan] = answer.plans.as_slice() else {
        panic!("{answer:?}")
    };
    assert_eq!(plan.moves.len(), 2);
    assert!(plan.moves[0].cpus.is_disjoint(&plan.moves[1].cpus), "{plan:?}");
}

#[test]
fn a_search_that_is_cut_says_so() {
    let mut cluster = cluster(&[("a", node(&[(1, "2-5"), (3, "8-15")])), ("b", node(&[(9, "2-11")]))]);
    let residents = Residents::from([("a".to_owned(), vec![resident(1, 4, false, true)])]);
    let limits = Limits {
        tries: 0,
        ..Limits::default()
    };
    let answer = rebalance(&mut cluster, &residents, &single(6), limits, &|_, _| true);
    assert!(answer.search.cut && answer.plans.is_empty());
}

#[test]
fn what_the_scheduler_would_not_bind_is_neither_room_nor_a_plan() {
    let mut cluster = cluster(&[("a", node(&[(1, "2-3")])), ("b", node(&[(2, "2-5")]))]);
    let residents = Residents::from([
        ("a".to_owned(), vec![resident(1, 2, false, true)]),
        ("b".to_owned(), vec![resident(2, 4, false, true)]),
    ]);
    let mut asked = |binds: &Binds<'_>| rebalance(&mut cluster, &residents, &vm(4), Limits::default(), binds);
    let on_b = asked(&|node, _| node == "b");
    assert_eq!(on_b.fits.as_deref(), Some("b"));
    let nowhere = asked(&|_, _| false);
    assert_eq!((nowhere.fits, nowhere.plans), (None, Vec::new()));
    assert_eq!(nowhere.search.passed_over, BTreeMap::from([(REQUESTED, 2)]));
    // Memory is left on b once its VM has gone.
    let after_a_move = asked(&|node, departures| node == "b" && !departures.is_empty());
    let [plan] = after_a_move.plans.as_slice() else {
        panic!("{after_a_move:?}")
    };
    assert_eq!((plan.node.as_str(), plan.moves[0].to.as_str()), ("b", "a"));
}
