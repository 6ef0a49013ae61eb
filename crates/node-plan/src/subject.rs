//! The node that is asked about.

use std::collections::{BTreeMap, BTreeSet};

use kubelet_planner::cpus::{AFFINITY_IS_LEAST_SINCE, CpuGroups};
use kubelet_planner::merge::Policy;
use kubelet_planner::start_errors::unknown_gates;
use kubelet_planner::{CpuManager, Machine, MemoryManager, Node, NodeState, NumaNode, Settings, cpus};
use stelia_cpus::{CpuSet, NodeSet, Topology};
use stelia_koordinator::report::{Facts, numa};
use stelia_kubelet::KubeletConfig;

use crate::devices::{DeviceWords, counted};
use crate::room::Room;
use crate::settings::{cpu_manager, policy, scope, settings};
use crate::start::{self, StateFiles};

/// A node, and which of its facts are assumed.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The described node's name; `None` for this node.
    pub name: Option<String>,
    pub topology: Topology,
    pub node: Node,
    /// Assumptions, where neither the node nor the description has the fact.
    pub notes: Vec<String>,
    /// What is in kubelet's configuration and has no effect.
    pub warnings: Vec<String>,
    /// What the node may give, and its pods request; `None` where kubelet's configuration is not known.
    pub room: Option<Room>,
    /// What is wrong with kubelet's files and does not keep it from starting.
    pub faults: Vec<String>,
    /// The CPUs that no container gets for itself.
    pub reserved: CpuSet,
    /// Resources of whose devices only the number is known: the planner's ids of them are none of the node's.
    pub counted: BTreeSet<String>,
}

impl Subject {
    /// A node as `steliactl export topology` printed it.
    ///
    /// # Errors
    /// kubelet would not start with what is described.
    pub fn described(facts: &Facts) -> Result<Self, String> {
        let untold = if facts.devices.is_empty() {
            "the memory manager, devices, L3 caches, feature gates or the requests of pods"
        } else {
            "the memory manager, L3 caches, feature gates or the requests of pods"
        };
        let mut notes = vec![format!(
            "the node's description does not contain {untold}: the answer does not consider them"
        )];
        let kubelet = &facts.kubelet;
        let reserved = if kubelet.reserved.is_empty() {
            &facts.reserved
        } else {
            &kubelet.reserved
        };
        let mut settings = Settings {
            cpu_manager: cpu_manager(&kubelet.cpu_policy, &kubelet.cpu_options, reserved)?,
            ..Settings::default()
        };
        match &kubelet.alignment {
            Some(alignment) => {
                settings.topology_policy = policy(&alignment.policy)?;
                settings.topology_scope = scope(&alignment.scope)?;
            }
            None => notes.push(
                "the node's description does not contain the Topology Manager's policy: the policy none is assumed"
                    .to_owned(),
            ),
        }
        Self::of_facts(facts, settings, reserved, notes)
    }

    /// The same node under another configuration of kubelet, which has assigned no memory yet.
    ///
    /// # Errors
    /// kubelet would not start with it.
    pub fn described_under(facts: &Facts, config: &KubeletConfig) -> Result<Self, String> {
        let settings = settings(config, None)?;
        let machine = machine(&facts.topology, &BTreeMap::new(), &facts.numa);
        let problems = start::problems(config, Some(&machine), StateFiles::default());
        if !problems.is_empty() {
            let words: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return Err(format!("kubelet would not start: {}", words.join("; ")));
        }
        let mut notes = vec![
            "the node's description does not contain L3 caches or the requests of pods: the answer does not consider them"
                .to_owned(),
        ];
        if settings.memory_manager != MemoryManager::None {
            notes.push("the node's description does not contain the memory that kubelet has reserved for pods: all of it is taken as free".to_owned());
        }
        let mut subject = Self::of_facts(facts, settings, &config.reserved_system_cpus, notes)?;
        subject.warnings = config.warnings.iter().map(ToString::to_string).collect();
        subject.warnings.extend(unknown_gates(config));
        Ok(subject)
    }

    fn of_facts(facts: &Facts, settings: Settings, reserved: &CpuSet, notes: Vec<String>) -> Result<Self, String> {
        let state = NodeState {
            cpus: cpu_state(facts, &settings.cpu_manager, reserved),
            devices: counted(&facts.devices),
            ..NodeState::default()
        };
        let (name, topology) = (facts.name.clone(), facts.topology.clone());
        let new = Self::new(
            Some(name),
            topology,
            &BTreeMap::new(),
            &facts.numa,
            settings,
            state,
            notes,
        );
        Ok(Self {
            reserved: reserved.clone(),
            counted: facts.devices.values().flat_map(BTreeMap::keys).cloned().collect(),
            ..new?
        })
    }

