//! The errors that keep kubelet from starting with a configuration.
//!
//! kubelet checks its configuration, then the machine against it, then its state files, and stops at the first error; the list has
//! all errors that can be determined at once. It follows kubelet 1.36 (`validation.go`, `container_manager_linux.go` and the managers' `NewManager`). A
//! configuration file that kubelet cannot read is an error of [`stelia_kubelet::config`]; [`Node::start`](crate::Node::start) checks the state files.

mod amounts;
mod enforcement;
mod gates;
mod problem;
#[cfg(test)]
mod tests;

use stelia_cpus::text::near::misspelt;
use stelia_kubelet::KubeletConfig;

use crate::cpus::CpuOptions;
use crate::features::{FEATURES, Gate, KUBELET};
use crate::merge::{self, Policy, Scope};
use crate::node::Machine;

pub use amounts::{reserved_bytes, reserved_memory};
pub use problem::StartProblem;

/// Why kubelet would not start with this configuration; empty if no error is found. `machine`: that node's hardware; without it, the checks
/// that need it are skipped.
pub fn problems(config: &KubeletConfig, machine: Option<&Machine>) -> Vec<StartProblem> {
    let mut problems = Vec::new();
    gates(config, &mut problems);
    policies(config, &mut problems);
    amounts::amounts(config, &mut problems);
    problems.extend(enforcement::problems(config));
    cpus(config, machine, &mut problems);
    options(config, machine, &mut problems);
    if config.memory_manager_policy == STATIC_MEMORY {
        amounts::static_memory(config, machine, &mut problems);
    }
    problems
}

/// A warning for each gate that kubelet 1.36 does not have and whose name resembles none of its gates: an older or newer kubelet, or
/// OpenShift's, may have it.
pub fn unknown_gates(config: &KubeletConfig) -> Vec<String> {
    let unknown = config
        .feature_gates
        .keys()
        .filter(|gate| is_unknown(gate) && like(gate).is_none());
    unknown
        .map(|gate| {
            let gate = stelia_cpus::text::excerpt::name(gate);
            format!(
                "featureGates: kubelet 1.{KUBELET} has no gate {gate} and does not start with it; an older or newer one may have it, and \
                 OpenShift's passes over it"
            )
        })
        .collect()
}

fn is_unknown(gate: &str) -> bool {
    !gates::ALL_GATES.contains(&gate)
}

/// The gate whose name a misspelt one resembles.
fn like(gate: &str) -> Option<&'static str> {
    misspelt(gate, gates::ALL_GATES.iter().copied())
}

fn gates(config: &KubeletConfig, problems: &mut Vec<StartProblem>) {
    let set = &config.feature_gates;
    for (gate, on) in set {
        if is_unknown(gate) {
            problems.extend(like(gate).map(|like| StartProblem::MisspeltGate {
                gate: gate.clone(),
                like,
            }));
        } else if !on && gates::LOCKED.contains(&gate.as_str()) {
            problems.push(StartProblem::LockedGate(gate.clone()));
        }
    }
    // `AllAlpha` and `AllBeta` switch many other gates, which are not modelled.
    if set.contains_key("AllAlpha") || set.contains_key("AllBeta") {
        return;
    }
    let is_on = |gate: &str| {
        let default = gates::DEFAULTS.iter().find(|(name, _)| *name == gate);
        set.get(gate).copied().unwrap_or(default.is_some_and(|(_, on)| *on))
    };
    for (gate, needed) in gates::NEEDS.iter().filter(|(gate, _)| is_on(gate)) {
        let off = needed.iter().filter(|needed| !is_on(needed));
        problems.extend(off.map(|needs| StartProblem::GateNeeds { gate, needs }));
    }
}

const STATIC: &str = "static";
const STATIC_MEMORY: &str = "Static";

