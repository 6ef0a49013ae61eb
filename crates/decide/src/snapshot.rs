//! What was read of the system, as plain values: the input of every decision.

mod cgroups;

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::{CpuSet, Topology};
use stelia_kernel::cgroup::{CgroupPath, Limits};
use stelia_kernel::containers::{LiveContainer, container_scope};
use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::{CpuManagerState, PodName, PodUid};
use stelia_model::record::{Phase, Record, VcpuThread};
use stelia_settings::Partition;

pub use cgroups::{InstanceCgroup, MisplacedThread, RemainingThread, ThreadedCgroup, VcpuNow};

use super::Tree;
use super::disturbances::Disturbances;
use super::home::ListsInForce;
use super::workers::Workers;

/// kubelet's file and the cgroup tree at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// What chooses exclusive CPUs on this node.
    pub source: CpuSource,
    /// kubelet's state, or why it cannot be used. Where steliad chooses and kubelet has no file, it has no entries.
    pub kubelet: Result<CpuManagerState, String>,
    /// CPUs that kubelet's static policy assigned, before it was switched off, to containers that still run.
    pub leftover: CpuSet,
    /// The kind of partition that is safe on this kernel: see `stelia_kernel::kernel_release`.
    pub safe_partition: Partition,
    /// The CPUs of the host.
    pub topology: Topology,
    /// What is in stelia.slice besides instances.
    pub slice: Slice,
    /// The units outside stelia.slice that a pinned instance keeps off its CPUs, by name, where they have a cgroup.
    pub outside: BTreeMap<String, Outside>,
    /// Units that were restricted and are gone: what they had is still recorded.
    pub outside_gone: BTreeSet<String>,
    /// The instances by pod.
    pub instances: BTreeMap<PodUid, Instance>,
    /// The other running containers of an instance's pod: read where kubelet gave the pod CPUs of its own, to tell
    /// which of them are the pod's shared pool.
    pub siblings: BTreeMap<PodUid, Vec<LiveContainer>>,
    /// Pods whose entry in kubelet's state has been missing for less than 1 s: kubelet may be about to write it.
    pub unsettled: BTreeSet<PodUid>,
    /// The CPUs that instances are to keep when enough of their vCPUs are unplugged, where steliad chose them and was asked for fewer.
    pub to_keep: BTreeMap<PodUid, CpuSet>,
    /// Instances whose vCPUs were not unplugged in time after their container was given fewer CPUs: they leave the CPUs with the vCPUs they
    /// have.
    pub unplug_overdue: BTreeSet<PodUid>,
    /// Scopes, and containers by their path, whose record cannot be used, with the reason. Nothing is changed in them.
    pub unreadable: Vec<(String, String)>,
    /// `cpuset.cpus.exclusive` of those scopes: the slice must go on covering it, or their partitions would break.
    pub left_alone: CpuSet,
    /// Why there are no events for kubelet's file or the slice; `None` when there are.
    pub unwatched: Option<String>,
    /// Empty scopes that systemd does not remove: without a record, or for too long a time.
    pub abandoned: Vec<CgroupPath>,
    /// The cgroup that all pods are in, for instances in place.
    pub kubepods: Option<Level>,
    /// The pods' cgroups whose lists still have CPUs that were added for instances in place which ended.
    pub with_ours_left: BTreeSet<CgroupPath>,
    /// Containers of which attributes are left on their pod's cgroup: a daemon died while it wrote or removed the record, or the
    /// container ended.
    pub half_registered: BTreeSet<CgroupPath>,
    /// CPUs of containers whose record cannot be used: the levels above go on covering them. None of another pod's.
    pub left_in_place: CpuSet,
    /// What disturbs VMs' CPUs besides tasks.
    pub disturbances: Disturbances,
}

/// A cgroup that is not steliad's, on whose `cpuset.cpus.exclusive` it adds CPUs of instances in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The cgroup.
    pub path: CgroupPath,
    /// `cpuset.cpus.exclusive`; `None` where the kernel has no such file.
    pub exclusive: Option<CpuSet>,
    /// What was added here, as recorded on the cgroup: before it is added, so some of it may not be in the list.
    pub ours: CpuSet,
}

impl Level {
    /// Whether all of these CPUs are in the list and recorded as added.
    pub fn has(&self, cpus: &CpuSet) -> bool {
        let listed = self.exclusive.as_ref().is_some_and(|list| cpus.is_subset(list));
        listed && cpus.is_subset(&self.ours)
    }

    /// The part of the list that was added here.
    pub(crate) fn added(&self) -> CpuSet {
        let list = self.exclusive.as_ref();
        list.map(|list| list.intersection(&self.ours)).unwrap_or_default()
    }
}

