//! What holds of every plan, whatever the host, kubelet and the instances are like.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stelia_api::ThreadRole;
use stelia_cpus::testing::{Shape, shapes};
use stelia_kernel::proc::TaskId;
use stelia_kubelet::CpuManagerState;
use stelia_model::record::{Record, VcpuThread};
use stelia_settings::{FloatPolicy, Partition};

use super::tests::{apply, possible_plan, settle};
use super::*;
use crate::entitlement::{Entitlement, entitlement};
use crate::testing::{instance, snapshot};
use crate::{Tree, VcpuNow};

/// Pods 0 to 3 have instances, the others only entries.
const PODS: usize = 6;
pub(crate) const INSTANCES: usize = 4;

pub(crate) fn pod(number: usize) -> PodUid {
    PodUid::parse(&format!("0000000{number}-0000-4000-8000-000000000000")).unwrap()
}

/// A host, the owner of each CPU before and after, and what else happens.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    shape: Shape,
    before: Vec<usize>,
    pub(crate) after: Vec<usize>,
    pub(crate) gone: Vec<bool>,
    instances: Vec<(Phase, Partition, i32)>,
    drifts: Vec<(usize, u8, usize)>,
    pub(crate) float: FloatPolicy,
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let phase = prop_oneof![
        Just(Phase::Floating),
        Just(Phase::Attaching),
        Just(Phase::Isolated),
        Just(Phase::Leaving)
    ];
    let partition = prop_oneof![
        Just(Partition::Isolated),
        Just(Partition::Root),
        Just(Partition::Member)
    ];
    // Owner PODS and above is the shared pool.
    let owners = || proptest::collection::vec(0..PODS * 2, 48);
    (
        shapes(),
        owners(),
        owners(),
        proptest::collection::vec(any::<bool>(), PODS),
        proptest::collection::vec((phase, partition, 0i32..6), INSTANCES),
        proptest::collection::vec((0..INSTANCES, 0u8..6, 0usize..1024), 0..4),
        prop_oneof![Just(FloatPolicy::Node), Just(FloatPolicy::Numa)],
    )
        .prop_map(|(shape, before, after, gone, instances, drifts, float)| Case {
            shape,
            before,
            after,
            gone,
            instances,
            drifts,
            float,
        })
}

impl Case {
    fn cpus(&self, owners: &[usize], owner: impl Fn(usize) -> bool) -> CpuSet {
        let online = self.shape.topology().online();
        online
            .iter()
            .filter(|cpu| owner(owners[*cpu as usize % owners.len()]))
            .collect()
    }

    pub(crate) fn kubelet(&self, owners: &[usize], gone: &[bool]) -> CpuManagerState {
        let mut state = snapshot(vec![]).kubelet.unwrap();
        state.entries.clear();
        state.default_cpus = self.cpus(owners, |owner| owner >= PODS || gone[owner]);
        for number in (0..PODS).filter(|number| !gone[*number]) {
            let cpus = self.cpus(owners, |owner| owner == number);
            if !cpus.is_empty() {
                state
                    .entries
                    .insert(pod(number), BTreeMap::from([("instance".to_owned(), cpus)]));
            }
        }
        state
    }

    /// Everything as it is when all is well.
    pub(crate) fn start(&self) -> Snapshot {
        let mut start = snapshot(vec![]);
        start.topology = self.shape.topology();
        start.kubelet = Ok(self.kubelet(&self.before, &[false; PODS]));
        for (number, (phase, partition, spare)) in self.instances.iter().enumerate() {
            let exclusive = self.cpus(&self.before, |owner| owner == number);
            if exclusive.is_empty() {
                continue;
            }
            // From more vCPUs than CPUs to fewer.
            let count = (exclusive.len() as i32 + 2 - spare).clamp(1, 64) as usize;
            let first = if *phase == Phase::Leaving {
                Phase::Attaching
            } else {
                *phase
            };
            start.put(self.instance(number, exclusive, first, *partition, count));
        }
        settle(&mut start);
        for instance in start.instances.values_mut() {
            let leaves =
                |number: usize| pod(number) == instance.record.pod && self.instances[number].0 == Phase::Leaving;
            if (0..INSTANCES).any(leaves) {
                instance.record.phase = Phase::Leaving;
            }
        }
        start
    }

