use proptest::prelude::*;
use rstest::rstest;
use stelia_api::{Error, ErrorKind};
use stelia_cpus::NodeSet;
use stelia_cpus::testing::shapes;
use stelia_koordinator::allocator::{
    CpuBindPolicy, CpuExclusivePolicy, CpuSource, Exclusivity, NumaAllocateStrategy, NumaTopologyAlignmentPolicy,
    Pools, Qos, RequiredBind, RunningContainer, leftover,
};
use stelia_kubelet::{CpuManagerState, PodUid, QosClass};
use stelia_settings::Policies;

use super::*;
use crate::testing::{instance, snapshot};
use crate::{Derived, Instance, Snapshot};

pub(super) fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn pod(number: usize) -> PodUid {
    PodUid::parse(&format!("{number:08}-0000-4000-8000-000000000000")).unwrap()
}

/// A host of 8 CPUs, 2 NUMA nodes of 2 cores of 2 threads, without kubelet.
pub(super) fn empty() -> Snapshot {
    let mut empty = snapshot(vec![]);
    empty.source = CpuSource::Steliad;
    empty.kubelet = Ok(CpuManagerState::absent());
    empty
}

fn facts(snapshot: &Snapshot, node: &AllocatorPolicies) -> Derived {
    let policies = Policies {
        allocator: node.clone(),
        ..Policies::default()
    };
    Derived::of(snapshot, &policies)
}

fn pools(snapshot: &Snapshot) -> Option<Pools> {
    facts(snapshot, &node()).pools().cloned()
}

/// As the engine asks it.
pub(super) fn allot(
    request: &AllocationRequest,
    requester: &Requester,
    snapshot: &Snapshot,
    node: &AllocatorPolicies,
) -> Result<(CpuSet, Allocation), Error> {
    crate::allocator::allot(request, requester, snapshot, &facts(snapshot, node), node)
}

pub(super) fn node() -> AllocatorPolicies {
    AllocatorPolicies {
        source: CpuSource::Steliad,
        reserved: cpus("0"),
        ..AllocatorPolicies::default()
    }
}

/// A Guaranteed pod that speaks for itself.
pub(super) fn requester(limit_milli: u64) -> Requester {
    Requester {
        class: QosClass::Guaranteed,
        limit_milli: Some(limit_milli),
        bound: true,
        memory: None,
        devices: Default::default(),
    }
}

/// The NUMA nodes of devices decide between equally good ones, and only there.
#[test]
fn cpus_are_at_the_devices_and_that_is_explained() {
    let told = |snapshot: &Snapshot, cpus: u64, devices: &[u32]| {
        let requester = Requester {
            devices: devices.iter().copied().collect(),
            ..requester(cpus * 1000)
        };
        let (given, allocation) = allot(&AllocationRequest::default(), &requester, snapshot, &node()).unwrap();
        (given.to_string(), allocation.explanation[1].clone())
    };
    let mut host = empty();
    // NUMA node 0 has three free CPUs, and 1 has four.
    assert_eq!(told(&host, 2, &[]).0, "2-3");
    let (given, why) = told(&host, 2, &[1]);
    assert_eq!(given, "4-5");
    assert!(why.ends_with("NUMA nodes 1, with those of its devices (1)"), "{why}");
    let (_, why) = told(&host, 2, &[0, 1]);
    assert!(why.ends_with("some of those of its devices (0,1)"), "{why}");
    // More CPUs than a NUMA node has.
    assert_eq!(told(&host, 6, &[1]).0, told(&host, 6, &[]).0);
    let near = Requester {
        devices: [1].into(),
        ..requester(4000)
    };
    let taken = allot(&AllocationRequest::default(), &near, &host, &node()).unwrap();
    hold(&mut host, 1, taken);
    let (given, why) = told(&host, 2, &[1]);
    assert_eq!(given, "2-3");
    assert!(why.ends_with("at 1, where too few are free"), "{why}");
}

