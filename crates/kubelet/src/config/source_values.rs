//! The keys that are read, from files or flags.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::MemoryReservation;

type Texts = BTreeMap<String, String>;

/// The keys of one source (file, drop-in or flags) that are used. `None`: it does not have the key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceValues {
    pub(super) cpu_manager_policy: Option<String>,
    pub(super) cpu_manager_policy_options: Option<Texts>,
    pub(super) reserved_system_cpus: Option<String>,
    pub(super) kube_reserved: Option<Texts>,
    pub(super) system_reserved: Option<Texts>,
    pub(super) eviction_hard: Option<Texts>,
    pub(super) reserved_memory: Option<Vec<MemoryReservation>>,
    pub(super) topology_manager_policy: Option<String>,
    pub(super) topology_manager_scope: Option<String>,
    pub(super) topology_manager_policy_options: Option<Texts>,
    pub(super) memory_manager_policy: Option<String>,
    pub(super) cgroup_root: Option<String>,
    pub(super) cgroup_driver: Option<String>,
    pub(super) cgroups_per_qos: Option<bool>,
    pub(super) system_reserved_cgroup: Option<String>,
    pub(super) kube_reserved_cgroup: Option<String>,
    pub(super) enforce_node_allocatable: Option<Vec<String>>,
    pub(super) feature_gates: Option<BTreeMap<String, bool>>,
}

impl SourceValues {
    /// The keys of files, whose types have been checked.
    pub(super) fn of_keys(keys: &Map<String, Value>) -> Self {
        let text = |name: &str| keys.get(name)?.as_str().map(str::to_owned);
        let texts = |name: &str| Some(texts(keys.get(name)?.as_object()?));
        let gates = keys.get("featureGates").and_then(Value::as_object);
        let list = |name: &str| keys.get(name)?.as_array();
        Self {
            cpu_manager_policy: text("cpuManagerPolicy"),
            cpu_manager_policy_options: texts("cpuManagerPolicyOptions"),
            reserved_system_cpus: text("reservedSystemCPUs"),
            kube_reserved: texts("kubeReserved"),
            system_reserved: texts("systemReserved"),
            eviction_hard: texts("evictionHard"),
            reserved_memory: list("reservedMemory").map(|list| list.iter().map(reservation).collect()),
            topology_manager_policy: text("topologyManagerPolicy"),
            topology_manager_scope: text("topologyManagerScope"),
            topology_manager_policy_options: texts("topologyManagerPolicyOptions"),
            memory_manager_policy: text("memoryManagerPolicy"),
            cgroup_root: text("cgroupRoot"),
            cgroup_driver: text("cgroupDriver"),
            cgroups_per_qos: keys.get("cgroupsPerQOS").and_then(Value::as_bool),
            system_reserved_cgroup: text("systemReservedCgroup"),
            kube_reserved_cgroup: text("kubeReservedCgroup"),
            enforce_node_allocatable: list("enforceNodeAllocatable").map(|list| list.iter().map(in_text).collect()),
            feature_gates: gates.map(|gates| {
                let gates = gates.iter();
                gates
                    .filter_map(|(gate, on)| Some((gate.clone(), on.as_bool()?)))
                    .collect()
            }),
        }
    }

    /// With what the flags have: a flag replaces a whole map, and of the gates those that it names.
    pub(super) fn overridden_by(self, flags: Self) -> Self {
        let mut feature_gates = self.feature_gates;
        if let Some(gates) = flags.feature_gates {
            feature_gates.get_or_insert_default().extend(gates);
        }
        Self {
            cpu_manager_policy: flags.cpu_manager_policy.or(self.cpu_manager_policy),
            cpu_manager_policy_options: flags.cpu_manager_policy_options.or(self.cpu_manager_policy_options),
            reserved_system_cpus: flags.reserved_system_cpus.or(self.reserved_system_cpus),
            kube_reserved: flags.kube_reserved.or(self.kube_reserved),
            system_reserved: flags.system_reserved.or(self.system_reserved),
            eviction_hard: flags.eviction_hard.or(self.eviction_hard),
            reserved_memory: flags.reserved_memory.or(self.reserved_memory),
            topology_manager_policy: flags.topology_manager_policy.or(self.topology_manager_policy),
            topology_manager_scope: flags.topology_manager_scope.or(self.topology_manager_scope),
            topology_manager_policy_options: flags
                .topology_manager_policy_options
                .or(self.topology_manager_policy_options),
            memory_manager_policy: flags.memory_manager_policy.or(self.memory_manager_policy),
            cgroup_root: flags.cgroup_root.or(self.cgroup_root),
            cgroup_driver: flags.cgroup_driver.or(self.cgroup_driver),
            cgroups_per_qos: flags.cgroups_per_qos.or(self.cgroups_per_qos),
            system_reserved_cgroup: flags.system_reserved_cgroup.or(self.system_reserved_cgroup),
            kube_reserved_cgroup: flags.kube_reserved_cgroup.or(self.kube_reserved_cgroup),
            enforce_node_allocatable: flags.enforce_node_allocatable.or(self.enforce_node_allocatable),
            feature_gates,
        }
    }
}

fn texts(map: &Map<String, Value>) -> Texts {
    map.iter().map(|(key, value)| (key.clone(), in_text(value))).collect()
}

/// A quantity may be written as a number.
fn in_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn reservation(value: &Value) -> MemoryReservation {
    let limits = value.get("limits").and_then(Value::as_object);
    MemoryReservation {
        numa_node: value.get("numaNode").and_then(Value::as_i64).unwrap_or(0),
        limits: limits.map(texts).unwrap_or_default(),
    }
}