    fn instance(&self, number: usize, exclusive: CpuSet, phase: Phase, partition: Partition, vcpus: usize) -> Instance {
        let base = instance();
        let pins: Vec<(ThreadRole, Option<u32>)> = if vcpus > exclusive.len() {
            (0..vcpus as u32).map(|index| (ThreadRole::Vcpu(index), None)).collect()
        } else {
            (0..)
                .map(ThreadRole::Vcpu)
                .zip(exclusive.iter().map(Some))
                .take(vcpus)
                .collect()
        };
        let threads: Vec<VcpuThread> = (0..vcpus as i32)
            .map(|index| VcpuThread {
                role: ThreadRole::Vcpu(index as u32),
                task: TaskId {
                    id: 1000 * (number as i32 + 1) + index,
                    start: 1,
                },
                cpu: None,
            })
            .collect();
        let (vcpus, partition) = placed(&threads, &pins, partition);
        let scope = CgroupPath::slice().child(&pod(number).scope());
        let process = 100 * (number as i32 + 1);
        Instance {
            vcpus: vcpus
                .iter()
                .map(|_| {
                    Some(VcpuNow {
                        process,
                        cgroup: scope.child("instance").child("float"),
                        affinity: self.shape.topology().online(),
                    })
                })
                .collect(),
            origin_procs: Some(vec![40, process]),
            origin_cpus: exclusive.clone(),
            record: Record {
                pod: pod(number),
                origin: CgroupPath::parse(&format!("/kubepods.slice/{number}.scope")).unwrap(),
                entry: exclusive.clone(),
                exclusive,
                phase,
                partition,
                vcpus,
                ..base.record
            },
            tree: Tree::in_scope(scope),
            ..base
        }
    }

    /// Somebody meddles.
    fn disturb(&self, snapshot: &mut Snapshot) {
        let all = snapshot.topology.online();
        for (number, kind, cpu) in &self.drifts {
            let Some(instance) = snapshot.instances.get_mut(&pod(*number)) else {
                continue;
            };
            let float = instance.tree.float().clone();
            let Some(inner) = &mut instance.inner else { continue };
            let (Some(leaf), Some(vcpu)) = (&mut inner.float, &mut inner.vcpu) else {
                continue;
            };
            let one: CpuSet = all.iter().nth(cpu % all.len()).into_iter().collect();
            match kind {
                0 => leaf.cpus = all.clone(),
                1 => vcpu.partition = "member".into(),
                2 => vcpu.cpus = one,
                3 => vcpu.threads.push(9000 + *cpu as i32),
                4 => {
                    if let Some(Some(now)) = instance.vcpus.first_mut() {
                        now.affinity = all.clone();
                    }
                }
                _ => {
                    if let Some(Some(now)) = instance.vcpus.first_mut() {
                        now.cgroup = float;
                        vcpu.threads.retain(|tid| *tid != instance.record.vcpus[0].task.id);
                    }
                }
            }
        }
    }
}