/// The reason is the rule that decided.
#[test]
fn what_kept_cpus_from_the_devices_is_named() {
    let told = |snapshot: &Snapshot, asked: &AllocationRequest, requester: &Requester, given: &str| {
        let (cpus, allocation) = allot(asked, requester, snapshot, &node()).unwrap();
        assert_eq!(cpus.to_string(), given);
        let why = allocation.explanation[1].clone();
        why.split_once("; its devices are at ").unwrap().1.to_owned()
    };
    let near = |node: u32| Requester {
        devices: [node].into(),
        ..requester(2000)
    };
    let asked = AllocationRequest::default();
    // Both NUMA nodes have enough free CPUs, and the memory comes from the other one.
    let bound = Requester {
        memory: Some([0].into()),
        ..near(1)
    };
    assert_eq!(
        told(&empty(), &asked, &bound, "2-3"),
        "1, from which its memory does not come"
    );

    // NUMA node 0 has two free CPUs, of two cores.
    let mut halves = empty();
    let (_, allocation) = allot(&asked, &requester(2000), &halves, &node()).unwrap();
    hold(&mut halves, 1, (cpus("2"), allocation.clone()));
    let why = told(&halves, &asked, &near(0), "4-5");
    assert_eq!(
        why,
        format!(
            "0, where too few are free for the bind policy {}",
            allocation.bind.name()
        )
    );

    let mut shared = empty();
    let alone = AllocationRequest {
        cpu_exclusive_policy: Some(CpuExclusivePolicy::NumaNodeLevel),
        ..AllocationRequest::default()
    };
    let first = allot(&alone, &near(0), &shared, &node()).unwrap();
    hold(&mut shared, 1, first);
    let one = Requester {
        devices: [0].into(),
        ..requester(1000)
    };
    let spread = AllocationRequest {
        cpu_bind_policy: Some(CpuBindPolicy::SpreadByPcpus),
        ..alone
    };
    let why = told(&shared, &spread, &one, "4");
    assert!(
        why.starts_with("0, where the exclusive policy ") && why.ends_with(" could not be kept"),
        "{why}"
    );
}

/// Take the answer as an instance of the host.
pub(super) fn hold(snapshot: &mut Snapshot, number: usize, (exclusive, allocation): (CpuSet, Allocation)) {
    let base = instance();
    snapshot.put(Instance {
        record: stelia_model::record::Record {
            pod: pod(number),
            entry: exclusive.clone(),
            exclusive,
            allocation: Some(allocation),
            ..base.record
        },
        ..base
    });
}

pub(super) fn request(qos: Qos) -> AllocationRequest {
    AllocationRequest {
        qos: Some(qos),
        ..AllocationRequest::default()
    }
}

#[test]
fn without_a_word_a_pod_gets_its_limit_in_the_nodes_way() {
    let (exclusive, allocation) = allot(&AllocationRequest::default(), &requester(2000), &empty(), &node()).unwrap();
    // 0 is reserved; a whole core of the NUMA node that has the fewest free.
    assert_eq!(exclusive, cpus("2-3"));
    assert_eq!((allocation.qos, allocation.cpus), (Qos::Lse, 2));
    assert_eq!(allocation.bind, CpuBindPolicy::FullPcpus);
    assert_eq!(allocation.alignment, NumaTopologyAlignmentPolicy::BestEffort);
    assert!(allocation.explanation[0].contains("0: 1-3 (3 CPUs)"), "{allocation:?}");
}

#[rstest]
#[case(QosClass::Burstable, Qos::Lse, Some(ErrorKind::NotGuaranteed))]
#[case(QosClass::Burstable, Qos::Ls, None)]
#[case(QosClass::BestEffort, Qos::Ls, Some(ErrorKind::NotGuaranteed))]
#[case(QosClass::BestEffort, Qos::Be, None)]
fn a_pods_word_is_bound_by_its_class_and_an_administrators_is_not(
    #[case] class: QosClass,
    #[case] qos: Qos,
    #[case] refused: Option<ErrorKind>,
) {
    let requester = Requester {
        class,
        ..requester(2000)
    };
    let answer = allot(&request(qos), &requester, &empty(), &node());
    assert_eq!(answer.err().map(|refusal| refusal.kind), refused);
    let administrator = Requester {
        bound: false,
        ..requester.clone()
    };
    assert!(allot(&request(qos), &administrator, &empty(), &node()).is_ok());
    // And without a word it is what Kubernetes calls it.
    let own = allot(&AllocationRequest::default(), &requester, &empty(), &node())
        .unwrap()
        .1
        .qos;
    assert_eq!(own, if class == QosClass::Burstable { Qos::Ls } else { Qos::Be });
}

