//! Whether kubelet would start on its state files. It does not if they have another policy, other CPUs or other memory
//! than is configured: systemd restarts it again and again, and the node is lost to the cluster until an operator finds
//! the reason.

use kubelet_planner::cpus::CpuRefusal;
use kubelet_planner::{
    CpuManager, MemoryManager, Node, NodeState, Settings, StartError, cpus, features, go_together, memory, merge,
};
use stelia_kubelet::checkpoint::CPU_MANAGER_STATE;
use stelia_kubelet::config::KubeletConfig;
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::{CpuManagerState, MemoryManagerState};
use stelia_node_plan::{machine, settings};

use super::Facts;
use super::checks::{Finding, failed, ok, warning};
use super::kubelet::KUBEADM;

pub(super) fn start(facts: &Facts) -> Finding {
    let (kubelet, place) = match (&facts.kubelet, &facts.files.stopped) {
        (Ok(kubelet), _) => (kubelet, String::new()),
        (Err(_), Some(kubelet)) => (kubelet, format!(" (none runs: its settings are taken from {KUBEADM})")),
        (Err(_), None) => return ok("nothing to look at"),
    };
    // A file that cannot be used is reported by the check `kubelet-state`.
    let Ok(stored) = &facts.files.cpus else {
        return ok("nothing to look at");
    };
    match refused(facts, kubelet, stored.as_ref()) {
        None => ok(format!("its state files go with its settings{place}")),
        Some(refused) => Finding {
            found: format!("kubelet would not start: {}{place}", refused.found),
            ..refused
        },
    }
}

fn refused(facts: &Facts, kubelet: &KubeletConfig, stored: Option<&CpuManagerState>) -> Option<Finding> {
    if let Some(stored) = stored.filter(|stored| stored.policy != kubelet.cpu_manager_policy) {
        let words = differs(&kubelet.cpu_manager_policy, &stored.policy);
        return Some(by_policy(
            kubelet,
            CPU_MANAGER_STATE,
            words,
            "cpuManagerPolicy",
            &stored.policy,
        ));
    }
    let memory = match &facts.files.memory {
        Ok(memory) => memory.as_ref(),
        Err(why) => return Some(by_state(kubelet, MEMORY_MANAGER_STATE, why.clone())),
    };
    if let Some(stored) = memory.filter(|stored| stored.policy != kubelet.memory_manager_policy) {
        let words = format!(
            "[memorymanager] {}",
            differs(&kubelet.memory_manager_policy, &stored.policy)
        );
        let setting = "memoryManagerPolicy";
        return Some(by_policy(kubelet, MEMORY_MANAGER_STATE, words, setting, &stored.policy));
    }
    let settings = match settings::settings(kubelet, memory) {
        Ok(settings) => settings,
        Err(why) => {
            return Some(warning(
                why,
                "correct the setting, unless this kubelet is newer than steliad and knows it",
            ));
        }
    };
    if let Err(why) = go_together(&settings) {
        return Some(by_option(why.to_string()));
    }
    by_machine(facts, kubelet, settings.clone(), (stored, memory)).or_else(|| by_gate(kubelet, &settings))
}

/// The message as kubelet writes it.
fn differs(configured: &str, stored: &str) -> String {
    format!("configured policy {configured:?} differs from state checkpoint policy {stored:?}")
}

fn by_policy(kubelet: &KubeletConfig, file: &str, words: String, setting: &str, stored: &str) -> Finding {
    let refused = by_state(kubelet, file, words);
    let cure = format!("{}; or set {setting} back to {stored}", refused.cure);
    Finding { cure, ..refused }
}

fn by_state(kubelet: &KubeletConfig, file: &str, why: String) -> Finding {
    let file = kubelet.root_dir.join(file);
    failed(
        why,
        format!("drain the node, stop kubelet, remove {}, start kubelet", file.display()),
    )
}

fn by_option(why: String) -> Finding {
    failed(
        why,
        "correct cpuManagerPolicyOptions and topologyManagerPolicyOptions (docs/kubelet.md)",
    )
}

/// What depends on this machine: reserved CPUs, online CPUs, memory and huge pages.
fn by_machine(
    facts: &Facts,
    kubelet: &KubeletConfig,
    mut settings: Settings,
    (cpus, memory): (Option<&CpuManagerState>, Option<&MemoryManagerState>),
) -> Option<Finding> {
    let (Ok(topology), Ok(numa)) = (&facts.topology, &facts.files.numa) else {
        return None;
    };
    if memory.is_none() {
        // What is reserved is known from the state file only.
        settings.memory_manager = MemoryManager::None;
    }
    let state = NodeState {
        cpus: match (&settings.cpu_manager, cpus) {
            (CpuManager::Static { .. }, Some(cpus)) => cpus::CpuState::from(cpus),
            _ => cpus::CpuState::default(),
        },
        memory: memory.map(memory::MemoryState::from).unwrap_or_default(),
        devices: Default::default(),
    };
    let machine = machine(topology, &facts.files.caches, numa);
    let why = Node::start(machine, settings, state).err()?;
    let text = why.to_string();
    Some(match why {
        StartError::Cpus(CpuRefusal::ReservedCount { .. } | CpuRefusal::ReservedUnknown(_)) => {
            failed(text, "set reservedSystemCPUs to CPUs that this node has")
        }
        StartError::Cpus(_) => {
            let refused = by_state(kubelet, CPU_MANAGER_STATE, text);
            let back =
                "or set reservedSystemCPUs, strict-cpu-reservation and the CPUs that are online back to what they were";
            let cure = format!("{}; {back}", refused.cure);
            Finding { cure, ..refused }
        }
        StartError::Memory(_) => by_state(kubelet, MEMORY_MANAGER_STATE, text),
        StartError::Options(_) => by_option(text),
        StartError::Topology(merge::TopologyRefusal::TooManyNodes { .. }) => failed(
            text,
            "fewer NUMA nodes by the firmware (NPS, SNC), topologyManagerPolicy: none, or the option max-allowable-numa-nodes (Kubernetes 1.31 on), which makes admissions slow",
        ),
        StartError::Topology(_) => by_option(text),
        // Limits of the prediction, not of kubelet: the check `hint-merge` reports too many NUMA nodes.
        StartError::TooManyNodes { .. } | StartError::Node(_) => return None,
    })
}

/// An option whose feature gate is off. Only a warning: another version of kubelet may need no gate.
fn by_gate(kubelet: &KubeletConfig, settings: &Settings) -> Option<Finding> {
    let missing = features::chosen(settings).into_iter().find_map(|feature| {
        let gate = feature.gate(features::KUBELET)?;
        (!gate.is_on(&kubelet.feature_gates)).then_some((feature, gate))
    });
    let (feature, gate) = missing?;
    Some(warning(
        format!(
            "{} ({}) needs the feature gate {} in 1.{}",
            feature.name,
            feature.history(),
            gate.name,
            features::KUBELET
        ),
        format!(
            "featureGates: {{{}: true}}, or leave the option out; another version of kubelet may differ",
            gate.name
        ),
    ))
}
