//! Plans from fixed snapshots: what is planned, and where it ends.

mod effects;
mod kubelet;
mod lifecycle;
mod resources;
mod vcpus;

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::ThreadRole;
use stelia_cpus::{Cpu, Topology};
use stelia_kubelet::CpuManagerState;
use stelia_kubelet::checkpoint::Schema;
use stelia_node::cgroup::{CpuQuota, HugePage, IoMax, Limits};
use stelia_node::proc::TaskId;
use stelia_record::testing::record;
use stelia_record::{Record, VcpuThread};
use stelia_settings::FloatPolicy;

use super::records::REFUSALS;
use super::*;
use crate::decide::workers::{Workers, masks};
use crate::decide::{ContainedReason, Inner, Leaf, Outside, Slice, Tree, VcpuNow};

pub(crate) use effects::{apply, possible_plan, settle};

const SCOPE: &str = "/stelia.slice/stelia-instance-b9e4f71c-64a5-4f8d-8574-41363cbaf8e5.scope";
const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// An instance whose scope was made and nothing else yet: container processes 40 (anchor), 41 and 42 in the origin.
pub(crate) fn instance() -> Instance {
    Instance {
        record: Record {
            phase: Phase::Registered,
            vcpus: vec![],
            isolated_us: 0,
            ..record()
        },
        pod_name: None,
        tree: Tree::in_scope(CgroupPath::parse(SCOPE).unwrap()),
        populated: true,
        scope_procs: vec![7],
        scope_controllers: BTreeSet::new(),
        scope_exclusive: CpuSet::new(),
        inner: None,
        scope_limits: Limits::default(),
        origin_limits: Some(Limits::default()),
        memory_held: None,
        origin_procs: Some(vec![40, 41, 42]),
        origin_cpus: cpus("2-3"),
        origin_effective: CpuSet::new(),
        origin_threads: vec![],
        anchor_lives: true,
        vcpus: vec![],
        refusals: 0,
        does_not_freeze: false,
        unwatched: None,
        tries_again: false,
        strays: vec![],
        pod_level: None,
    }
}

/// A node of 8 CPUs; kubelet gave 2-3 to the record's pod.
pub(crate) fn snapshot(instances: Vec<Instance>) -> Snapshot {
    let entry = BTreeMap::from([("instance".to_owned(), cpus("2-3"))]);
    Snapshot {
        source: stelia_allocator::CpuSource::Kubelet,
        leftover: CpuSet::new(),
        outside_gone: BTreeSet::new(),
        kubelet: Ok(CpuManagerState {
            schema: Schema::V2,
            policy: "static".into(),
            default_cpus: cpus("0-1,4-7"),
            entries: BTreeMap::from([(record().pod, entry)]),
            ..CpuManagerState::absent()
        }),
        topology: topology("0-7"),
        safe_partition: Partition::Isolated,
        slice: Slice {
            exclusive: Some(CpuSet::new()),
            weight: Some(100),
            protected: Some((0, 0)),
            controllers: BTreeSet::new(),
            workers: Some(Workers {
                cpus: cpus("0-7"),
                ..Workers::default()
            }),
        },
        outside: BTreeMap::from([("system.slice".to_owned(), Outside::default())]),
        instances: instances
            .into_iter()
            .map(|instance| (instance.record.pod.clone(), instance))
            .collect(),
        siblings: BTreeMap::new(),
        unsettled: BTreeSet::new(),
        unreadable: vec![],
        left_alone: CpuSet::new(),
        unwatched: None,
        abandoned: vec![],
        kubepods: None,
        unclaimed: BTreeSet::new(),
        half_registered: BTreeSet::new(),
        left_in_place: CpuSet::new(),
        disturbances: Default::default(),
    }
}

fn topology(online: &str) -> Topology {
    let describe = |cpu| {
        let core = Cpu {
            package: cpu / 4,
            core: cpu / 2,
            node: cpu / 4,
        };
        (cpu, core)
    };
    Topology {
        cpus: cpus(online).iter().map(describe).collect(),
    }
}

/// The instance of [`record`], isolated.
pub(crate) fn isolated() -> Snapshot {
    let mut snapshot = snapshot(vec![instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot, Partition::Isolated, &[Some(2), Some(3)]);
    settle(&mut snapshot);
    snapshot
}

/// The NUMA nodes' pools have tests of their own.
fn policies() -> Policies {
    Policies {
        float: FloatPolicy::Node,
        ..Policies::default()
    }
}

/// vCPU threads 50, 51, … of process 42, as AttachVcpus records them.
fn attach(snapshot: &mut Snapshot, partition: Partition, pins: &[Option<u32>]) {
    let instance = snapshot.first_mut();
    instance.record.partition = partition;
    instance.record.phase = Phase::Attaching;
    instance.record.vcpus.clear();
    instance.vcpus.clear();
    for (index, cpu) in (0..).zip(pins) {
        instance.record.vcpus.push(VcpuThread {
            role: ThreadRole::Vcpu(index),
            task: TaskId {
                id: 50 + index as i32,
                start: 500,
            },
            cpu: *cpu,
        });
        instance.vcpus.push(Some(VcpuNow {
            process: 42,
            cgroup: instance.tree.float().clone(),
            affinity: cpus("0-7"),
        }));
    }
}

fn steps(snapshot: &Snapshot) -> Vec<Step> {
    plan(snapshot, &policies())
        .into_iter()
        .map(|planned| planned.step)
        .collect()
}

/// kubelet's state: the pod's own entry, and another pod's.
fn kubelet_says(snapshot: &mut Snapshot, default: &str, own: Option<&str>, other: Option<&str>) {
    let state = snapshot.kubelet.as_mut().unwrap();
    state.default_cpus = cpus(default);
    state.entries.clear();
    let pods = [(record().pod, own), (PodUid::parse(OTHER).unwrap(), other)];
    for (pod, list) in pods {
        if let Some(list) = list {
            state
                .entries
                .insert(pod, BTreeMap::from([("instance".to_owned(), cpus(list))]));
        }
    }
}

fn reasons(snapshot: &Snapshot) -> Vec<String> {
    let degraded = snapshot.assess(&policies(), snapshot.first()).degraded;
    degraded.into_iter().map(|reason| reason.text).collect()
}
