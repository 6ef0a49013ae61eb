//! An instance's cgroups and threads as found.

use std::collections::BTreeSet;

use stelia_cpus::{CpuSet, NodeSet};
use stelia_kernel::cgroup::CgroupPath;

/// A thread of the container outside of `float` and `vcpu`: it was exec'd into the container, is not moved yet, or is in a cgroup that the
/// container made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MisplacedThread {
    /// Its thread id.
    pub thread: i32,
    /// The process of the thread.
    pub process: i32,
}

/// A thread that stays in the origin of an instance in stelia.slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemainingThread {
    /// Its thread id.
    pub thread: i32,
    /// Where it may run, within its cpuset.
    pub affinity: CpuSet,
}

/// `instance/`: the threaded domain's root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceCgroup {
    /// Controllers enabled for its children.
    pub controllers: BTreeSet<String>,
    /// `cpuset.cpus.exclusive`.
    pub exclusive: CpuSet,
    /// `cpuset.mems`.
    pub mems: NodeSet,
    /// Every process of the domain (float's and vcpu's included).
    pub procs: Vec<i32>,
    /// `cgroup.freeze`: whether its tasks are to be frozen. Read only where steliad may have written it.
    pub freeze: bool,
    /// Whether they are frozen (`cgroup.events`).
    pub frozen: bool,
    /// The cgroup of all threads but the vCPUs'.
    pub float: Option<ThreadedCgroup>,
    /// The cgroup of the vCPU threads.
    pub vcpu: Option<ThreadedCgroup>,
}

/// A threaded cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadedCgroup {
    /// `cgroup.type` is `threaded`.
    pub threaded: bool,
    /// `cpuset.cpus`.
    pub cpus: CpuSet,
    /// `cpuset.cpus.exclusive`.
    pub exclusive: CpuSet,
    /// `cpuset.cpus.partition` as printed; empty where the kernel has none.
    pub partition: String,
    /// `cpu.max` as printed; empty without the controller.
    pub cpu_max: String,
    /// `cgroup.threads`.
    pub threads: Vec<i32>,
    /// `cgroup.max.descendants` where it is not 0: then the container may be able to make cgroups in it.
    pub max_descendants: Option<String>,
    /// The cgroups below, each after those in it.
    pub below: Vec<CgroupPath>,
}

/// A recorded vCPU thread as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuNow {
    /// The process of the thread.
    pub process: i32,
    /// Its cgroup.
    pub cgroup: CgroupPath,
    /// Where it may run.
    pub affinity: CpuSet,
}