#[test]
fn the_number_of_cpus_is_bound_by_the_limit() {
    let ask = |number: Option<u32>, limit: Option<u64>, bound: bool| {
        let request = AllocationRequest {
            cpus: number,
            ..AllocationRequest::default()
        };
        let requester = Requester {
            limit_milli: limit,
            bound,
            ..requester(0)
        };
        let answer = allot(&request, &requester, &empty(), &node());
        answer.map(|(cpus, _)| cpus.len()).map_err(|refusal| {
            assert!(!refusal.may_pass, "nothing kubelet writes changes it: {refusal}");
            refusal.kind
        })
    };
    assert_eq!(ask(Some(1), Some(2000), true), Ok(1));
    assert_eq!(ask(Some(3), Some(2000), true), Err(ErrorKind::InvalidArgument));
    assert_eq!(ask(Some(3), Some(2000), false), Ok(3));
    assert_eq!(ask(None, Some(1500), true), Err(ErrorKind::NotGuaranteed));
    assert_eq!(ask(Some(1), None, true), Err(ErrorKind::NotGuaranteed));
    assert_eq!(ask(None, None, false), Err(ErrorKind::InvalidArgument));
    assert_eq!(ask(Some(0), None, false), Err(ErrorKind::InvalidArgument));
    assert_eq!(ask(Some(8), None, false), Err(ErrorKind::NotAllocated));
}

#[test]
fn what_kubelet_holds_or_left_behind_is_never_given() {
    let mut taken = snapshot(vec![]);
    taken.source = CpuSource::Steliad;
    taken.leftover = cpus("4-5");
    let administrator = Requester {
        bound: false,
        ..requester(0)
    };
    let all = AllocationRequest {
        cpus: Some(3),
        ..AllocationRequest::default()
    };
    // kubelet's entry has 2-3, a container it left has 4-5, 0 is reserved.
    assert_eq!(allot(&all, &administrator, &taken, &node()).unwrap().0, cpus("1,6-7"));
    let pools = pools(&taken).unwrap();
    assert_eq!(pools.shared, cpus("0-1,6-7"));
    assert_eq!(pools.be_shared, cpus("0-1,6-7"));
    taken.kubelet = Err("it is damaged".into());
    let refusal = allot(&all, &administrator, &taken, &node()).unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::KubeletStateUnusable);
}

#[test]
fn a_scope_that_cannot_be_read_may_have_any_cpus() {
    let mut strange = empty();
    strange.unreadable = vec![("stelia-instance-x.scope".into(), "schema 9".into())];
    let refusal = allot(&AllocationRequest::default(), &requester(1000), &strange, &node()).unwrap_err();
    assert!(refusal.text.contains("stelia-instance-x.scope"), "{refusal}");
    // A pool has no owner.
    assert!(allot(&request(Qos::Ls), &requester(1000), &strange, &node()).is_ok());
}

#[test]
fn the_last_shared_cpu_is_not_given() {
    let whole = AllocatorPolicies {
        reserved: CpuSet::new(),
        ..node()
    };
    let refusal = allot(&AllocationRequest::default(), &requester(8000), &empty(), &whole).unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NotAllocated);
    assert!(allot(&AllocationRequest::default(), &requester(7000), &empty(), &whole).is_ok());
}

#[test]
fn a_required_bind_policy_is_nobodys_to_depart_from() {
    let full = AllocatorPolicies {
        required: RequiredBind::FullPcpusOnly,
        ..node()
    };
    let (exclusive, allocation) = allot(&AllocationRequest::default(), &requester(2000), &empty(), &full).unwrap();
    assert_eq!((exclusive, allocation.required), (cpus("2-3"), true));
    let odd = allot(&AllocationRequest::default(), &requester(3000), &empty(), &full).unwrap_err();
    assert_eq!(odd.kind, ErrorKind::NotAllocated);
    let spread = AllocationRequest {
        cpu_bind_policy: Some(CpuBindPolicy::SpreadByPcpus),
        ..AllocationRequest::default()
    };
    let other = allot(&spread, &requester(2000), &empty(), &full).unwrap_err();
    assert_eq!(other.kind, ErrorKind::NotAllocated);
}

