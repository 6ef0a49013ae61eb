//! A node as kubelet's managers see it: the machine, kubelet's settings, and what is allocated.

use std::collections::BTreeMap;
use std::sync::Arc;

use stelia_cpus::{CpuSet, NodeSet};

use super::cpus::{self, CpuGroups};
use super::pod::Pod;
use super::settings::{CpuManager, MemoryManager, Settings};
use super::{devices, memory, merge};

/// The hardware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The online CPUs.
    pub cpus: CpuGroups,
    /// Its NUMA nodes by id, those without CPUs or without memory included.
    pub numa: BTreeMap<u32, NumaNode>,
}

/// A NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Its memory, huge pages included; bytes.
    pub memory: u64,
    /// The number of huge pages by their size in bytes; sizes that the kernel supports and that have no pages are
    /// included.
    pub huge_pages: BTreeMap<u64, u64>,
    /// The row of `/sys/devices/system/node/node*/distance`.
    pub distances: Vec<u64>,
}

/// What is allocated: the managers' states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeState {
    /// `cpu_manager_state`; empty with policy `none`.
    pub cpus: cpus::CpuState,
    /// `memory_manager_state`; empty with policy `None`.
    pub memory: memory::MemoryState,
    /// What device plugins have registered, and `kubelet_internal_checkpoint`.
    pub devices: devices::DeviceState,
}

/// A node whose kubelet runs.
///
/// ```
/// use std::collections::BTreeMap;
/// use kubelet_planner::cpus::{CpuGroups, CpuOptions};
/// use kubelet_planner::{CpuManager, Machine, Node, NumaNode, Settings, NodeState};
/// use stelia_cpus::{Cpu, Topology};
///
/// let cpu = |cpu: u32| (cpu, Cpu { package: 0, core: cpu / 2, node: 0 });
/// let topology = Topology { cpus: (0..8).map(cpu).collect() };
/// let machine = Machine {
///     cpus: CpuGroups::new(&topology, &BTreeMap::new()),
///     numa: [(0, NumaNode { memory: 16 << 30, ..NumaNode::default() })].into(),
/// };
/// let settings = Settings {
///     cpu_manager: CpuManager::reserving(CpuOptions::default(), "0,4".parse()?),
///     ..Settings::default()
/// };
/// let node = Node::start(machine, settings, NodeState::default())?;
/// assert_eq!(node.state().cpus.default.to_string(), "0-7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub(super) machine: Arc<Machine>,
    pub(super) settings: Arc<Settings>,
    pub(super) state: NodeState,
    pub(super) merger: Arc<merge::Merger>,
}

