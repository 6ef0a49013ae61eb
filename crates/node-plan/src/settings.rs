//! kubelet's settings as the planner takes them.

use std::collections::BTreeMap;

use kubelet_planner::cpus::{CpuOptions, Kubelet};
use kubelet_planner::merge::{Policy, Scope};
use kubelet_planner::start_errors::reserved_memory;
use kubelet_planner::{CpuManager, MemoryManager, Settings, merge};
use stelia_cpus::CpuSet;
use stelia_kubelet::{KubeletConfig, MemoryManagerState};

/// Converts kubelet's configuration; `memory`: the state file, which has `reservedMemory` too where the configuration is not known.
///
/// # Errors
/// A policy or an option is not known.
pub fn settings(config: &KubeletConfig, memory: Option<&MemoryManagerState>) -> Result<Settings, String> {
    let gate = |name: &str, default: bool| config.feature_gates.get(name).copied().unwrap_or(default);
    let mut cpu_manager = cpu_manager(
        &config.cpu_manager_policy,
        &config.cpu_manager_policy_options,
        &config.reserved_system_cpus,
    )?;
    // Where only the number of reserved CPUs is configured, not which.
    if let CpuManager::Static { count: count @ 0, .. } = &mut cpu_manager {
        let amount = config.reserved_count();
        *count = amount.map_err(|cause| format!("kubelet's reserved CPUs: {cause}"))? as usize;
    }
    Ok(Settings {
        cpu_manager,
        memory_manager: match config.memory_manager_policy.as_str() {
            "None" => MemoryManager::None,
            "Static" => MemoryManager::Static {
                reserved: match (config.reserved_memory.is_empty(), memory) {
                    (true, Some(state)) => reserved(state),
                    _ => reserved_memory(config),
                },
            },
            other => return Err(format!("there is no memory manager policy {other:?}")),
        },
        topology_policy: policy(&config.topology_manager_policy)?,
        topology_scope: scope(&config.topology_manager_scope)?,
        topology_options: merge::MergeOptions::parse(&config.topology_manager_policy_options)
            .map_err(|cause| cause.to_string())?,
        kubelet: Kubelet {
            pod_level_resource_managers: gate("PodLevelResources", true) && gate("PodLevelResourceManagers", false),
            ..Kubelet::default()
        },
    })
}

/// `cpuManagerPolicy`, with these CPUs reserved.
///
/// # Errors
/// The policy or an option is not known.
pub fn cpu_manager(policy: &str, options: &BTreeMap<String, String>, reserved: &CpuSet) -> Result<CpuManager, String> {
    match policy {
        "none" | "" => Ok(CpuManager::None),
        "static" => {
            let options = CpuOptions::parse(options).map_err(|cause| cause.to_string())?;
            Ok(CpuManager::reserving(options, reserved.clone()))
        }
        other => Err(format!("there is no CPU manager policy {other:?}")),
    }
}

/// `topologyManagerPolicy`
///
/// # Errors
/// It is not known.
pub fn policy(name: &str) -> Result<Policy, String> {
    Policy::parse(name).ok_or_else(|| format!("there is no Topology Manager policy {name:?}"))
}

/// `topologyManagerScope`
///
/// # Errors
/// It is not known.
pub fn scope(name: &str) -> Result<Scope, String> {
    Scope::parse(name).ok_or_else(|| format!("there is no Topology Manager scope {name:?}"))
}

/// `reservedMemory`, from the memory manager's state file.
fn reserved(state: &MemoryManagerState) -> BTreeMap<u32, BTreeMap<String, u64>> {
    let nodes = state.nodes.iter();
    let kinds = nodes.map(|(id, node)| {
        let kinds = node
            .tables
            .iter()
            .map(|(kind, table)| (kind.clone(), table.system_reserved));
        (*id, kinds.filter(|(_, bytes)| *bytes > 0).collect())
    });
    kinds.collect()
}

/// The options of the CPU manager that are on.
pub fn options_on(manager: &CpuManager) -> Vec<&'static str> {
    match manager {
        CpuManager::Static { options, .. } => options.on().collect(),
        CpuManager::None => Vec::new(),
    }
}