    /// The same node with these devices, instead of what is known of their resources.
    ///
    /// # Errors
    /// Devices are at more NUMA nodes than are looked at.
    pub fn with_devices(mut self, devices: &[DeviceWords]) -> Result<Self, String> {
        let mut state = self.node.state().clone();
        devices.iter().for_each(|words| words.apply(&mut state.devices));
        self.counted
            .extend(devices.iter().map(|words| words.resource().to_owned()));
        let settings = self.node.settings().clone();
        let node = Node::running(self.node.machine().clone(), settings, state);
        self.node = node.map_err(|cause| cause.sentence())?;
        Ok(self)
    }

    /// A node whose kubelet has these settings and this state.
    ///
    /// # Errors
    /// kubelet would not start.
    pub fn new(
        name: Option<String>,
        topology: Topology,
        caches: &BTreeMap<u32, u32>,
        numa: &BTreeMap<u32, numa::KernelNumaNode>,
        settings: Settings,
        state: NodeState,
        notes: Vec<String>,
    ) -> Result<Self, String> {
        let machine = machine(&topology, caches, numa);
        let node = Node::start(machine, settings, state).map_err(|cause| cause.sentence())?;
        Ok(Self {
            name,
            topology,
            reserved: node.reserved_cpus(),
            node,
            notes,
            warnings: Vec::new(),
            room: None,
            faults: Vec::new(),
            counted: BTreeSet::new(),
        })
    }

    /// The same node with kubelet 1.`minor`. `None`: the version is not known, and predicted is what releases up to 1.36 do; a note
    /// says so where later ones differ.
    #[must_use]
    pub fn with_version(mut self, minor: Option<u32>) -> Self {
        let settings = self.node.settings();
        let distributed = match &settings.cpu_manager {
            CpuManager::Static { options, .. } => options.distribute_cpus_across_numa,
            CpuManager::None => false,
        };
        match minor {
            Some(minor) => self.node = self.node.with_kubelet(settings.kubelet.of_version(minor)),
            None if distributed && settings.topology_policy != Policy::None => self.notes.push(format!(
                "kubelet's version is not known: CPUs are distributed as before 1.{AFFINITY_IS_LEAST_SINCE}, where a later kubelet takes them from at least as many NUMA nodes as the Topology Manager chose (--kubelet-version)"
            )),
            None => {}
        }
        self
    }

    /// The NUMA nodes of these CPUs.
    pub fn nodes(&self, cpus: &CpuSet) -> NodeSet {
        let found = cpus.iter().filter_map(|cpu| self.topology.cpus.get(&cpu));
        found.map(|cpu| cpu.node).collect()
    }
}

/// The hardware as the planner takes it; `caches`: the L3 cache of each CPU.
pub fn machine(
    topology: &Topology,
    caches: &BTreeMap<u32, u32>,
    numa: &BTreeMap<u32, numa::KernelNumaNode>,
) -> Machine {
    let node = |(id, node): (&u32, &numa::KernelNumaNode)| {
        let pages = node.huge_pages.iter();
        let described = NumaNode {
            memory: node.memory.map_or(0, |memory| memory.total),
            huge_pages: pages.map(|(size, pages)| (*size, pages.total)).collect(),
            distances: node.distances.values().map(|distance| u64::from(*distance)).collect(),
        };
        (*id, described)
    };
    let mut numa: BTreeMap<u32, NumaNode> = numa.iter().map(node).collect();
    // A kernel without NUMA lists no nodes.
    for cpu in topology.cpus.values() {
        numa.entry(cpu.node).or_default();
    }
    Machine {
        cpus: CpuGroups::new(topology, caches),
        numa,
    }
}

/// The assigned CPUs of a described node. CPUs that the description shows as assigned without an owner count as
/// assigned.
fn cpu_state(facts: &Facts, manager: &CpuManager, reserved: &CpuSet) -> cpus::CpuState {
    let CpuManager::Static { options, .. } = manager else {
        return cpus::CpuState::default();
    };
    let online = facts.topology.online();
    let entry = |cpus: &CpuSet| BTreeMap::from([("-".to_owned(), cpus.clone())]);
    let listed = facts.allocations.iter();
    let mut entries: BTreeMap<String, BTreeMap<String, CpuSet>> = listed
        .map(|one| (one.pod.as_str().to_owned(), entry(&one.cpus)))
        .collect();
    let listed = facts
        .allocations
        .iter()
        .fold(CpuSet::new(), |all, one| all.union(&one.cpus));
    let held = facts
        .exclusive
        .union(&listed)
        .intersection(&online)
        .difference(reserved);
    let nobodys = held.difference(&listed);
    if !nobodys.is_empty() {
        entries.insert("-".to_owned(), entry(&nobodys));
    }
    let default = online.difference(&held);
    cpus::CpuState {
        default: if options.strict_cpu_reservation {
            default.difference(reserved)
        } else {
            default
        },
        entries,
        ..cpus::CpuState::default()
    }
}
