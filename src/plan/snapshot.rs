//! What is, as plain values: the input of [`plan`](super::plan()).

use std::collections::BTreeSet;

use super::Record;
use crate::cgroup::CgroupPath;
use crate::cpuset::CpuSet;

/// kubelet's word and the cgroup tree at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// kubelet's shared pool, or why its file cannot be used.
    pub pool: Result<CpuSet, String>,
    /// `cpuset.cpus.exclusive` of `stelia.slice`; `None` while there is no slice or no cpuset controller in it.
    pub slice_exclusive: Option<CpuSet>,
    /// Instances by their scopes' names.
    pub instances: Vec<Instance>,
    /// Scopes whose record cannot be used, with the reason; left alone.
    pub unreadable: Vec<(String, String)>,
}

/// One instance as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// What its scope's attributes say.
    pub record: Record,
    /// The scope.
    pub scope: CgroupPath,
    /// Whether any process is in the scope or below.
    pub populated: bool,
    /// Processes directly in the scope (the holder, while the tree is made).
    pub scope_procs: Vec<i32>,
    /// Controllers enabled for the scope's children.
    pub scope_controllers: BTreeSet<String>,
    /// `cpuset.cpus.exclusive` of the scope.
    pub scope_exclusive: CpuSet,
    /// `instance/`, once it is there.
    pub inner: Option<Inner>,
    /// Processes in the origin; `None` when the origin is gone.
    pub origin_procs: Option<Vec<i32>>,
    /// Whether the anchor still lives.
    pub anchor_lives: bool,
    /// For every recorded vCPU thread, in order, what it is now; `None` when it ended.
    pub vcpus: Vec<Option<VcpuNow>>,
}

/// `instance/`: the threaded domain's root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inner {
    /// Controllers enabled for its children.
    pub controllers: BTreeSet<String>,
    /// `cpuset.cpus.exclusive`.
    pub exclusive: CpuSet,
    /// `cpuset.mems`.
    pub mems: String,
    /// Every process of the domain (float's and vcpu's included).
    pub procs: Vec<i32>,
    /// `float/`.
    pub float: Option<Leaf>,
    /// `vcpu/`.
    pub vcpu: Option<Leaf>,
}

/// A threaded cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leaf {
    /// Whether `cgroup.type` is `threaded` already.
    pub threaded: bool,
    /// `cpuset.cpus`.
    pub cpus: CpuSet,
    /// `cpuset.cpus.exclusive`.
    pub exclusive: CpuSet,
    /// `cpuset.cpus.partition` as printed; empty where the kernel has none.
    pub partition: String,
    /// Threads in it.
    pub threads: Vec<i32>,
}

/// A recorded vCPU thread now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuNow {
    /// Where it is.
    pub cgroup: CgroupPath,
    /// Where it may run.
    pub affinity: CpuSet,
}
