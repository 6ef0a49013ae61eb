//! kubelet's own configuration, as far as CPUs, memory and their alignment depend on it: the file of `--config`, the drop-ins
//! of `--config-dir`, and the flags of the running process.
//!
//! Flags win over drop-ins, these over the file, and all of it over kubelet's defaults. Files are read as kubelet reads them: whatever keeps
//! it from starting is an error, whatever it passes over is a [`Warning`] (`cmd/kubelet/app/server.go` of Kubernetes 1.36).

mod decode;
mod error;
mod flags;
mod read;
mod schema;
mod source;
mod yaml;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use error::ConfigError;
pub use flags::{Flags, parse_bool};
pub(super) use read::text;
pub use read::{kubeadm, read};
pub use source::{DropIn, File, Warning};
pub use yaml::values;

use stelia_cpus::CpuSet;
use stelia_cpus::quantity::{Quantity, QuantityError};

/// The merged configuration, kubelet's defaults included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletConfig {
    /// `none` or `static`.
    pub cpu_manager_policy: String,
    /// Options of that policy, such as `full-pcpus-only` and `strict-cpu-reservation`, with their values as text.
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    /// CPUs for the system and kubelet; empty when only their number is configured, or nothing.
    #[serde(rename = "reservedSystemCPUs", skip_deserializing)]
    pub reserved_system_cpus: CpuSet,
    /// Quantities for kubelet, by resource, as they are written.
    pub kube_reserved: BTreeMap<String, String>,
    /// Quantities for the system, by resource, as they are written. Without `reservedSystemCPUs` its CPUs and those of `kubeReserved`
    /// are how many kubelet chooses to reserve.
    pub system_reserved: BTreeMap<String, String>,
    /// Thresholds by signal, as they are written. That of memory counts as reserved.
    pub eviction_hard: BTreeMap<String, String>,
    /// The memory of each NUMA node that pods do not get.
    pub reserved_memory: Vec<MemoryReservation>,
    /// `none`, `best-effort`, `restricted` or `single-numa-node`.
    pub topology_manager_policy: String,
    /// `container` or `pod`.
    pub topology_manager_scope: String,
    /// Options of that policy, with their values as text.
    pub topology_manager_policy_options: BTreeMap<String, String>,
    /// `None` or `Static`.
    pub memory_manager_policy: String,
    /// The cgroup below which kubelet makes its pods' cgroups, in the form of paths in cgroupfs; `/` where none is configured.
    pub cgroup_root: String,
    /// `cgroupfs` or `systemd`, as configured: kubelet 1.34 and later ask the runtime and use this only where it does not answer.
    pub cgroup_driver: String,
    /// Whether pods' cgroups are below one for each QoS class and one for all pods.
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    /// The cgroup of the system's services, where kubelet is to limit them; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system_reserved_cgroup: String,
    /// The cgroup of kubelet and the runtime, where kubelet is to limit them; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kube_reserved_cgroup: String,
    /// What kubelet limits to what is allocatable or reserved: `pods`, `system-reserved`, `kube-reserved`, or `none` alone.
    #[serde(skip_serializing)]
    pub enforce_node_allocatable: Vec<String>,
    /// kubelet's root directory, where its checkpoints are.
    #[serde(skip_deserializing)]
    pub root_dir: PathBuf,
    /// The name of its Node where that differs from the host's (`--hostname-override`).
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub hostname_override: Option<String>,
    /// Feature gates that are set; those at their defaults are not here.
    pub feature_gates: BTreeMap<String, bool>,
    /// Whether flags may be missing here, because the program that kubelet is a part of hides its command line ([`HIDDEN`]).
    #[serde(skip)]
    pub hidden: bool,
    /// Whether a file or a flag has the CPU manager's policy; else it is kubelet's default.
    #[serde(skip)]
    pub has_cpu_policy: bool,
    /// What is in the files and has no effect.
    #[serde(skip)]
    pub warnings: Vec<Warning>,
}

/// Why settings are not known, and what to do about it.
pub const HIDDEN: &str = "k3s hides its command line; put kubelet-arg into /etc/rancher/k3s/config.yaml";

/// The memory of a NUMA node that pods do not get.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryReservation {
    /// The NUMA node's id, which the node may not have.
    pub numa_node: i64,
    /// Quantities, as they are written, of `memory` and of huge pages such as `hugepages-2Mi`.
    #[serde(deserialize_with = "quantities")]
    pub limits: BTreeMap<String, String>,
}