fn policies(config: &KubeletConfig, problems: &mut Vec<StartProblem>) {
    let one_of = |known: &[&str]| known.join(", ");
    let settings = [
        (
            "cpuManagerPolicy",
            &config.cpu_manager_policy,
            one_of(&["none", STATIC]),
        ),
        (
            "memoryManagerPolicy",
            &config.memory_manager_policy,
            one_of(&["None", STATIC_MEMORY]),
        ),
        (
            "topologyManagerPolicy",
            &config.topology_manager_policy,
            one_of(&Policy::ALL.map(Policy::name)),
        ),
        (
            "topologyManagerScope",
            &config.topology_manager_scope,
            one_of(&Scope::ALL.map(Scope::name)),
        ),
    ];
    for (setting, value, known) in settings {
        if !known.split(", ").any(|name| name == value) {
            let value = value.clone();
            problems.push(StartProblem::Policy { setting, value, known });
        }
    }
}

fn cpus(config: &KubeletConfig, machine: Option<&Machine>, problems: &mut Vec<StartProblem>) {
    let reserved = &config.reserved_system_cpus;
    let cgroups = [&config.system_reserved_cgroup, &config.kube_reserved_cgroup];
    if !reserved.is_empty() && cgroups.iter().any(|cgroup| !cgroup.is_empty()) {
        problems.push(StartProblem::ReservedCgroup);
    }
    if let Some(machine) = machine {
        let online = machine.cpus.cpus();
        let missing = reserved.difference(&online);
        if !missing.is_empty() {
            problems.push(StartProblem::ReservedCpus(missing));
        }
    }
    let is_static = config.cpu_manager_policy == STATIC;
    if is_static && reserved.is_empty() && config.reserved_count() == Ok(0) {
        problems.push(StartProblem::NothingReserved);
    }
    let options = &config.cpu_manager_policy_options;
    if config.cpu_manager_policy == "none" && !options.is_empty() {
        problems.push(StartProblem::OptionsOfNone(options.keys().cloned().collect()));
    }
    if is_static {
        match CpuOptions::parse(options) {
            Err(wrong) => problems.push(StartProblem::CpuOption(wrong)),
            Ok(parsed) if parsed.align_by_socket && config.topology_manager_policy == Policy::SingleNumaNode.name() => {
                problems.push(StartProblem::SocketOfOneNode);
            }
            Ok(parsed) => {
                let unfit = machine.and_then(|machine| parsed.check(&machine.cpus).err());
                problems.extend(unfit.map(StartProblem::CpuOption));
            }
        }
    }
}

/// CpuOptions whose gates are off: kubelet looks at the gate of each that is given, whatever its value. The Topology Manager's are read only where
/// it has a policy.
fn options(config: &KubeletConfig, machine: Option<&Machine>, problems: &mut Vec<StartProblem>) {
    let mut given: Vec<&String> = Vec::new();
    if config.cpu_manager_policy == STATIC {
        given.extend(config.cpu_manager_policy_options.keys());
    }
    let aligns = config.topology_manager_policy != Policy::None.name();
    if aligns {
        given.extend(config.topology_manager_policy_options.keys());
        match merge::MergeOptions::parse(&config.topology_manager_policy_options) {
            Err(wrong) => problems.push(StartProblem::TopologyOption(wrong)),
            Ok(parsed) => {
                let nodes = machine.map_or(0, |machine| machine.numa.len());
                if nodes > parsed.max_allowable_numa_nodes {
                    let most = parsed.max_allowable_numa_nodes;
                    problems.push(StartProblem::NumaNodes { nodes, most });
                }
            }
        }
    }
    let features = FEATURES
        .iter()
        .filter(|feature| given.iter().any(|name| *name == feature.name));
    let off = |gate: &Gate| !gate.is_on(&config.feature_gates);
    let without = features.filter_map(|feature| Some((feature, feature.gate(KUBELET).filter(off)?)));
    problems.extend(without.map(|(feature, gate)| StartProblem::OptionGate {
        option: feature.name,
        history: feature.history(),
        gate: gate.name,
    }));
}
