#![doc = include_str!("README.md")]

mod encoding;
mod home;
mod place;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)]
pub mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod vcpu;

use std::collections::BTreeMap;
use std::fmt;

use stelia_api::ThreadRole;
use stelia_cpus::text::named;
use stelia_cpus::{CpuSet, NodeSet};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::proc::TaskId;
use stelia_koordinator::allocator::{Allocation, Qos};
use stelia_kubelet::PodUid;
use stelia_settings::{Partition, PlacementPolicy, QuietRequest};

pub use encoding::{RecordError, SCHEMA_ATTRIBUTE, is_prop_name};
pub use home::Home;
pub use place::RecordPlace;
pub use tree::{IN_PLACE, Tree};
pub use vcpu::Vcpu;

/// What stands for "not pinned" in the attribute `vcpus`.
const UNPINNED: &str = "-";

named! {
    /// Where an instance is in its life. The names are the record's.
    #[derive(PartialOrd, Ord)]
    pub enum Phase {
        /// The scope exists; the container's processes are being moved to float.
        Registered = "registered",
        /// Everything but the anchor is in float. A whole container has no float and is `Attaching` next.
        Floating = "floating",
        /// vCPU threads are handed over: they are being moved, pinned and isolated. A whole container: its partition is being made.
        Attaching = "attaching",
        /// The vCPU threads are in a partition of their own, or the whole container's cgroup is one, as read back from the kernel.
        Isolated = "isolated",
        /// The vCPU threads are pinned, or the whole container stays on its CPUs, without a partition: other tasks are kept off by
        /// `AllowedCPUs=` of other units only.
        Pinned = "pinned",
        /// Being deregistered: processes return to the origin, CPUs are released.
        Leaving = "leaving",
    }
}

impl Phase {
    /// Whether the vCPU threads belong in `vcpu/`.
    pub fn has_vcpus(self) -> bool {
        matches!(self, Self::Attaching | Self::Isolated | Self::Pinned)
    }
}

/// A thread of QEMU that is pinned, and its CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VcpuThread {
    /// As its number in JSON and in the record.
    #[serde(rename = "index")]
    pub role: ThreadRole,
    pub task: TaskId,
    /// The CPU it is pinned to; `None` where there are more vCPUs than CPUs: it may use the whole set.
    pub cpu: Option<u32>,
}

impl fmt::Display for VcpuThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:", u32::from(self.role), self.task.id, self.task.start)?;
        match self.cpu {
            Some(cpu) => write!(f, "{cpu}"),
            None => f.write_str(UNPINNED),
        }
    }
}

/// That an instance was made by a rule of the node's administrator (`[[adopt]]`), not by its pod.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Adopted {
    /// The rule's name.
    pub rule: String,
    /// The vCPUs run where others pin them, as far as each has a CPU of its own there (placement "keep").
    pub keeps: bool,
    /// The rule wants no partition: the instance is pinned, and stays so when the rule is gone.
    pub pinned: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Record {
    pub pod: PodUid,
    /// The container's name in kubelet's state.
    pub container: String,
    /// The container's own cgroup below kubepods.
    pub origin: CgroupPath,
    /// Where it lives.
    pub home: Home,
    /// The sleeping process that stays in the origin and keeps the container's cgroup alive; `None` where nothing leaves it.
    pub anchor: Option<TaskId>,
    /// `None` where the pod registered itself.
    pub adopted: Option<Adopted>,
    /// The container's exclusive CPUs: its entry without the CPUs that other containers of the pod use, and without spare ones.
    pub exclusive: CpuSet,
    /// Where others pin the vCPUs of an adopted VM: those of the container's own CPUs that no vCPU is pinned to. Its other
    /// threads run there.
    pub spare: CpuSet,
    /// The container's entry in kubelet's state when `exclusive` was derived from it; where steliad chose the CPUs,
    /// equal to `exclusive`.
    pub entry: CpuSet,
    /// How steliad chose the CPUs; `None` where kubelet did.
    pub allocation: Option<Allocation>,
    /// The part of the pod's own CPUs that its containers share (pod-level resources), once it is known; kubelet's file
    /// does not say it.
    pub pod_pool: Option<CpuSet>,
    /// Whether a scheduler chose its CPUs or NUMA nodes, and accounts for them: then no rebind job moves the instance.
    pub scheduled: bool,
    /// What its pod ordered for its CPUs besides keeping tasks off them.
    pub quiet: QuietRequest,
    /// The origin's `cpuset.mems`; empty = not restricted.
    pub mems: NodeSet,
    /// The NUMA nodes of the container's devices when steliad chose the CPUs, by kubelet's record; empty where kubelet chose them.
    #[serde(with = "stelia_cpus::node_set::as_array")]
    pub devices: NodeSet,
    pub phase: Phase,
    /// The vCPU threads handed over; empty before AttachVcpus.
    pub vcpus: Vec<VcpuThread>,
    /// QMP's properties of each vCPU (socket, core, thread, node) by index: needed to place them again when the CPUs
    /// change.
    pub props: BTreeMap<u32, BTreeMap<String, i64>>,
    pub placement: PlacementPolicy,
    pub partition: Partition,
    /// Whether the kernel refused the partition, and has not made it since: one of a pinned instance is asked for again.
    pub refused: bool,
    /// Microseconds since the epoch.
    pub registered_us: u64,
    /// Microseconds since the epoch; 0 before isolation.
    pub isolated_us: u64,
}

impl Record {
    /// The vCPUs as they were handed over, for placing them.
    pub fn guest(&self) -> Vec<Vcpu> {
        let one = |thread: &VcpuThread| match thread.role {
            ThreadRole::Vcpu(index) => Some(Vcpu {
                index,
                props: self.props.get(&index).cloned().unwrap_or_default(),
            }),
            ThreadRole::IoThread(_) => None,
        };
        self.vcpus.iter().filter_map(one).collect()
    }

    /// The container's own CPUs: the vCPUs' and the spare ones.
    pub fn own(&self) -> CpuSet {
        self.exclusive.union(&self.spare)
    }

    /// The record with these CPUs as the container's own. Where others pin the vCPUs, those that no vCPU is pinned to are spare.
    #[must_use]
    pub fn with_own(mut self, own: CpuSet) -> Self {
        let keeps = self.keeps_pins() && self.home != Home::Container;
        let pins: Option<CpuSet> = self.vcpus.iter().map(|thread| thread.cpu).collect();
        let pins = pins.filter(|pins| keeps && self.allocation.is_none() && !pins.is_empty() && pins.is_subset(&own));
        self.exclusive = pins.unwrap_or_else(|| own.clone());
        self.spare = own.difference(&self.exclusive);
        self
    }

    /// Whether the vCPUs run where others pin them (libvirt's `vcpupin`), by the rule that adopted the VM.
    pub fn keeps_pins(&self) -> bool {
        self.adopted.as_ref().is_some_and(|adopted| adopted.keeps)
    }

    /// Whether its CPUs are to be a partition. Else it is pinned at most.
    pub fn has_partition(&self) -> bool {
        self.partition.is_partition()
    }

    /// The class, where steliad's own allocator decides; `None` where kubelet chose the CPUs.
    pub fn qos(&self) -> Option<Qos> {
        self.allocation.as_ref().map(|allocation| allocation.qos)
    }
}
