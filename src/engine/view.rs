//! What the engine shows to the doors: plain values, published after each pass.

use std::collections::BTreeMap;

use crate::cgroup::CgroupPath;
use crate::cpuset::CpuSet;
use crate::kubelet::PodUid;
use crate::plan::{Instance, Phase, Snapshot, VcpuThread, degraded};

/// The whole node as the engine last saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct View {
    /// kubelet's shared pool, or `None` when its file cannot be used.
    pub pool: Option<CpuSet>,
    /// Why kubelet's file cannot be used.
    pub kubelet_problem: Option<String>,
    /// `cpuset.cpus.exclusive` of stelia.slice.
    pub slice_exclusive: CpuSet,
    /// Instances by pod.
    pub instances: BTreeMap<PodUid, InstanceView>,
    /// Scopes in stelia.slice that are left alone, with the reason.
    pub unreadable: Vec<(String, String)>,
}

/// One instance, as its D-Bus object shows it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct InstanceView {
    /// The pod.
    pub pod: PodUid,
    /// The container's name in kubelet's state.
    pub container: String,
    /// Where it is in its life.
    pub phase: Phase,
    /// Reasons why the promise is not whole.
    pub degraded: Vec<String>,
    /// The CPUs kubelet gave it.
    pub exclusive: CpuSet,
    /// `cpuset.cpus` of its float.
    pub float: CpuSet,
    /// The pod's own memory nodes, as text.
    pub mems: String,
    /// `cpuset.cpus.partition` of its `vcpu/`.
    pub partition: String,
    /// The placement policy.
    pub placement: &'static str,
    /// The scope.
    pub scope: CgroupPath,
    /// The container's own cgroup.
    pub origin: CgroupPath,
    /// Microseconds since the epoch.
    pub registered_us: u64,
    /// Microseconds since the epoch; 0 before isolation.
    pub isolated_us: u64,
    /// The vCPU threads.
    pub vcpus: Vec<VcpuThread>,
}

impl View {
    /// Show a snapshot.
    pub fn of(snapshot: &Snapshot, placement: &'static str) -> Self {
        Self {
            pool: snapshot.pool.as_ref().ok().cloned(),
            kubelet_problem: snapshot.pool.as_ref().err().cloned(),
            slice_exclusive: snapshot.slice_exclusive.clone().unwrap_or_default(),
            instances: snapshot
                .instances
                .iter()
                .filter(|instance| instance.populated)
                .map(|instance| {
                    (
                        instance.record.pod.clone(),
                        InstanceView::of(snapshot, instance, placement),
                    )
                })
                .collect(),
            unreadable: snapshot.unreadable.clone(),
        }
    }
}

impl InstanceView {
    fn of(snapshot: &Snapshot, instance: &Instance, placement: &'static str) -> Self {
        let record = &instance.record;
        let inner = instance.inner.as_ref();
        Self {
            pod: record.pod.clone(),
            container: record.container.clone(),
            phase: record.phase,
            degraded: degraded(snapshot, instance),
            exclusive: record.exclusive.clone(),
            float: inner
                .and_then(|inner| inner.float.as_ref())
                .map(|leaf| leaf.cpus.clone())
                .unwrap_or_default(),
            mems: record.mems.clone(),
            partition: inner
                .and_then(|inner| inner.vcpu.as_ref())
                .map(|leaf| leaf.partition.clone())
                .unwrap_or_default(),
            placement,
            scope: instance.scope.clone(),
            origin: record.origin.clone(),
            registered_us: record.registered_us,
            isolated_us: record.isolated_us,
            vcpus: record.vcpus.clone(),
        }
    }
}