/// A quantity may be written as a number.
fn quantities<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let values = BTreeMap::<String, Value>::deserialize(deserializer)?;
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Ok(values.into_iter().map(|(kind, value)| (kind, text(value))).collect())
}

const CPU_POLICY: &str = "cpuManagerPolicy";

impl Default for KubeletConfig {
    /// kubelet's defaults without any file.
    fn default() -> Self {
        Self {
            cpu_manager_policy: "none".to_owned(),
            cpu_manager_policy_options: BTreeMap::new(),
            reserved_system_cpus: CpuSet::new(),
            kube_reserved: BTreeMap::new(),
            system_reserved: BTreeMap::new(),
            eviction_hard: BTreeMap::new(),
            reserved_memory: Vec::new(),
            topology_manager_policy: "none".to_owned(),
            topology_manager_scope: "container".to_owned(),
            topology_manager_policy_options: BTreeMap::new(),
            memory_manager_policy: "None".to_owned(),
            cgroup_root: "/".to_owned(),
            cgroup_driver: "cgroupfs".to_owned(),
            cgroups_per_qos: true,
            system_reserved_cgroup: String::new(),
            kube_reserved_cgroup: String::new(),
            enforce_node_allocatable: vec!["pods".to_owned()],
            root_dir: PathBuf::from("/var/lib/kubelet"),
            hostname_override: None,
            feature_gates: BTreeMap::new(),
            hidden: false,
            has_cpu_policy: false,
            warnings: Vec::new(),
        }
    }
}

/// The options for YAML of others than kubelet: an error must not quote the file, which may contain secrets, and aliases may repeat
/// 10,000 events only, because aliases of aliases grow exponentially, and a real file needs few.
pub fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
    }
}

impl KubeletConfig {
    /// Merges kubelet's sources: the file, the drop-ins from the first to the last, then the flags.
    ///
    /// # Errors
    /// A value has another type, or the reserved CPUs are not a CPU list.
    pub fn new(file: Option<File>, drop_ins: Vec<DropIn>, flags: Flags) -> Result<Self, ConfigError> {
        let in_files = source::has(file.as_ref(), &drop_ins, CPU_POLICY);
        let has_cpu_policy = in_files || flags.given.get(CPU_POLICY).is_some_and(|policy| policy != "");
        let (mut keys, warnings) = source::merged(file, drop_ins)?;
        // A flag replaces a whole map, and of the gates those that it names.
        for (key, value) in flags.given {
            match (keys.get_mut(&key), value) {
                (Some(Value::Object(gates)), Value::Object(named)) if key == "featureGates" => gates.extend(named),
                (_, value) => drop(keys.insert(key, value)),
            }
        }
        keys.retain(|_, value| value != "");
        let reserved = keys.get("reservedSystemCPUs").and_then(Value::as_str);
        let reserved_system_cpus = reserved.unwrap_or_default().parse();
        let read = serde_json::from_value::<Self>(keys.into()).map_err(|cause| ConfigError::Malformed {
            place: "kubelet's files and flags together".to_owned(),
            cause: cause.to_string(),
        })?;
        Ok(Self {
            reserved_system_cpus: reserved_system_cpus.map_err(ConfigError::ReservedCpus)?,
            root_dir: flags.root_dir.unwrap_or(read.root_dir),
            hostname_override: flags.hostname_override,
            has_cpu_policy,
            warnings,
            ..read
        })
    }

    /// Whether the CPU manager has the policy of its state file and not the one that is here, which some hidden flag overrides.
    pub fn is_overridden(&self, stored: Option<&str>) -> bool {
        self.hidden && stored.is_some_and(|stored| stored != self.cpu_manager_policy)
    }

    /// How many CPUs `kubeReserved` and `systemReserved` come to, rounded up: those that kubelet chooses itself where
    /// `reservedSystemCPUs` names none.
    ///
    /// # Errors
    /// An amount is not a quantity.
    pub fn reserved_count(&self) -> Result<u32, QuantityError> {
        let amounts = [&self.kube_reserved, &self.system_reserved];
        let sum = amounts
            .into_iter()
            .filter_map(|amounts| amounts.get("cpu"))
            .map(|text| text.parse::<Quantity>())
            .try_fold(Quantity::default(), |sum, amount| Ok(sum.plus(amount?)))?;
        Ok(u32::try_from(sum.value()).unwrap_or(u32::MAX))
    }

    /// Whether an option of the CPU manager's policy is on.
    pub fn cpu_option(&self, name: &str) -> bool {
        let value = self.cpu_manager_policy_options.get(name);
        value.is_some_and(|text| parse_bool(text) == Some(true))
    }
}

#[cfg(test)]
mod tests;
