//! The node that is asked about.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use kubelet_planner::cpus::CpuTopology;
use kubelet_planner::{CpuManager, Machine, Node, NodeState, NumaNode, Settings, cpus};
use stelia_cpus::{CpuSet, Topology};
use stelia_kubelet::checkpoint::{CPU_MANAGER_STATE, CheckpointError, MAX_BYTES};
use stelia_kubelet::devices::DEVICE_MANAGER_STATE;
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::{CpuManagerState, DeviceManagerState, KubeletConfig, MemoryManagerState, config};
use stelia_node_report::{Facts, numa};

use crate::input;

use super::settings::{cpu_manager, policy, scope, settings};

/// A node, and which of its facts are assumed.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    /// The described node's name; `None` for this node.
    pub(super) name: Option<String>,
    pub(super) topology: Topology,
    pub(super) node: Node,
    /// Assumptions, where neither the node nor the description has the fact.
    pub(super) notes: Vec<String>,
    /// The feature gates in kubelet's configuration; `None` where that is not known.
    pub(super) gates: Option<BTreeMap<String, bool>>,
}

impl Subject {
    /// Reads this node, below `root`.
    pub(super) fn here(root: &Path) -> Result<Self, String> {
        let mut notes = Vec::new();
        let sys = root.join("sys");
        let topology =
            Topology::read(&sys).map_err(|cause| format!("read the CPUs below {}: {cause}", sys.display()))?;
        let numa = numa::read(&sys).map_err(|cause| cause.to_string())?;
        let told = config::read(&root.join("proc"), root);
        let (mut config, known) = match told {
            Ok(config) => (config, true),
            Err(cause) => {
                notes.push(format!(
                    "kubelet's settings are not known ({cause}): its defaults are assumed, and what its state files say"
                ));
                (KubeletConfig::default(), false)
            }
        };
        let folder = root.join(config.root_dir.strip_prefix("/").unwrap_or(&config.root_dir));
        let cpus = state(&folder.join(CPU_MANAGER_STATE), CpuManagerState::parse)?;
        let memory = state(&folder.join(MEMORY_MANAGER_STATE), MemoryManagerState::parse)?;
        if let Some(state) = &cpus {
            match known {
                true if state.policy != config.cpu_manager_policy => {
                    return Err(differ(CPU_MANAGER_STATE, &state.policy, &config.cpu_manager_policy));
                }
                true => {}
                false => notes.extend(infer(&mut config, state, &topology.online())),
            }
        }
        if let Some(state) = &memory {
            match known {
                true if state.policy != config.memory_manager_policy => {
                    return Err(differ(
                        MEMORY_MANAGER_STATE,
                        &state.policy,
                        &config.memory_manager_policy,
                    ));
                }
                true => {}
                false => state.policy.clone_into(&mut config.memory_manager_policy),
            }
        }
        let devices = state(
            &folder.join("device-plugins").join(DEVICE_MANAGER_STATE),
            DeviceManagerState::parse,
        )?;
        if devices.as_ref().is_some_and(|state| !state.registered.is_empty()) {
            notes.push(
                "the NUMA nodes of devices that nobody has are in no file: they are taken for aligned to none"
                    .to_owned(),
            );
        }
        if memory.is_none() && config.memory_manager_policy == "Static" {
            "None".clone_into(&mut config.memory_manager_policy);
            notes.push(absent(
                &folder.join(MEMORY_MANAGER_STATE),
                "the memory manager is taken for off",
            ));
        }
        let settings = settings(&config, memory.as_ref())?;
        if cpus.is_none() && settings.cpu_manager != CpuManager::None {
            notes.push(absent(&folder.join(CPU_MANAGER_STATE), "no CPUs are given away yet"));
        }
        let of_cpus = |state: &CpuManagerState| match settings.cpu_manager {
            CpuManager::None => cpus::CpuState::default(),
            CpuManager::Static { .. } => cpus::CpuState::from(state),
        };
        let state = NodeState {
            cpus: cpus.as_ref().map(of_cpus).unwrap_or_default(),
            memory: memory.as_ref().map(Into::into).unwrap_or_default(),
            devices: devices.as_ref().map(Into::into).unwrap_or_default(),
        };
        let caches = topology.caches(&sys);
        let mut subject = Self::new(None, topology, &caches, &numa, settings, state, notes)?;
        subject.gates = known.then_some(config.feature_gates);
        Ok(subject)
    }

