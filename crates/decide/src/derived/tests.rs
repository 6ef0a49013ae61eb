use proptest::prelude::*;
use proptest::sample::{Index, select};
use stelia_kernel::cgroup::HugePage;
use stelia_koordinator::allocator::{
    Allocation, CpuBindPolicy, CpuExclusivePolicy, CpuSource, Exclusivity, NumaAllocateStrategy,
    NumaTopologyAlignmentPolicy,
};
use stelia_model::record::Phase;
use stelia_settings::Partition;

use super::*;
use crate::steps::laws::{Case, INSTANCES, cases, pod};
use crate::steps::tests::{apply, isolated};
use crate::{plan, plan_for, waits};

/// What happens to one instance.
#[derive(Debug, Clone)]
enum Event {
    Goes,
    Comes,
    Dies,
    Enters(Phase),
    Has(Partition),
    Loses(Index),
    Gets(Index),
    Holds(Index),
    Stays(Index),
    Weighs(Option<u64>),
    Limits(bool),
    /// A step of a plan is taken, whomever it is for.
    Step(Index),
}

fn events() -> impl Strategy<Value = Vec<(usize, Event)>> {
    let at = any::<Index>;
    let phases = vec![
        Phase::Registered,
        Phase::Floating,
        Phase::Attaching,
        Phase::Isolated,
        Phase::Pinned,
        Phase::Leaving,
    ];
    let event = prop_oneof![
        Just(Event::Goes),
        Just(Event::Comes),
        Just(Event::Dies),
        select(phases).prop_map(Event::Enters),
        select(vec![Partition::Isolated, Partition::Root, Partition::Member]).prop_map(Event::Has),
        at().prop_map(Event::Loses),
        at().prop_map(Event::Gets),
        at().prop_map(Event::Holds),
        at().prop_map(Event::Stays),
        proptest::option::of(1u64..10_000).prop_map(Event::Weighs),
        any::<bool>().prop_map(Event::Limits),
        at().prop_map(Event::Step),
    ];
    proptest::collection::vec((0..INSTANCES, event), 1..12)
}

/// What chose an instance's CPUs, and for which class: neither changes during its life.
fn classes() -> impl Strategy<Value = Vec<Option<Qos>>> {
    let class = select(vec![None, Some(Qos::Lse), Some(Qos::Lsr), Some(Qos::Ls), Some(Qos::Be)]);
    proptest::collection::vec(class, INSTANCES)
}

fn allocation(qos: Qos) -> Allocation {
    Allocation {
        qos,
        cpus: 1,
        bind: CpuBindPolicy::FullPcpus,
        required: false,
        exclusive: CpuExclusivePolicy::None,
        strategy: NumaAllocateStrategy::MostAllocated,
        alignment: NumaTopologyAlignmentPolicy::None,
        limit_milli: 1000,
        numa_node: None,
        exclusivity: Exclusivity::NotAsked,
        explanation: Vec::new(),
    }
}

fn happens(event: &Event, online: &CpuSet, owned: &CpuSet, instance: &mut Instance) {
    // Nobody has what another has.
    let one = |at: &Index| -> CpuSet {
        let cpu: CpuSet = online.iter().nth(at.index(online.len())).into_iter().collect();
        cpu.difference(owned)
    };
    let record = &mut instance.record;
    match event {
        Event::Goes | Event::Comes | Event::Step(_) => {}
        Event::Dies => instance.populated = false,
        Event::Enters(phase) => record.phase = *phase,
        Event::Has(partition) => record.partition = *partition,
        // What was allocated is as many CPUs for life; kubelet may take some back.
        Event::Loses(_) if record.allocation.is_some() => {}
        Event::Loses(at) => {
            let lost = record.exclusive.iter().nth(at.index(record.exclusive.len().max(1)));
            record.exclusive = record.exclusive.difference(&lost.into_iter().collect());
        }
        Event::Gets(at) => record.exclusive = record.exclusive.union(&one(at)),
        Event::Holds(at) => instance.scope_exclusive = one(at),
        Event::Stays(at) => {
            if let Some(vcpu) = instance.inner.as_mut().and_then(|inner| inner.vcpu.as_mut()) {
                vcpu.exclusive = vcpu.exclusive.union(&one(at));
            }
        }
        Event::Weighs(weight) => instance.scope_limits.cpu_weight = *weight,
        Event::Limits(limited) => {
            if let Some(limits) = &mut instance.origin_limits {
                limits.hugetlb.insert(HugePage::Mb2, limited.then_some(1));
                limits.memory_low = if *limited { u64::MAX } else { 0 };
            }
        }
    }
}

