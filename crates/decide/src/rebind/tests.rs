use proptest::prelude::*;
use stelia_cpus::NodeSet;
use stelia_cpus::testing::shapes;
use stelia_koordinator::allocator::{AllocationRequest, CpuSource, NumaAllocateStrategy, Qos, Requester};
use stelia_kubelet::{CpuManagerState, QosClass};
use stelia_model::record::Record;

use super::*;
use crate::allocator::allot;
use crate::testing::{instance, snapshot};

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn pod(number: usize) -> PodUid {
    PodUid::parse(&format!("{number:08}-0000-4000-8000-000000000000")).unwrap()
}

fn node() -> AllocatorPolicies {
    AllocatorPolicies {
        source: CpuSource::Steliad,
        reserved: cpus("0"),
        ..AllocatorPolicies::default()
    }
}

fn policies() -> Policies {
    Policies {
        allocator: node(),
        ..Policies::default()
    }
}

/// A host of 8 CPUs, 2 NUMA nodes of 2 cores of 2 threads.
fn empty() -> Snapshot {
    let mut empty = snapshot(vec![]);
    empty.source = CpuSource::Steliad;
    empty.kubelet = Ok(CpuManagerState::absent());
    empty
}

fn hold(snapshot: &mut Snapshot, number: usize, exclusive: CpuSet, allocation: Allocation) {
    let base = instance();
    snapshot.put(Instance {
        record: Record {
            pod: pod(number),
            entry: exclusive.clone(),
            exclusive,
            allocation: Some(allocation),
            phase: Phase::Floating,
            mems: NodeSet::new(),
            ..base.record
        },
        ..base
    });
}

/// An instance of so many CPUs that has these, however it came to them.
fn with(snapshot: &mut Snapshot, number: usize, list: &str, bind: CpuBindPolicy) {
    let exclusive = cpus(list);
    let request = AllocationRequest {
        cpus: Some(exclusive.len() as u32),
        cpu_bind_policy: Some(bind),
        ..AllocationRequest::default()
    };
    let (_, allocation) = allot(
        &request,
        &administrator(),
        &empty(),
        &Derived::of(&empty(), &policies()),
        &node(),
    )
    .unwrap();
    hold(snapshot, number, exclusive, allocation);
}

fn administrator() -> Requester {
    Requester {
        class: QosClass::Guaranteed,
        limit_milli: None,
        bound: false,
        memory: None,
        devices: Default::default(),
    }
}

#[test]
fn a_vm_on_two_nodes_moves_to_one_and_a_split_core_becomes_whole() {
    let mut host = empty();
    with(&mut host, 1, "3-4", CpuBindPolicy::FullPcpus);
    let moves = all(&host, &policies(), &RebindScope::Node);
    let first = &moves[0];
    assert_eq!((first.pod.clone(), first.from.clone()), (pod(1), cpus("3-4")));
    assert!(
        ["2-3", "4-5", "6-7"].contains(&first.to.to_string().as_str()),
        "{first:?}"
    );
    assert!(
        first.gain.contains("nodes: 2 -> 1") && first.gain.contains("policy: 2 -> 0"),
        "{first:?}"
    );
}

#[test]
fn what_is_well_stays_where_it_is() {
    let mut host = empty();
    with(&mut host, 1, "2-3", CpuBindPolicy::FullPcpus);
    assert_eq!(all(&host, &policies(), &RebindScope::Node), []);
    // Nor is anybody moved that is not meant.
    with(&mut host, 2, "1,4", CpuBindPolicy::SpreadByPcpus);
    assert_eq!(all(&host, &policies(), &RebindScope::Pod(pod(1))), []);
    assert_eq!(all(&host, &policies(), &RebindScope::Node)[0].pod, pod(2));
}

#[test]
fn kubelets_cpus_are_not_ours_to_move() {
    let mut host = empty();
    with(&mut host, 1, "3-4", CpuBindPolicy::FullPcpus);
    host.first_mut().record.allocation = None;
    assert_eq!(all(&host, &policies(), &RebindScope::Node), []);
    // Nor while kubelet chooses.
    with(&mut host, 2, "5-6", CpuBindPolicy::FullPcpus);
    host.source = CpuSource::Kubelet;
    assert_eq!(all(&host, &policies(), &RebindScope::Node), []);
}

#[test]
fn what_a_scheduler_chose_stays_and_nobody_leaves_the_nodes_of_its_memory() {
    let mut host = empty();
    with(&mut host, 1, "3-4", CpuBindPolicy::FullPcpus);
    for (memory, lists) in [("0", &["2-3"][..]), ("1", &["4-5", "6-7"])] {
        host.first_mut().record.mems = memory.parse().unwrap();
        let moves = all(&host, &policies(), &RebindScope::Node);
        assert!(lists.contains(&moves[0].to.to_string().as_str()), "{memory}: {moves:?}");
    }
    host.first_mut().record.scheduled = true;
    assert_eq!(all(&host, &policies(), &RebindScope::Node), []);
}