    /// A node as `steliactl node-topology` printed it.
    pub(super) fn described(facts: &Facts) -> Result<Self, String> {
        let mut notes = vec![
            "a described node tells nothing of the memory manager, of devices, L3 caches and feature gates: none is looked at"
                .to_owned(),
        ];
        let kubelet = &facts.kubelet;
        let reserved = match kubelet.reserved.is_empty() {
            true => &facts.reserved,
            false => &kubelet.reserved,
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
            None => notes.push("the Topology Manager's policy is not told: none is assumed".to_owned()),
        }
        let state = NodeState {
            cpus: given(facts, &settings.cpu_manager, reserved),
            ..NodeState::default()
        };
        let (name, topology) = (facts.name.clone(), facts.topology.clone());
        Self::new(
            Some(name),
            topology,
            &BTreeMap::new(),
            &facts.numa,
            settings,
            state,
            notes,
        )
    }

    fn new(
        name: Option<String>,
        topology: Topology,
        caches: &BTreeMap<u32, u32>,
        numa: &BTreeMap<u32, numa::NumaNode>,
        settings: Settings,
        state: NodeState,
        notes: Vec<String>,
    ) -> Result<Self, String> {
        let machine = machine(&topology, caches, numa);
        let node =
            Node::start(machine, settings, state).map_err(|cause| format!("kubelet would not start: {cause}"))?;
        Ok(Self {
            name,
            topology,
            node,
            notes,
            gates: None,
        })
    }

    pub(super) fn nodes(&self, cpus: &CpuSet) -> CpuSet {
        let found = cpus.iter().filter_map(|cpu| self.topology.cpus.get(&cpu));
        found.map(|cpu| cpu.node).collect()
    }
}

pub(crate) fn machine(
    topology: &Topology,
    caches: &BTreeMap<u32, u32>,
    numa: &BTreeMap<u32, numa::NumaNode>,
) -> Machine {
    let node = |(id, node): (&u32, &numa::NumaNode)| {
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
        cpus: CpuTopology::new(topology, caches),
        numa,
    }
}

/// A state file of kubelet's; `None` where it does not exist.
pub(crate) fn state<T>(path: &Path, parse: impl Fn(&[u8]) -> Result<T, CheckpointError>) -> Result<Option<T>, String> {
    match input::bytes(path, MAX_BYTES) {
        Ok(bytes) => parse(&bytes)
            .map(Some)
            .map_err(|cause| format!("{}: {cause}", path.display())),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(format!("read {}: {cause}", path.display())),
    }
}

fn absent(path: &Path, assumed: &str) -> String {
    format!("there is no {}: {assumed}", path.display())
}

fn differ(file: &str, stored: &str, configured: &str) -> String {
    format!("kubelet would not start: {file} is of policy {stored:?}, and {configured:?} is configured")
}

/// Fills in settings that are not known from the CPU manager's state: its policy, and as reserved CPUs those that are
/// in none of its lists.
fn infer(config: &mut KubeletConfig, state: &CpuManagerState, online: &CpuSet) -> Option<String> {
    state.policy.clone_into(&mut config.cpu_manager_policy);
    if state.policy != "static" || state.default_cpus.is_empty() {
        return None;
    }
    let entries = state
        .entries
        .values()
        .flat_map(BTreeMap::values)
        .chain(state.pod_entries.values());
    let listed = entries.fold(state.default_cpus.clone(), |listed, cpus| listed.union(cpus));
    let missing = online.difference(&listed);
    if missing.is_empty() {
        return None;
    }
    let note =
        format!("CPUs {missing} are in no list of kubelet's: strict-cpu-reservation is assumed, with these reserved");
    let strict = ("strict-cpu-reservation".to_owned(), "true".to_owned());
    config.cpu_manager_policy_options.extend([strict]);
    config.reserved_system_cpus = missing;
    Some(note)
}

/// The assigned CPUs of a described node. CPUs that the description shows as assigned without an owner count as
/// assigned.
fn given(facts: &Facts, manager: &CpuManager, reserved: &CpuSet) -> cpus::CpuState {
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
        default: match options.strict_cpu_reservation {
            true => default.difference(reserved),
            false => default,
        },
        entries,
        ..cpus::CpuState::default()
    }
}