fn assess(snapshot: &Snapshot, facts: &Derived, policies: &Policies) -> BTreeMap<PodUid, Assessment> {
    let of = |instance| Assessment::of(snapshot, facts, policies, instance);
    let live = snapshot.live();
    live.map(|instance| (instance.record.pod.clone(), of(instance)))
        .collect()
}

/// Whom an event changes, and what that one was before; the snapshot is as it is afterwards.
fn change(
    now: &mut Snapshot,
    start: &Snapshot,
    policies: &Policies,
    number: usize,
    event: &Event,
) -> Option<(PodUid, Option<Instance>)> {
    let mut whom = pod(number);
    let mut step = None;
    if let Event::Step(at) = event {
        let steps = plan(now, policies);
        let taken = (!steps.is_empty()).then(|| steps[at.index(steps.len())].clone())?;
        if let Some(pod) = taken.whom.pod() {
            whom.clone_from(pod);
        }
        step = Some(taken);
    }
    let before = now.instances.get(&whom).cloned();
    match event {
        Event::Goes => drop(now.instances.remove(&whom)),
        Event::Comes => {
            let again = start.instances.get(&whom).filter(|_| before.is_none());
            let free = |instance: &&Instance| instance.owned().is_disjoint(&now.owned());
            if let Some(instance) = again.filter(free).cloned() {
                now.put(instance);
            }
        }
        Event::Step(_) => apply(now, step.as_slice()),
        _ => {
            let (online, owned) = (now.topology.online(), now.owned());
            if let Some(instance) = now.instances.get_mut(&whom) {
                happens(event, &online, &owned, instance);
            }
        }
    }
    Some((whom, before))
}

fn start(case: &Case, ours: bool, classes: &[Option<Qos>]) -> (Snapshot, Policies) {
    let mut start = case.start();
    start.kubelet = Ok(case.kubelet(&case.after, &case.gone));
    let mut policies = Policies {
        float: case.float,
        ..Policies::default()
    };
    if ours {
        start.source = CpuSource::Steliad;
        policies.allocator.source = CpuSource::Steliad;
        policies.allocator.reserved = CpuSet::below(1);
        for (instance, qos) in start.instances.values_mut().zip(classes) {
            instance.record.allocation = qos.map(allocation);
        }
    }
    (start, policies)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn facts_that_are_kept_up_are_those_of_a_look_at_everything(
        case in cases(), ours in any::<bool>(), classes in classes(), events in events(),
    ) {
        let (start, policies) = start(&case, ours, &classes);
        let mut now = start.clone();
        let mut kept = Derived::of(&now, &policies);
        for (number, event) in &events {
            let assessed = assess(&now, &kept, &policies);
            let Some((whom, before)) = change(&mut now, &start, &policies, *number, event) else { continue };
            let concerned = kept.follow_instance(&now, &policies, before.as_ref(), now.instances.get(&whom));
            let anew = Derived::of(&now, &policies);
            prop_assert_eq!(&kept, &anew, "after {:?}", event);
            let planned = assess(&now, &kept, &policies);
            let waits = waits(&now, &kept, &planned);
            prop_assert_eq!(plan_for(&now, &kept, &policies, &planned, &waits), plan(&now, &policies));
            // Whom it does not concern is not looked at again.
            for (pod, was) in assessed.iter().filter(|(pod, _)| concerned == Concerned::Itself && **pod != whom) {
                prop_assert_eq!(Some(was), planned.get(pod), "{} after {:?}", pod, event);
            }
        }
    }
}

#[test]
fn vcpu_threads_on_another_pods_cpus_are_misplaced_as_long_as_they_are_there() {
    let mut snapshot = isolated();
    let inner = snapshot.first_mut().inner.as_mut().unwrap();
    inner.float.as_mut().unwrap().cpus = "0-1".parse().unwrap();
    let float_of_misplaced = |snapshot: &Snapshot| {
        let (facts, policies, instance) = (snapshot.facts(), Policies::default(), snapshot.first());
        let assessment = Assessment::of(snapshot, &facts, &policies, instance);
        assessment.float_of_misplaced(snapshot, &facts, &policies, instance)
    };
    assert_eq!(float_of_misplaced(&snapshot), None);
    let entry = [("x".to_owned(), snapshot.first().record.exclusive.clone())].into();
    let state = snapshot.kubelet.as_mut().unwrap();
    state.entries = [(pod(7), entry)].into();
    assert!(float_of_misplaced(&snapshot).is_some());
    let inner = snapshot.first_mut().inner.as_mut().unwrap();
    inner.vcpu.as_mut().unwrap().threads.clear();
    assert_eq!(float_of_misplaced(&snapshot), None);
}