#[test]
fn a_vm_moves_to_its_devices_and_never_away_from_them() {
    let mut host = empty();
    with(&mut host, 1, "2-3", CpuBindPolicy::FullPcpus);
    host.first_mut().record.devices = [1].into();
    // Its memory would stay behind.
    assert_eq!(all(&host, &policies(), &RebindScope::Node), []);
    host.first_mut().record.mems = [0, 1].into();
    let moves = all(&host, &policies(), &RebindScope::Node);
    let first = &moves[0];
    assert!(["4-5", "6-7"].contains(&first.to.to_string().as_str()), "{first:?}");
    assert!(first.gain.contains("without its CPUs: 1 -> 0"), "{first:?}");
    // A split core becomes whole where the devices are.
    let mut host = empty();
    with(&mut host, 1, "5-6", CpuBindPolicy::FullPcpus);
    host.first_mut().record.devices = [1].into();
    let moves = all(&host, &policies(), &RebindScope::Node);
    assert!(["4-5", "6-7"].contains(&moves[0].to.to_string().as_str()), "{moves:?}");
}

#[test]
fn who_is_on_the_way_is_not_disturbed() {
    for phase in [Phase::Registered, Phase::Attaching, Phase::Leaving] {
        let mut host = empty();
        with(&mut host, 1, "3-4", CpuBindPolicy::FullPcpus);
        host.first_mut().record.phase = phase;
        assert_eq!(all(&host, &policies(), &RebindScope::Node), [], "{phase:?}");
    }
}

/// What an instance asks for, and whether the one before it ends.
fn histories() -> impl Strategy<Value = Vec<(AllocationRequest, bool)>> {
    let request = (
        1u32..6,
        proptest::sample::select(&CpuBindPolicy::ALL[1..3]),
        proptest::sample::select(&CpuExclusivePolicy::ALL[..]),
        proptest::sample::select(&NumaAllocateStrategy::ALL[..]),
        proptest::sample::select(&NumaTopologyAlignmentPolicy::ALL[..]),
        proptest::sample::select(&[Qos::Lse, Qos::Lsr][..]),
    )
        .prop_map(|(count, bind, exclusive, strategy, alignment, qos)| AllocationRequest {
            cpus: Some(count),
            qos: Some(qos),
            cpu_bind_policy: Some(bind),
            cpu_exclusive_policy: Some(exclusive),
            numa_allocate_strategy: Some(strategy),
            numa_topology_alignment_policy: Some(alignment),
            ..AllocationRequest::default()
        });
    proptest::collection::vec((request, any::<bool>()), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_move_is_good_by_itself_and_they_end(shape in shapes(), history in histories()) {
        let mut host = empty();
        host.topology = shape.topology();
        // Some ended: what they leave is what fragments a host.
        for (number, (request, ends)) in history.iter().enumerate() {
            if let Ok((exclusive, allocation)) = allot(request, &administrator(), &host, &Derived::of(&host, &policies()), &node()) {
                if *ends && !host.instances.is_empty() {
                    host.instances.pop_first();
                }
                hold(&mut host, number, exclusive, allocation);
            }
        }
        let span = |snapshot: &Snapshot, pod: &PodUid| {
            let instance = snapshot.instances.values().find(|instance| instance.record.pod == *pod).unwrap();
            let nodes: NodeSet =
                instance.record.exclusive.iter().map(|cpu| snapshot.topology.cpus[&cpu].node).collect();
            nodes.len()
        };
        let mut count = 0;
        while let Some(step) = next(&host, &Derived::of(&host, &policies()), &node(), &RebindScope::Node) {
            let before = host.clone();
            made(&mut host, &step);
            count += 1;
            prop_assert!(count < 1000, "does not end: {:?}", step);
            let mut owned = CpuSet::new();
            for instance in host.instances.values() {
                let record = &instance.record;
                prop_assert!(owned.is_disjoint(&record.exclusive), "{} overlaps after {:?}", record.pod, step);
                owned = owned.union(&record.exclusive);
                prop_assert!(span(&host, &record.pod) <= span(&before, &record.pod), "{:?}", step);
                prop_assert_eq!(record.exclusive.len(), record.allocation.as_ref().unwrap().cpus as usize);
            }
            // Its new CPUs are free, in every step of the move.
            let others: CpuSet = before
                .instances
                .values()
                .filter(|instance| instance.record.pod != step.pod)
                .flat_map(|instance| instance.record.exclusive.iter())
                .collect();
            prop_assert!(step.to.is_disjoint(&others) && !step.to.contains(0) && !step.gain.is_empty());
        }
    }
}