/// Why kubelet does not start, or cannot be predicted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// An option of the CPU manager's policy.
    #[error(transparent)]
    Options(#[from] cpus::CpuOptionsError),
    /// The CPU manager.
    #[error("CPU manager: {0}")]
    Cpus(#[from] cpus::CpuRefusal),
    /// The memory manager.
    #[error(transparent)]
    Memory(#[from] memory::MemoryStartError),
    /// Not kubelet's: it starts, and looks at every set of these NUMA nodes when it admits a pod.
    #[error(
        "not predicted: {resource} can come from {nodes} NUMA nodes, and this planner looks at the sets of {MAX_NODES} at most; kubelet starts, and looks at all of them for each pod"
    )]
    TooManyNodes {
        /// CPUs, memory, or a resource of devices.
        resource: String,
        /// The NUMA nodes that have it.
        nodes: usize,
    },
    /// kubelet's masks have 64 bits.
    #[error(transparent)]
    Node(#[from] merge::NodeTooHigh),
    /// The Topology Manager.
    #[error("Topology Manager: {0}")]
    Topology(#[from] merge::TopologyRefusal),
}

/// Limit of the NUMA nodes whose sets are tried: a limit of this planner, not of kubelet.
pub const MAX_NODES: usize = 16;

impl StartError {
    /// Whether this is a limit of the planner: kubelet starts.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::TooManyNodes { .. })
    }

    /// The error as a sentence that says what becomes of kubelet.
    pub fn sentence(&self) -> String {
        match self {
            Self::TooManyNodes { .. } => self.to_string(),
            // kubelet creates its masks when it admits a pod, and crashes then because they are invalid.
            Self::Node(_) | Self::Topology(merge::TopologyRefusal::Node(_)) => {
                format!("kubelet would start, and crash when it admits a pod: {self}")
            }
            _ => format!("kubelet would not start: {self}"),
        }
    }
}

impl Node {
    /// Starts kubelet on the states of its files, or on empty ones.
    ///
    /// # Errors
    /// kubelet would not start: options exclude each other, or a state contradicts the machine or the settings.
    pub fn start(
        machine: impl Into<Arc<Machine>>,
        settings: impl Into<Arc<Settings>>,
        state: NodeState,
    ) -> Result<Self, StartError> {
        let mut node = Self::running(machine, settings, state)?;
        let mut cpus = std::mem::take(&mut node.state.cpus);
        if let Some(policy) = cpu_policy(&node.machine, &node.settings).transpose()? {
            policy.start(&mut cpus)?;
            node.state.cpus = cpus;
        }
        let settings = Arc::clone(&node.settings);
        match &settings.memory_manager {
            MemoryManager::None => node.state.memory = memory::MemoryState::default(),
            MemoryManager::Static { reserved } => {
                let gate = settings.kubelet.pod_level_resource_managers;
                node.state.memory.start(&node.machine.numa, reserved, gate)?;
            }
        }
        Ok(node)
    }

    /// A kubelet that is already running with these states, which are not checked against the machine. This serves callers that
    /// know only which resources of a node can still be allocated.
    ///
    /// # Errors
    /// kubelet would not start with these settings on this machine, whatever the states are.
    pub fn running(
        machine: impl Into<Arc<Machine>>,
        settings: impl Into<Arc<Settings>>,
        state: NodeState,
    ) -> Result<Self, StartError> {
        let (machine, settings) = (machine.into(), settings.into());
        if settings.memory_manager != MemoryManager::None {
            merge::NodeMask::try_from(&ids(&machine))?;
        }
        let merger = merger(&machine, &settings)?;
        if let CpuManager::Static { options, .. } = &settings.cpu_manager {
            options.check(&machine.cpus)?;
        }
        cpu_policy(&machine, &settings).transpose()?;
        // Checked last, because kubelet's own errors matter more than this planner's limit.
        let node_counts = node_counts(&machine, &settings, &state).into_iter();
        if let Some((resource, nodes)) = node_counts
            .filter(|(_, nodes)| *nodes > MAX_NODES)
            .max_by_key(|one| one.1)
        {
            return Err(StartError::TooManyNodes { resource, nodes });
        }
        Ok(Self {
            merger: Arc::new(merger),
            machine,
            settings,
            state,
        })
    }

    /// The same kubelet on the same machine with other allocations, which are not checked.
    #[must_use]
    pub fn with_state(&self, state: NodeState) -> Self {
        Self {
            state,
            merger: Arc::clone(&self.merger),
            machine: Arc::clone(&self.machine),
            settings: Arc::clone(&self.settings),
        }
    }

    /// The same node with a kubelet that differs in its version or its feature gates; allocations stay.
    #[must_use]
    pub fn with_kubelet(&self, kubelet: cpus::Kubelet) -> Self {
        let settings = Settings {
            kubelet,
            ..(*self.settings).clone()
        };
        Self {
            settings: Arc::new(settings),
            ..self.clone()
        }
    }

    /// The hardware.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// kubelet's settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is allocated.
    pub fn state(&self) -> &NodeState {
        &self.state
    }

    /// The reserved CPUs, including those that kubelet chose itself; empty with policy `none`.
    pub fn reserved_cpus(&self) -> CpuSet {
        self.cpu_policy()
            .map(|policy| policy.reserved().clone())
            .unwrap_or_default()
    }

    /// Whether kubelet allocates the pod its resources as a whole, to be divided among its containers.
    pub(super) fn divides(&self, pod: &Pod) -> bool {
        let settings = &self.settings;
        let scoped = settings.topology_policy != merge::Policy::None && settings.topology_scope == merge::Scope::Pod;
        scoped && settings.kubelet.pod_level_resource_managers && pod.own().is_some()
    }

    /// Whether kubelet gives the pod CPUs of its own if it admits the pod.
    pub fn gives_own_cpus(&self, pod: &Pod) -> bool {
        let Some(policy) = self.cpu_policy() else { return false };
        if self.divides(pod) {
            policy.exclusive_in_all(pod) > 0
        } else {
            pod.containers
                .iter()
                .any(|container| policy.exclusive(pod, container) > 0)
        }
    }

    /// The node after kubelet has cleaned up a pod that was removed.
    #[must_use]
    pub fn without(&self, pod: &str) -> Self {
        let mut node = self.clone();
        if let Some(policy) = self.cpu_policy() {
            let names = self.state.cpus.entries.get(pod).into_iter().flatten();
            for (container, _) in names {
                policy.remove(&mut node.state.cpus, pod, container);
            }
        }
        if let Some(policy) = self.memory_policy() {
            let names = self.state.memory.entries.get(pod).into_iter().flatten();
            for (container, _) in names {
                policy.remove(&mut node.state.memory, pod, container);
            }
        }
        node.state.devices.entries.remove(pod);
        node
    }

    /// The static policy; `None` with policy `none`. The start has already found that there can be one.
    pub(super) fn cpu_policy(&self) -> Option<cpus::StaticPolicy<'_>> {
        cpu_policy(&self.machine, &self.settings)?.ok()
    }

    /// The static policy; `None` with policy `None`.
    pub(super) fn memory_policy(&self) -> Option<memory::StaticPolicy> {
        let gate = self.settings.kubelet.pod_level_resource_managers;
        match self.settings.memory_manager {
            MemoryManager::None => None,
            MemoryManager::Static { .. } => Some(memory::StaticPolicy::new(gate)),
        }
    }

    /// The machine's NUMA nodes as a mask; empty where an id is beyond 63.
    pub(super) fn nodes(&self) -> merge::NodeMask {
        merge::NodeMask::try_from(&ids(&self.machine)).unwrap_or_default()
    }
}