#[test]
fn an_exclusive_policy_that_cannot_be_kept_is_told() {
    let alone = AllocationRequest {
        cpu_exclusive_policy: Some(CpuExclusivePolicy::NumaNodeLevel),
        ..AllocationRequest::default()
    };
    let mut host = empty();
    let mut told = Vec::new();
    for number in 0..3 {
        let answer = allot(&alone, &requester(1000), &host, &node()).unwrap();
        told.push(answer.1.exclusivity);
        let last = answer.1.explanation.last().unwrap().clone();
        assert!(last.starts_with("exclusive policy NUMANodeLevel"), "{last}");
        hold(&mut host, number, answer);
    }
    assert_eq!(
        told,
        [Exclusivity::Honored, Exclusivity::Honored, Exclusivity::Downgraded]
    );
}

#[test]
fn a_pool_of_a_numa_node_is_chosen_by_the_limit() {
    let burst = AllocationRequest {
        qos: Some(Qos::Ls),
        cpu_bind_policy: Some(CpuBindPolicy::ConstrainedBurst),
        cpu_limit: Some(3500),
        ..AllocationRequest::default()
    };
    let mut host = empty();
    let (exclusive, allocation) = allot(&burst, &requester(1000), &host, &node()).unwrap();
    assert_eq!((exclusive.is_empty(), allocation.numa_node), (true, Some(0)));
    // With a CPU of node 0 gone only node 1 has four.
    let two = allot(&AllocationRequest::default(), &requester(1000), &host, &node()).unwrap();
    hold(&mut host, 1, two);
    assert_eq!(
        allot(&burst, &requester(1000), &host, &node()).unwrap().1.numa_node,
        Some(1)
    );
    let strict = AllocatorPolicies {
        alignment: NumaTopologyAlignmentPolicy::SingleNumaNode,
        ..node()
    };
    let aligned = allot(&request(Qos::Ls), &requester(4000), &host, &strict).unwrap().1;
    assert_eq!((aligned.numa_node, aligned.limit_milli), (Some(1), 4000));
    let much = AllocationRequest {
        cpu_limit: Some(5000),
        ..burst
    };
    let refusal = allot(&much, &requester(1000), &host, &node()).unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NotAllocated);
}

#[test]
fn a_list_that_meets_another_pods_was_the_shared_pool() {
    let left = |number: usize, guaranteed: bool, list: &str| RunningContainer {
        pod: pod(number),
        guaranteed,
        instance: false,
        limit_milli: None,
        cpus: cpus(list),
    };
    // Two that had the default set, one that had CPUs of its own, one that kubelet never restricted.
    let host = [
        left(1, true, "0-1,4-7"),
        left(2, false, "0-1,4-7"),
        left(3, true, "2-3"),
        left(4, true, ""),
    ];
    assert_eq!(leftover(&host), cpus("2-3"));
    // Containers of one pod may use the same CPUs.
    assert_eq!(leftover(&[left(3, true, "2-3"), left(3, true, "2")]), cpus("2-3"));
    assert_eq!(leftover(&[left(2, false, "2-3")]), CpuSet::new());
    // An instance's is in its record, and is evidence all the same.
    let part = left(1, true, "0-1,4-7");
    let known = RunningContainer {
        instance: true,
        ..left(2, true, "0-1,4-7")
    };
    assert_eq!(leftover(&[part.clone(), known]), CpuSet::new());
    // Alone, but of another length than the limit: a part of a CPU on the shared pool.
    let limited = |milli| RunningContainer {
        limit_milli: Some(milli),
        ..part.clone()
    };
    assert_eq!(leftover(&[limited(1500)]), CpuSet::new());
    assert_eq!(leftover(&[limited(6000)]), part.cpus);
}

