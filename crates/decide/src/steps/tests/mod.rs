//! Plans from fixed snapshots: what is planned, and where it ends.

mod effects;
mod in_place;
mod kubelet;
mod lifecycle;
mod partition;
mod resources;
mod vcpus;
mod waits;

use std::collections::BTreeMap;

use stelia_api::ThreadRole;
use stelia_kernel::cgroup::{HugePage, IoMax, Limits};
use stelia_kernel::proc::TaskId;
use stelia_model::PinnedReason;
use stelia_model::record::VcpuThread;
use stelia_model::record::testing::record;
use stelia_settings::{FloatPolicy, Partition};

use super::records::MAX_PARTITION_REFUSALS;
use super::*;
use crate::testing::{instance, snapshot, topology};
use crate::workers::masks;
use crate::{InstanceCgroup, Outside, ThreadedCgroup, VcpuNow};

pub(crate) use effects::{apply, possible_plan, settle};

const SCOPE: &str = "/stelia.slice/stelia-instance-b9e4f71c-64a5-4f8d-8574-41363cbaf8e5.scope";
const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
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