/// The law, of a state in which nothing is left to do.
fn check(snapshot: &Snapshot, policies: &Policies, meddled: bool) -> Result<(), TestCaseError> {
    let state = snapshot.kubelet.as_ref().unwrap();
    let mut taken = CpuSet::new();
    for instance in snapshot.instances.values() {
        let record = &instance.record;
        let vcpu = instance.vcpu().unwrap();
        let float = &instance.float().unwrap().cpus;
        let somewhere = snapshot.assess(policies, instance).float.is_some();
        // With no shared CPU on the host a float that another program widened cannot be put elsewhere.
        prop_assert!(
            float.is_disjoint(&snapshot.owned()) || (meddled && !somewhere),
            "float {} of {}",
            float,
            record.pod
        );
        if somewhere {
            prop_assert!(!float.is_empty());
            prop_assert!(float.is_disjoint(&state.assigned()));
        }
        if current_placement(snapshot, &snapshot.facts(), instance) != ThreadPlacement::Hold {
            prop_assert!(vcpu.threads.is_empty() && vcpu.exclusive.is_empty());
            continue;
        }
        prop_assert_eq!(&vcpu.cpus, &record.exclusive);
        prop_assert!(vcpu.cpus.is_disjoint(&taken), "{} in two vcpu sets", vcpu.cpus);
        taken = taken.union(&vcpu.cpus);
        if let Some(entry) = state.entries.get(&record.pod) {
            match entitlement(snapshot, &snapshot.facts(), instance) {
                // It leaves the others when its vCPUs are unplugged, or another pod is given one.
                Entitlement::Shrinks(_) => {
                    prop_assert!(entry["instance"].is_subset(&vcpu.cpus));
                    let others = state.entries.iter().filter(|(pod, _)| **pod != record.pod);
                    let others: CpuSet = others.flat_map(|(_, entry)| entry["instance"].iter()).collect();
                    prop_assert!(vcpu.cpus.is_disjoint(&others), "{} of {others}", vcpu.cpus);
                }
                _ => prop_assert_eq!(&vcpu.cpus, &entry["instance"]),
            }
        }
        let threads: BTreeSet<i32> = vcpu.threads.iter().copied().collect();
        prop_assert_eq!(threads, record.vcpus.iter().map(|thread| thread.task.id).collect());
        let mut pinned = CpuSet::new();
        for (thread, now) in record.vcpus.iter().zip(&instance.vcpus) {
            let now = now.as_ref().unwrap();
            match thread.cpu {
                Some(cpu) => {
                    prop_assert!(!pinned.contains(cpu) && now.affinity.len() == 1 && now.affinity.contains(cpu));
                    pinned = pinned.union(&now.affinity);
                }
                None => prop_assert_eq!(&now.affinity, &record.exclusive),
            }
        }
        if record.partition != Partition::Member {
            prop_assert_eq!(vcpu.partition.as_str(), record.partition.name());
            prop_assert_eq!(&vcpu.exclusive, &record.exclusive);
            prop_assert!(record.exclusive.is_subset(snapshot.slice.exclusive.as_ref().unwrap()));
        }
    }
    Ok(())
}

/// What holds even between two steps: no float includes CPUs of vCPUs.
fn check_between(snapshot: &Snapshot, after: impl std::fmt::Debug) -> Result<(), TestCaseError> {
    let vcpus: CpuSet = snapshot
        .live()
        .filter_map(Instance::vcpu)
        .flat_map(|vcpu| vcpu.exclusive.iter())
        .collect();
    for float in snapshot.live().filter_map(Instance::float) {
        prop_assert!(
            float.cpus.is_disjoint(&vcpus),
            "float {} among {} after {:?}",
            float.cpus,
            vcpus,
            after
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_law_holds_whatever_kubelet_and_others_do(case in cases()) {
        let policies = Policies { float: case.float, ..Policies::default() };
        let mut now = case.start();
        now.kubelet = Ok(case.kubelet(&case.after, &case.gone));
        case.disturb(&mut now);
        let mut rounds = 0;
        loop {
            now.instances.retain(|_, instance| instance.populated);
            let steps = possible_plan(&now, &policies);
            if steps.is_empty() {
                break;
            }
            rounds += 1;
            // An instance that is to have CPUs of others waits for each of them to give them up.
            prop_assert!(rounds < 9 + INSTANCES, "still planning: {:?}", steps);
            // Where every CPU is assigned a float stays where it is, until one is free.
            let facts = Derived::of(&now, &policies);
            let taken = facts.totals().owned().union(facts.assigned());
            let somewhere = !facts.online().is_subset(&taken);
            let lawful = somewhere && check_between(&now, "the last round").is_ok();
            for step in steps {
                apply(&mut now, std::slice::from_ref(&step));
                if case.drifts.is_empty() && lawful {
                    check_between(&now, &step)?;
                }
            }
        }
        check(&now, &policies, !case.drifts.is_empty())?;
    }
}
