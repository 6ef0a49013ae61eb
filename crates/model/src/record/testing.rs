//! Records to test with.

use std::collections::BTreeMap;

use stelia_api::ThreadRole;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::proc::TaskId;
use stelia_kubelet::PodUid;
use stelia_settings::{LatencyLevel, Partition, PlacementPolicy, QuietRequest};

use crate::record::{Adopted, Home, Phase, Record, VcpuThread};

/// One of kubelet's CPUs.
pub fn record() -> Record {
    Record {
        pod: PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap(),
        container: "instance".into(),
        origin: CgroupPath::parse("/kubepods.slice/x.scope").unwrap(),
        home: Home::Scope,
        anchor: Some(TaskId { id: 40, start: 400 }),
        adopted: None,
        exclusive: "2-3".parse().unwrap(),
        entry: "2-3".parse().unwrap(),
        allocation: None,
        spare: CpuSet::new(),
        pod_pool: None,
        scheduled: false,
        quiet: Default::default(),
        mems: [0].into(),
        devices: Default::default(),
        phase: Phase::Isolated,
        vcpus: vec![
            VcpuThread {
                role: ThreadRole::Vcpu(0),
                task: TaskId { id: 50, start: 500 },
                cpu: Some(2),
            },
            VcpuThread {
                role: ThreadRole::Vcpu(1),
                task: TaskId { id: 51, start: 501 },
                cpu: None,
            },
        ],
        props: BTreeMap::from([(0, BTreeMap::from([("core-id".into(), 1), ("socket-id".into(), 0)]))]),
        placement: PlacementPolicy::Linear,
        partition: Partition::Isolated,
        refused: false,
        registered_us: 7,
        isolated_us: 8,
    }
}

/// The same with CPUs that steliad chose.
pub fn allocated() -> Record {
    let allocation = r#"{"qos":"LSR","cpus":2,"bind":"FullPCPUs","required":false,"exclusive":"None","strategy":"MostAllocated",
        "alignment":"None","limit_milli":0,"numa_node":null,"exclusivity":"not-asked","explanation":["a","b"]}"#;
    Record {
        allocation: Some(serde_json::from_str(allocation).unwrap()),
        pod_pool: Some("1".parse().unwrap()),
        scheduled: true,
        quiet: QuietRequest {
            latency: LatencyLevel::Low,
            cache_class: Some("gold".into()),
        },
        ..record()
    }
}

/// The same where the cgroups are in the container's own.
pub fn in_place() -> Record {
    Record {
        home: Home::InPlace,
        anchor: None,
        ..record()
    }
}

/// One of a VM that did not register itself, with two vCPUs.
pub fn adopted() -> Record {
    Record {
        adopted: Some(Adopted {
            rule: "kubevirt".into(),
            keeps: true,
            pinned: false,
        }),
        ..in_place()
    }
}