#[test]
fn the_same_words_again_are_the_same_and_others_are_named() {
    let (_, allocation) = allot(&AllocationRequest::default(), &requester(2000), &empty(), &node()).unwrap();
    assert_eq!(allocation.differs(&AllocationRequest::default()), None);
    let spread = AllocationRequest {
        cpu_bind_policy: Some(CpuBindPolicy::SpreadByPcpus),
        ..AllocationRequest::default()
    };
    assert_eq!(allocation.differs(&spread), Some("cpu-bind-policy"));
    let required = |bind| AllocationRequest {
        required_cpu_bind_policy: Some(bind),
        ..spread.clone()
    };
    assert_eq!(
        allocation.differs(&required(CpuBindPolicy::FullPcpus)),
        Some("required-cpu-bind-policy")
    );
    // What is required wins over what is preferred, then as well.
    let whole = required(CpuBindPolicy::FullPcpus);
    let (_, allocation) = allot(&whole, &requester(2000), &empty(), &node()).unwrap();
    assert_eq!((allocation.bind, allocation.required), (CpuBindPolicy::FullPcpus, true));
    assert_eq!(allocation.differs(&whole), None);
    assert_eq!(allocation.differs(&required(CpuBindPolicy::Default)), None);
    assert_eq!(
        allocation.differs(&required(CpuBindPolicy::SpreadByPcpus)),
        Some("required-cpu-bind-policy")
    );
    assert_eq!(allocation.differs(&request(Qos::Lsr)), Some("qos"));
}

#[test]
fn an_allocation_survives_as_text() {
    let (_, allocation) = allot(&AllocationRequest::default(), &requester(2000), &empty(), &node()).unwrap();
    let text = serde_json::to_string(&allocation).unwrap();
    assert!(text.contains(r#""qos":"LSE","cpus":2,"bind":"FullPCPUs""#), "{text}");
    assert_eq!(serde_json::from_str::<Allocation>(&text).unwrap(), allocation);
}

fn requests() -> impl Strategy<Value = AllocationRequest> {
    let any_of = |all: &'static [Qos]| proptest::sample::select(all);
    (
        1u32..5,
        any_of(&Qos::ALL),
        proptest::sample::select(&CpuBindPolicy::ALL[..3]),
        proptest::sample::select(&CpuExclusivePolicy::ALL[..]),
        proptest::sample::select(&NumaAllocateStrategy::ALL[..]),
        proptest::sample::select(&NumaTopologyAlignmentPolicy::ALL[..]),
    )
        .prop_map(|(count, qos, bind, exclusive, strategy, alignment)| AllocationRequest {
            cpus: qos.is_exclusive().then_some(count),
            qos: Some(qos),
            cpu_bind_policy: Some(bind),
            cpu_exclusive_policy: Some(exclusive),
            numa_allocate_strategy: Some(strategy),
            numa_topology_alignment_policy: Some(alignment),
            ..AllocationRequest::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn nobody_gets_what_is_anothers_and_what_is_freed_is_given_again(
        shape in shapes(), kubelets in 0u32..4, requests in proptest::collection::vec(requests(), 1..8),
    ) {
        let mut host = empty();
        host.topology = shape.topology();
        host.leftover = host.topology.online().iter().take(kubelets as usize).collect();
        let administrator = Requester { bound: false, ..requester(1000) };
        for (number, request) in requests.iter().enumerate() {
            let Ok((exclusive, allocation)) = allot(request, &administrator, &host, &node()) else { continue };
            let again = allot(request, &administrator, &host, &node()).unwrap();
            prop_assert_eq!(&again, &(exclusive.clone(), allocation.clone()), "the same input");
            prop_assert!(exclusive.is_disjoint(&host.owned()) && exclusive.is_disjoint(&host.leftover));
            prop_assert!(!exclusive.contains(0) && exclusive.is_subset(&host.topology.online()));
            prop_assert_eq!(exclusive.len() as u32, allocation.cpus);
            let nodes: NodeSet =
                exclusive.iter().map(|cpu| host.topology.cpus[&cpu].node).collect();
            if request.numa_topology_alignment_policy == Some(NumaTopologyAlignmentPolicy::SingleNumaNode) {
                prop_assert!(nodes.len() <= 1, "{} on {:?}", exclusive, nodes);
            }
            hold(&mut host, number, again);
            let pools = pools(&host).unwrap();
            prop_assert!(pools.shared.is_disjoint(&host.owned()) && !pools.shared.is_empty());
            prop_assert!(pools.be_shared.is_disjoint(&host.closed_to(Some(Qos::Be))));
            prop_assert!(pools.shared.is_subset(&pools.be_shared));
        }
        // One that ended leaves nothing behind.
        if let Some((_, last)) = host.instances.pop_last() {
            let request = &requests[last.record.pod.to_string()[..8].parse::<usize>().unwrap()];
            let (exclusive, _) = allot(request, &administrator, &host, &node()).unwrap();
            prop_assert_eq!(exclusive, last.record.exclusive);
        }
    }
}