/// `stelia.slice` as found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    /// `cpuset.cpus.exclusive`; `None` while there is no slice, no cpuset controller in it, or no such file in this
    /// kernel (before 6.7).
    pub exclusive: Option<CpuSet>,
    /// `cpu.weight`; `None` without the controller.
    pub weight: Option<u64>,
    /// `memory.min` and `memory.low`, bytes; `None` without the controller.
    pub protected: Option<(u64, u64)>,
    /// Controllers enabled for its children.
    pub controllers: BTreeSet<String>,
    /// The kernel's unbound workers, recorded on the slice; `None` where the kernel has no mask of them.
    pub workers: Option<Workers>,
}

/// A unit outside stelia.slice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outside {
    /// `cpuset.cpus`; empty where it is not restricted.
    pub cpus: CpuSet,
    /// `cpus` before steliad restricted the unit; `None` where it did not.
    pub saved: Option<CpuSet>,
}

/// One instance as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// What steliad keeps of it.
    pub record: Record,
    /// The pod's name, as long as the runtime's configuration of the container was found.
    pub pod_name: Option<PodName>,
    /// Its cgroups.
    pub tree: Tree,
    /// Whether any process is in the scope or below.
    pub populated: bool,
    /// Processes directly in the scope (the holder, while the tree is made).
    pub scope_procs: Vec<i32>,
    /// Controllers enabled for the scope's children.
    pub scope_controllers: BTreeSet<String>,
    /// `cpuset.cpus.exclusive` of the outermost cgroup that is the instance's alone: [`Tree::outer`].
    pub scope_exclusive: CpuSet,
    /// `instance/`, once it is there.
    pub inner: Option<InstanceCgroup>,
    /// Limits that its scope has.
    pub scope_limits: Limits,
    /// Limits the origin has, each the least of its ancestors'; `None` when the origin is gone.
    pub origin_limits: Option<Limits>,
    /// Memory of the scope that cannot be reclaimed, bytes: read where the origin's limit may be lower than the
    /// scope's.
    pub memory_held: Option<u64>,
    /// Processes in the origin; `None` when the origin is gone.
    pub origin_procs: Option<Vec<i32>>,
    /// `cpuset.cpus` of the whole container, which the runtime alone writes; empty when it is gone.
    pub origin_cpus: CpuSet,
    /// `cpuset.cpus.effective` of the origin: where its threads may run. Empty in place and when it is gone.
    pub origin_effective: CpuSet,
    /// Threads of the origin, read where they may run elsewhere than on the CPUs of kubelet's entry.
    pub origin_threads: Vec<RemainingThread>,
    /// Whether the anchor's process lives.
    pub anchor_lives: bool,
    /// For every recorded vCPU thread, in order, what it is now; `None` when it ended.
    pub vcpus: Vec<Option<VcpuNow>>,
    /// How often in a row the partition was written and the kernel did not make it.
    pub refusals: u32,
    /// Its processes have not frozen within 500 ms (a task in uninterruptible sleep).
    pub does_not_freeze: bool,
    /// Why there are no events for its files; `None` when there are.
    pub unwatched: Option<String>,
    /// The kernel refused its partition when it was last asked for, and is to be asked again.
    pub tries_again: bool,
    /// Threads that are in place in the container's own cgroup or another one below, or below one of the instance's two.
    pub strays: Vec<MisplacedThread>,
    /// The pod's cgroup; `None` in a scope.
    pub pod_level: Option<Level>,
}

impl Snapshot {
    /// A node of which nothing is known but this: nothing has cgroups there.
    pub fn empty(kubelet: Result<CpuManagerState, String>, source: CpuSource, topology: Topology) -> Self {
        Self {
            source,
            leftover: CpuSet::new(),
            kubelet,
            topology,
            safe_partition: Partition::Isolated,
            slice: Slice::default(),
            outside: BTreeMap::new(),
            outside_gone: BTreeSet::new(),
            instances: BTreeMap::new(),
            siblings: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            to_keep: BTreeMap::new(),
            unplug_overdue: BTreeSet::new(),
            unreadable: Vec::new(),
            left_alone: CpuSet::new(),
            unwatched: None,
            abandoned: Vec::new(),
            kubepods: None,
            with_ours_left: BTreeSet::new(),
            half_registered: BTreeSet::new(),
            left_in_place: CpuSet::new(),
            disturbances: Disturbances::default(),
        }
    }

    /// Instances with a process in their scope.
    pub fn live(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values().filter(|instance| instance.populated)
    }

    /// Replaces the instance and returns the former one.
    pub fn put(&mut self, instance: Instance) -> Option<Instance> {
        self.instances.insert(instance.record.pod.clone(), instance)
    }

    /// Whether this kernel has `cpuset.cpus.exclusive`, without which there are no partitions below a slice.
    pub fn has_partitions(&self) -> bool {
        let of_pods = self.kubepods.as_ref().is_some_and(|level| level.exclusive.is_some());
        self.slice.exclusive.is_some() || of_pods
    }
}

