//! Whether kubelet would start on its state files too: it does not if they have another policy, other CPUs or other memory than is configured.

use kubelet_planner::cpus::{CpuRefusal, CpuState};
use kubelet_planner::memory::MemoryState;
use kubelet_planner::start_errors::{self, StartProblem};
use kubelet_planner::{CpuManager, Machine, Node, NodeState, StartError};
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::dra_manager_state::DRA_MANAGER_STATE;
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::{CpuManagerState, KubeletConfig, MemoryManagerState};

use crate::settings::settings;

/// kubelet's state files; `None`: one does not exist, and kubelet writes it when it starts.
#[derive(Debug, Clone, Copy, Default)]
pub struct StateFiles<'a> {
    pub cpus: Option<&'a CpuManagerState>,
    pub memory: Option<&'a MemoryManagerState>,
}

/// Everything that is known to keep kubelet from starting with this configuration on this machine (where it is known) and these files; empty where
/// it would start.
pub fn problems(config: &KubeletConfig, machine: Option<&Machine>, files: StateFiles<'_>) -> Vec<StartProblem> {
    let mut problems = start_errors::problems(config, machine);
    let stored = files.cpus.map(|state| state.policy.as_str());
    let configured = config.cpu_manager_policy.as_str();
    problems.extend(policy(CPU_MANAGER_STATE, "cpuManagerPolicy", "", configured, stored));
    let stored = files.memory.map(|state| state.policy.as_str());
    let (configured, prefix) = (config.memory_manager_policy.as_str(), "[memorymanager] ");
    problems.extend(policy(
        MEMORY_MANAGER_STATE,
        "memoryManagerPolicy",
        prefix,
        configured,
        stored,
    ));
    // kubelet looks at its files after everything else, and the planner knows no settings that are wrong. What is wrong with the reservation of
    // memory does not matter to it where there is a file.
    let goes_on = |problem: &StartProblem| files.memory.is_some() && problem.is_of_reserved_memory();
    if problems.iter().all(goes_on)
        && let Some(machine) = machine
    {
        problems.extend(state(config, machine, files));
    }
    problems
}

/// Whether kubelet reads this file when it starts: `dra_manager_state` with DynamicResourceAllocation, which is on since 1.34;
/// `allocated_pods_state` and `actuated_pods_state` from 1.33 on with InPlacePodVerticalScaling, which is on. `version`: its minor version, where
/// that is known.
pub fn reads(file: &str, config: &KubeletConfig, version: Option<u32>) -> bool {
    let gate = |name: &str| config.feature_gates.get(name).copied();
    let is_since = |first: u32| version.is_none_or(|minor| minor >= first);
    match file {
        DRA_MANAGER_STATE => gate("DynamicResourceAllocation").unwrap_or(is_since(34)),
        _ => gate("InPlacePodVerticalScaling").unwrap_or(true) && is_since(33),
    }
}

/// Whether the reservation of memory is known from the state file alone: the configuration has none, and the file has some.
pub fn is_reserved_in_file(config: &KubeletConfig, memory: Option<&MemoryManagerState>) -> bool {
    let nodes = memory.into_iter().flat_map(|state| state.nodes.values());
    let mut tables = nodes.flat_map(|node| node.tables.values());
    config.reserved_memory.is_empty() && tables.any(|table| table.system_reserved > 0)
}

fn policy(
    file: &'static str,
    setting: &str,
    prefix: &str,
    configured: &str,
    stored: Option<&str>,
) -> Option<StartProblem> {
    let stored = stored.filter(|stored| *stored != configured)?;
    Some(StartProblem::State {
        file,
        why: format!("{prefix}configured policy {configured:?} differs from state checkpoint policy {stored:?}"),
        instead: format!("set {setting} back to {stored}"),
    })
}