fn cpu_policy<'a>(
    machine: &'a Machine,
    settings: &Settings,
) -> Option<Result<cpus::StaticPolicy<'a>, cpus::CpuRefusal>> {
    let CpuManager::Static {
        options,
        count,
        reserved,
    } = &settings.cpu_manager
    else {
        return None;
    };
    let policy = cpus::StaticPolicy::new(&machine.cpus, *options, settings.kubelet, *count, reserved);
    Some(policy)
}

/// The number of NUMA nodes that have each resource, for the resources whose manager tries every set of these nodes. With the
/// Topology Manager's policy `none`, only the memory manager tries sets.
fn node_counts(machine: &Machine, settings: &Settings, state: &NodeState) -> Vec<(String, usize)> {
    let aligned = settings.topology_policy != merge::Policy::None;
    let mut counts = Vec::new();
    let with_cpus: NodeSet = machine.cpus.nodes().iter().copied().collect();
    if aligned && settings.cpu_manager != CpuManager::None {
        counts.push(("CPUs".to_owned(), with_cpus.len()));
    }
    if settings.memory_manager != MemoryManager::None {
        let own = |node: &NumaNode| node.memory > 0 || !node.huge_pages.is_empty();
        let own = machine.numa.iter().filter(|(_, node)| own(node)).map(|(id, _)| *id);
        let stored = state.memory.nodes.iter();
        let stored = stored.filter(|(_, node)| memory::has_memory(node)).map(|(id, _)| *id);
        counts.push(("memory".to_owned(), own.chain(stored).collect::<NodeSet>().len()));
    }
    if aligned {
        let nodes = |devices: &devices::Devices| -> usize {
            let nodes = devices.values().flat_map(|device| &device.nodes);
            nodes.copied().collect::<NodeSet>().len()
        };
        let resources = state.devices.resources.iter();
        counts.extend(resources.map(|(name, devices)| (name.clone(), nodes(devices))));
    }
    counts
}

fn ids(machine: &Machine) -> NodeSet {
    machine.numa.keys().copied().collect()
}

fn merger(machine: &Machine, settings: &Settings) -> Result<merge::Merger, merge::TopologyRefusal> {
    let rows = machine.numa.iter();
    let distances = rows.map(|(id, node)| (*id, node.distances.clone())).collect();
    let (policy, options) = (settings.topology_policy, settings.topology_options);
    merge::Merger::new(policy, options, &ids(machine), &distances)
}
