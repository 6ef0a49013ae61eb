//! A node and instances to test with.

pub(crate) mod evaluation;

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_kernel::cgroup::{CgroupPath, Limits};
use stelia_koordinator::allocator::{CpuSource, Qos};
use stelia_kubelet::CpuManagerState;
use stelia_kubelet::cpu_manager_state::Schema;
use stelia_model::record::testing::record;
use stelia_model::record::{Phase, Record, Tree};
use stelia_settings::Policies;

use crate::workers::Workers;
use crate::{Assessment, Derived, Instance, Outside, Slice, Snapshot};

pub use evaluation::{allocator_node, any_host, any_request};

const SCOPE: &str = "/stelia.slice/stelia-instance-b9e4f71c-64a5-4f8d-8574-41363cbaf8e5.scope";

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// An instance whose scope was made and nothing else yet: container processes 40 (anchor), 41 and 42 in the origin.
pub fn instance() -> Instance {
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
pub fn snapshot(instances: Vec<Instance>) -> Snapshot {
    let entry = BTreeMap::from([("instance".to_owned(), cpus("2-3"))]);
    let kubelet = CpuManagerState {
        schema: Schema::V2,
        policy: "static".into(),
        default_cpus: cpus("0-1,4-7"),
        entries: BTreeMap::from([(record().pod, entry)]),
        ..CpuManagerState::absent()
    };
    Snapshot {
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
        ..Snapshot::empty(Ok(kubelet), CpuSource::Kubelet, topology("0-7"))
    }
}

/// A topology of two cores a package and two threads a core.
pub(crate) fn topology(online: &str) -> Topology {
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

impl Snapshot {
    /// The first instance, which a test knows to be there.
    pub fn first(&self) -> &Instance {
        self.instances.values().next().unwrap()
    }

    /// The same to change.
    pub fn first_mut(&mut self) -> &mut Instance {
        self.instances.values_mut().next().unwrap()
    }

    /// The CPUs that a float of this class must not include.
    pub fn closed_to(&self, qos: Option<Qos>) -> CpuSet {
        self.facts().totals().closed_to(qos).clone()
    }

    /// What is derived of the instance of a test.
    pub fn assess(&self, policies: &Policies, instance: &Instance) -> Assessment {
        Assessment::of(self, &Derived::of(self, policies), policies, instance)
    }

    /// The CPUs of all instances.
    pub fn owned(&self) -> CpuSet {
        self.facts().totals().owned().clone()
    }

    /// What is derived from it, with the default policies.
    pub fn facts(&self) -> Derived {
        Derived::of(self, &Policies::default())
    }
}
