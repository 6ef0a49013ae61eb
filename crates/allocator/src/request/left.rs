//! Who holds which CPUs, and the pools that leaves.

use stelia_cpus::CpuSet;
use stelia_kubelet::{CpuManagerState, PodUid};

use crate::{Allocated, CpuSource, KubeletView, Pools, Qos};

/// A running container's own CPU list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The pod.
    pub pod: PodUid,
    /// Whether the pod is a Guaranteed one: only those ever had exclusive CPUs.
    pub guaranteed: bool,
    /// Whether the container is an instance: what is its own is in its record.
    pub instance: bool,
    /// The container's own CPU limit, thousandths of a CPU; `None` without one.
    pub limit_milli: Option<u64>,
    /// `cpuset.cpus`; empty where nobody restricted it.
    pub cpus: CpuSet,
}

/// What a static CPU manager that is gone left behind: CPUs that a running Guaranteed container was once given alone. kubelet
/// does not take the lists back when its policy becomes `none`, and its file does not name them any more.
///
/// What kubelet gave out exclusively was no other pod's, and as many CPUs as the container's limit. So a list that meets another
/// pod's was the shared pool, and so was one of another length. (A newer kubelet sets no limit where it gives out CPUs.)
pub fn leftover(containers: &[Left]) -> CpuSet {
    let meets = |one: &Left| {
        let others = containers.iter().filter(|other| other.pod != one.pod);
        others.map(|other| &other.cpus).any(|cpus| !cpus.is_disjoint(&one.cpus))
    };
    let as_limited = |one: &Left| {
        one.limit_milli
            .is_none_or(|milli| milli == 1000 * one.cpus.len() as u64)
    };
    containers
        .iter()
        .filter(|one| one.guaranteed && !one.instance && as_limited(one) && !meets(one))
        .flat_map(|one| one.cpus.iter())
        .collect()
}