fn state(config: &KubeletConfig, machine: &Machine, files: StateFiles<'_>) -> Option<StartProblem> {
    let settings = match settings(config, files.memory) {
        Ok(settings) => settings,
        Err(why) => return Some(StartProblem::Other(why)),
    };
    let cpus = files.cpus.filter(|_| settings.cpu_manager != CpuManager::None);
    let state = NodeState {
        cpus: cpus.map(CpuState::from).unwrap_or_default(),
        memory: files.memory.map(MemoryState::from).unwrap_or_default(),
        devices: Default::default(),
    };
    let why = Node::start(machine.clone(), settings, state).err()?;
    let text = why.to_string();
    let of_file = |file, instead: &str| StartProblem::State {
        file,
        why: text.clone(),
        instead: instead.to_owned(),
    };
    Some(match why {
        StartError::Cpus(CpuRefusal::ReservedCount { .. } | CpuRefusal::ReservedUnknown(_)) => {
            StartProblem::Other(text)
        }
        StartError::Cpus(_) => of_file(
            CPU_MANAGER_STATE,
            "set reservedSystemCPUs, strict-cpu-reservation and the CPUs that are online back to what they were",
        ),
        StartError::Memory(_) => of_file(MEMORY_MANAGER_STATE, ""),
        StartError::Options(_) | StartError::Topology(_) => StartProblem::Other(text),
        // Limits of the prediction, not of kubelet.
        StartError::TooManyNodes { .. } | StartError::Node(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stelia_cpus::testing::Shape;
    use stelia_koordinator::report::numa::{KernelNumaNode, NumaMemory};
    use stelia_kubelet::config::{File, Flags};
    use stelia_kubelet::memory::{MemorySchema, MemoryTable, NumaNodeState};

    use super::*;
    use crate::machine;

    fn config(keys: &str) -> KubeletConfig {
        let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{keys}");
        let file = File::parse(&text, "config.yaml").unwrap();
        KubeletConfig::new(Some(file), Vec::new(), Flags::default()).unwrap()
    }

    const KEYS: &str = "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\nmemoryManagerPolicy: Static\n\
        reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n";

    fn found(
        config: &KubeletConfig,
        cpus: Option<&CpuManagerState>,
        memory: Option<&MemoryManagerState>,
    ) -> Vec<String> {
        let shape = Shape {
            nodes: 1,
            cores: 4,
            threads: 1,
            interleaved: false,
        };
        let memory_of = KernelNumaNode {
            memory: Some(NumaMemory {
                total: 43 << 20,
                ..NumaMemory::default()
            }),
            ..KernelNumaNode::default()
        };
        let machine = machine(&shape.topology(), &BTreeMap::new(), &[(0, memory_of)].into());
        let problems = problems(config, Some(&machine), StateFiles { cpus, memory });
        problems.iter().map(ToString::to_string).collect()
    }

    fn cpus(policy: &str, default: &str) -> CpuManagerState {
        CpuManagerState {
            policy: policy.to_owned(),
            default_cpus: default.parse().unwrap(),
            ..CpuManagerState::absent()
        }
    }

    #[test]
    fn files_that_fit_keep_it_from_nothing() {
        assert_eq!(found(&config(KEYS), None, None), Vec::<String>::new());
        assert_eq!(
            found(&config(KEYS), Some(&cpus("static", "0-3")), None),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_file_of_another_policy_or_of_other_cpus_is_told() {
        let differs = found(&config(KEYS), Some(&cpus("none", "")), None);
        assert_eq!(
            differs,
            ["configured policy \"static\" differs from state checkpoint policy \"none\""]
        );
        let offline = found(&config(KEYS), Some(&cpus("static", "0-2")), None);
        assert!(
            offline.len() == 1 && offline[0].contains("current set of available CPUs"),
            "{offline:?}"
        );
    }

    fn memory(total: u64, system_reserved: u64) -> MemoryManagerState {
        let table = MemoryTable {
            total,
            system_reserved,
            allocatable: 0,
            reserved: 0,
            free: 0,
        };
        let node = NumaNodeState {
            assignments: 0,
            cells: vec![0],
            tables: [("memory".to_owned(), table)].into(),
        };
        MemoryManagerState {
            schema: MemorySchema::V1,
            policy: "Static".to_owned(),
            nodes: [(0, node)].into(),
            entries: [].into(),
            pod_entries: [].into(),
        }
    }

    #[test]
    fn memory_that_is_another_after_a_reboot_is_told_with_node_and_amounts() {
        let found = found(&config(KEYS), None, Some(&memory(42 << 20, 100 << 20)));
        assert_eq!(
            found,
            [
                "[memorymanager] the expected machine state is different from the real one: memory of NUMA node 0 is 45088768 bytes, in the file 44040192"
            ]
        );
    }

    #[test]
    fn a_missing_reservation_does_not_hide_what_is_wrong_with_the_file() {
        let keys = "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\nmemoryManagerPolicy: Static\n";
        let missing = config(keys);
        let stored = memory(42 << 20, 100 << 20);
        assert!(is_reserved_in_file(&missing, Some(&stored)));
        let both = found(&missing, None, Some(&stored));
        assert!(
            both.len() == 2
                && both[0].starts_with("reservedMemory has 0 bytes")
                && both[1].contains("in the file 44040192"),
            "{both:?}"
        );
        // Without a file, or with one that reserves nothing, the reservation is not known.
        assert!(!is_reserved_in_file(&missing, None));
        assert!(!is_reserved_in_file(&missing, Some(&memory(43 << 20, 0))));
        assert!(!is_reserved_in_file(&config(KEYS), Some(&stored)));
        let alone = found(&missing, None, None);
        assert!(
            alone.len() == 1 && alone[0].starts_with("reservedMemory has 0 bytes"),
            "{alone:?}"
        );
    }
}
