//! One instance: what its D-Bus object shows, and what the daemon itself needs of it.

use crate::record::{Record, VcpuThread};
use serde::{Deserialize, Serialize};
use stelia_api::{Reason, State};
use stelia_cpus::{CpuSet, NodeSet};
use stelia_kernel::cgroup::CgroupPath;
use stelia_koordinator::allocator::Allocation;
use stelia_kubelet::{PodName, PodUid};
use stelia_settings::{AdoptPlacement, Isolation, QuietRequest};

use crate::{FloatReason, PinnedReason, members};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub pod: PodUid,
    /// `None` where the runtime does not tell it.
    #[serde(flatten, with = "members::pod_name")]
    pub pod_name: Option<PodName>,
    /// The container's name in kubelet's state.
    pub container: String,
    /// The rule that made it an instance; `None` where its pod registered itself.
    #[serde(with = "members::or_empty")]
    pub adopted_by: Option<String>,
    pub state: State,
    /// Since when it has this state, as far as the daemon knows: one that was started again in between knows the time of the last isolation.
    pub state_since_us: u64,
    /// Who has its exclusive CPUs.
    pub isolation: Isolation,
    /// What is wrong with it; empty where nothing is. What is wrong on the node is in [`crate::Node::problems`].
    pub degraded: Vec<Reason>,
    /// Why it is not isolated although nothing is wrong with it; `None` where it is, or where `degraded` says why.
    pub not_isolated: Option<Reason>,
    /// The instance's exclusive CPUs.
    pub exclusive: CpuSet,
    /// What steliad's allocator gave it; `None` where kubelet chose its CPUs.
    pub allocation: Option<Allocation>,
    /// `cpuset.cpus` of its float.
    pub float: CpuSet,
    /// What decided which CPUs these are.
    pub float_reason: FloatReason,
    /// What its pod ordered for its CPUs besides; only the daemon has it.
    #[serde(skip)]
    pub quiet: QuietRequest,
    /// Why it is pinned; `None` unless it is.
    pub pinned_reason: Option<PinnedReason>,
    /// The pod's own memory nodes, as `cpuset.mems` has them.
    pub mems: NodeSet,
    /// `cpuset.cpus.partition` of its `vcpu/`, or of the whole container, which the kernel may give a reason.
    pub partition: String,
    pub placement: AdoptPlacement,
    /// The scope's cgroup.
    pub scope: CgroupPath,
    /// The container's own cgroup.
    pub origin: CgroupPath,
    /// When it was registered.
    pub registered_us: u64,
    /// When its vCPUs were isolated; 0 before.
    pub isolated_us: u64,
    /// How much memory it may use, bytes: the lesser of its container's limit and of its scope's. `None`: there is no limit.
    pub memory_limit: Option<u64>,
    /// The vCPU threads, and I/O threads that are pinned.
    pub vcpus: Vec<PinnedThread>,
    /// It keeps CPUs that its container no longer has while vCPUs are unplugged; `None` otherwise.
    pub pending_resize: Option<PendingResize>,
}

/// A VM with more vCPUs than its container has CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingResize {
    /// How many exclusive CPUs the VM has.
    pub from: u32,
    /// How many remain.
    pub to: u32,
    /// When it leaves the others, whatever vCPUs it has then: microseconds of `CLOCK_MONOTONIC`.
    pub deadline_us: u64,
}

impl Instance {
    /// Empty, as the pod's name is, where the runtime does not tell it.
    pub fn namespace(&self) -> &str {
        self.pod_name.as_ref().map_or("", PodName::namespace)
    }

    pub fn name(&self) -> &str {
        self.pod_name.as_ref().map_or("", PodName::name)
    }

    /// Its QoS class; empty where kubelet chose its CPUs.
    pub fn class(&self) -> &str {
        self.allocation.as_ref().map_or("", |allocation| allocation.qos.name())
    }
}

/// A thread of `vcpu/`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedThread {
    #[serde(flatten)]
    pub thread: VcpuThread,
    /// The guest's NUMA node, of a vCPU (QMP's `node-id`); `None` where QEMU has none for the guest.
    pub guest_node: Option<u32>,
}

impl PinnedThread {
    /// The threads of a record.
    pub fn of(record: &Record) -> Vec<Self> {
        let node = |thread: &VcpuThread| {
            let props = record.props.get(&u32::from(thread.role))?;
            u32::try_from(*props.get("node-id")?).ok()
        };
        let threads = record.vcpus.iter();
        threads
            .map(|thread| Self {
                thread: *thread,
                guest_node: node(thread),
            })
            .collect()
    }
}