impl Instance {
    /// A container that was admitted and has no scope yet.
    pub fn admitted(record: Record, pod_name: Option<PodName>, tree: Tree) -> Self {
        Self {
            pod_name,
            populated: false,
            scope_procs: Vec::new(),
            scope_controllers: BTreeSet::new(),
            scope_exclusive: CpuSet::new(),
            inner: None,
            scope_limits: Limits::default(),
            origin_limits: None,
            memory_held: None,
            origin_procs: None,
            origin_cpus: record.entry.clone(),
            origin_effective: CpuSet::new(),
            origin_threads: Vec::new(),
            anchor_lives: true,
            vcpus: Vec::new(),
            refusals: 0,
            does_not_freeze: false,
            unwatched: None,
            tries_again: false,
            strays: Vec::new(),
            pod_level: None,
            record,
            tree,
        }
    }

    /// The cgroup of its vCPU threads, once it is there.
    pub fn vcpu(&self) -> Option<&ThreadedCgroup> {
        self.inner.as_ref()?.vcpu.as_ref()
    }

    /// The cgroup of its other threads, once it is there.
    pub fn float(&self) -> Option<&ThreadedCgroup> {
        self.inner.as_ref()?.float.as_ref()
    }

    /// How many tasks the last look listed: in the container's own cgroup and in the instance's.
    pub fn tasks(&self) -> usize {
        let leaves = [self.vcpu(), self.float()].into_iter().flatten();
        let in_leaves: usize = leaves.map(|leaf| leaf.threads.len()).sum();
        in_leaves + self.origin_threads.len() + self.origin_procs.as_ref().map_or(0, Vec::len)
    }

    /// The CPUs that are its: those it is to have, and those its vCPUs have not left yet.
    pub fn owned(&self) -> CpuSet {
        if self.populated {
            self.record.exclusive.union(&self.held())
        } else {
            self.record.exclusive.clone()
        }
    }

    /// The CPUs that its vCPU threads or its partition are on now, whatever its record says.
    pub fn held(&self) -> CpuSet {
        self.held_of(&self.behaviour().lists_in_force(self))
    }

    fn held_of(&self, ListsInForce { exclusive, cpus, .. }: &ListsInForce) -> CpuSet {
        if self.vcpu().is_some_and(|vcpu| !vcpu.threads.is_empty()) {
            exclusive.union(cpus)
        } else {
            exclusive.clone()
        }
    }

    /// The CPUs that no other instance can have before its cgroups are off them: those of [`Self::held`], and those of the
    /// exclusive lists of the levels above, the pod's in place included.
    pub fn listed(&self) -> CpuSet {
        let lists = self.behaviour().lists_in_force(self);
        let mut listed = self.held_of(&lists);
        listed.union_with(&self.scope_exclusive);
        listed.union_with(&lists.inner);
        if let Some(level) = &self.pod_level {
            listed.union_with(&level.ours);
        }
        listed
    }

    /// The CPUs that it is to have and that none of its cgroups has yet.
    pub fn needed(&self) -> CpuSet {
        self.record.exclusive.difference(&self.listed())
    }

    /// The CPUs that its partition is to have and that no exclusive list gives it; empty where it is to have no partition.
    pub fn lacked(&self) -> CpuSet {
        if self.record.has_partition() {
            let has = self.behaviour().lists_in_force(self).exclusive;
            self.record.exclusive.difference(&has)
        } else {
            CpuSet::new()
        }
    }

    /// Whether it is pinned and is to have no partition: because the kernel refused it, unless something forbids it.
    pub fn is_refused(&self) -> bool {
        self.record.phase == Phase::Pinned && !self.record.has_partition()
    }

    /// Follow a step that changed the record. What is known of the threads that remain stays known.
    pub fn follow(&mut self, next: Record) {
        let remains = |thread: &VcpuThread| next.vcpus.iter().any(|other| other.task == thread.task);
        let mut remaining = self.record.vcpus.iter().map(remains);
        self.vcpus.retain(|_| remaining.next().unwrap_or(true));
        self.record = next;
    }

    /// Whether the VM of an adopted instance ended, whose container may live on. Who registered itself deregisters itself.
    pub fn has_ended(&self) -> bool {
        // A thread that ends has left its cgroup before it has left /proc. Where the container's own cgroup is the partition, living
        // threads are there.
        let left = self.tree.has_float() && self.vcpu().is_some_and(|vcpu| vcpu.threads.is_empty());
        let ends = |now: &VcpuNow| left && now.cgroup == *self.tree.vcpu() || !self.has(&now.cgroup);
        let ended = self.vcpus.iter().all(|now| now.as_ref().is_none_or(ends));
        ended && !self.vcpus.is_empty() && self.record.adopted.is_some()
    }

    /// The same while its CPUs are not given back yet.
    pub fn is_over(&self) -> bool {
        self.has_ended() && self.record.phase.has_vcpus()
    }

    /// Whether this cgroup is one of the instance's or of its container's: tasks in others are never moved or pinned.
    pub fn has(&self, cgroup: &CgroupPath) -> bool {
        cgroup.is_within(self.tree.outer()) || cgroup.is_within(&container_scope(&self.record.origin))
    }

    /// Its unit's cgroup, or in place the one that the container's processes are in.
    pub fn scope(&self) -> &CgroupPath {
        self.tree.scope()
    }
}
