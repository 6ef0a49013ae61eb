//! kubelet's own configuration, as far as CPUs and their alignment depend on it: the file of `--config`, the drop-ins
//! of `--config-dir`, and the flags of the running process.
//!
//! Flags win over drop-ins, these over the file, and all of it over kubelet's defaults (`cmd/kubelet/app/server.go` of
//! Kubernetes 1.36). A map is merged key by key, except that flags replace a whole map of policy options, as kubelet's
//! own flags do.

mod error;
mod flags;
mod read;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use error::ConfigError;
pub use flags::{Flags, parse_bool};
pub use read::read;
pub(super) use read::text;

use stelia_cpus::CpuSet;
use stelia_text::excerpt;

/// The merged configuration, kubelet's defaults included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletConfig {
    /// `none` or `static`.
    pub cpu_manager_policy: String,
    /// Options of that policy, such as `full-pcpus-only` and `strict-cpu-reservation`, with their values as text.
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    /// CPUs for the system and kubelet; empty when only their number is configured, or nothing.
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: CpuSet,
    /// The CPUs of `kubeReserved` and `systemReserved`, as quantities are written; without `reservedSystemCPUs` their sum is how
    /// many kubelet chooses to reserve.
    #[serde(skip)]
    pub reserved_amounts: Vec<String>,
    /// `none`, `best-effort`, `restricted` or `single-numa-node`.
    pub topology_manager_policy: String,
    /// `container` or `pod`.
    pub topology_manager_scope: String,
    /// Options of that policy, with their values as text.
    pub topology_manager_policy_options: BTreeMap<String, String>,
    /// `None` or `Static`.
    pub memory_manager_policy: String,
    /// kubelet's root directory, where its checkpoints are.
    pub root_dir: PathBuf,
    /// The name of its Node where that differs from the host's (`--hostname-override`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname_override: Option<String>,
    /// Feature gates that are set; those at their defaults are not here.
    pub feature_gates: BTreeMap<String, bool>,
}

impl Default for KubeletConfig {
    /// kubelet's defaults.
    fn default() -> Self {
        Self {
            cpu_manager_policy: "none".to_owned(),
            cpu_manager_policy_options: BTreeMap::new(),
            reserved_system_cpus: CpuSet::new(),
            reserved_amounts: Vec::new(),
            topology_manager_policy: "none".to_owned(),
            topology_manager_scope: "container".to_owned(),
            topology_manager_policy_options: BTreeMap::new(),
            memory_manager_policy: "None".to_owned(),
            root_dir: PathBuf::from("/var/lib/kubelet"),
            hostname_override: None,
            feature_gates: BTreeMap::new(),
        }
    }
}

/// One source of settings. A key that it omits or sets to null keeps its value; the file's hundreds of other keys are
/// ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fragment {
    kind: Option<String>,
    cpu_manager_policy: Option<String>,
    cpu_manager_policy_options: Option<BTreeMap<String, String>>,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: Option<String>,
    kube_reserved: Option<Amounts>,
    system_reserved: Option<Amounts>,
    topology_manager_policy: Option<String>,
    topology_manager_scope: Option<String>,
    topology_manager_policy_options: Option<BTreeMap<String, String>>,
    memory_manager_policy: Option<String>,
    feature_gates: Option<BTreeMap<String, bool>>,
}

/// Quantities by resource.
type Amounts = BTreeMap<String, Option<String>>;

const KIND: &str = "KubeletConfiguration";
/// What aliases may repeat of a file, in YAML's events: aliases of aliases grow exponentially, and a real file needs few.
const MAX_REPLAYED: usize = 10_000;

impl Fragment {
    /// Parse a KubeletConfiguration, YAML or JSON. `place` names it in errors.
    ///
    /// # Errors
    /// The text does not parse, or is of another kind: kubelet would not start with it.
    pub fn parse(text: &str, place: &str) -> Result<Self, ConfigError> {
        // An error must not quote the file, which may contain secrets.
        let options = serde_saphyr::options! {
            with_snippet: false,
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED },
        };
        let fragment: Self = serde_saphyr::from_str_with_options(text, options).map_err(|cause| ConfigError::Yaml {
            place: place.to_owned(),
            cause: excerpt::cause(&cause),
        })?;
        match fragment.kind.as_deref() {
            Some(KIND) => Ok(fragment),
            kind => Err(ConfigError::Kind {
                place: place.to_owned(),
                kind: excerpt::excerpt(kind.unwrap_or_default()),
            }),
        }
    }

    /// Settings of both; where both have a key, `later` wins.
    fn merge(self, later: Self) -> Self {
        Self {
            kind: None,
            cpu_manager_policy: later.cpu_manager_policy.or(self.cpu_manager_policy),
            cpu_manager_policy_options: merged(self.cpu_manager_policy_options, later.cpu_manager_policy_options),
            reserved_system_cpus: later.reserved_system_cpus.or(self.reserved_system_cpus),
            kube_reserved: merged(self.kube_reserved, later.kube_reserved),
            system_reserved: merged(self.system_reserved, later.system_reserved),
            topology_manager_policy: later.topology_manager_policy.or(self.topology_manager_policy),
            topology_manager_scope: later.topology_manager_scope.or(self.topology_manager_scope),
            topology_manager_policy_options: merged(
                self.topology_manager_policy_options,
                later.topology_manager_policy_options,
            ),
            memory_manager_policy: later.memory_manager_policy.or(self.memory_manager_policy),
            feature_gates: merged(self.feature_gates, later.feature_gates),
        }
    }
}

fn merged<T>(earlier: Option<BTreeMap<String, T>>, later: Option<BTreeMap<String, T>>) -> Option<BTreeMap<String, T>> {
    match (earlier, later) {
        (Some(mut earlier), Some(later)) => {
            earlier.extend(later);
            Some(earlier)
        }
        (earlier, later) => later.or(earlier),
    }
}

impl KubeletConfig {
    /// Merges kubelet's sources: the files from the first to the last, then the flags.
    ///
    /// # Errors
    /// The reserved CPUs are not a CPU list.
    pub fn new(files: impl IntoIterator<Item = Fragment>, flags: Flags) -> Result<Self, ConfigError> {
        let mut merged = files.into_iter().fold(Fragment::default(), Fragment::merge);
        let flag = flags.fragment;
        // A flag replaces the whole map of options; of the gates it sets only those it names.
        let (cpu, topology) = (&flag.cpu_manager_policy_options, &flag.topology_manager_policy_options);
        merged.cpu_manager_policy_options.take_if(|_| cpu.is_some());
        merged.topology_manager_policy_options.take_if(|_| topology.is_some());
        merged.kube_reserved.take_if(|_| flag.kube_reserved.is_some());
        merged.system_reserved.take_if(|_| flag.system_reserved.is_some());
        let merged = merged.merge(flag);
        let default = Self::default();
        let reserved = merged.reserved_system_cpus.unwrap_or_default();
        let amounts = [merged.kube_reserved, merged.system_reserved].into_iter().flatten();
        let amounts = amounts.filter_map(|mut amounts| amounts.remove("cpu").flatten());
        Ok(Self {
            cpu_manager_policy: merged.cpu_manager_policy.unwrap_or(default.cpu_manager_policy),
            cpu_manager_policy_options: merged.cpu_manager_policy_options.unwrap_or_default(),
            reserved_system_cpus: reserved.parse().map_err(ConfigError::ReservedCpus)?,
            reserved_amounts: amounts.collect(),
            topology_manager_policy: merged
                .topology_manager_policy
                .unwrap_or(default.topology_manager_policy),
            topology_manager_scope: merged.topology_manager_scope.unwrap_or(default.topology_manager_scope),
            topology_manager_policy_options: merged.topology_manager_policy_options.unwrap_or_default(),
            memory_manager_policy: merged.memory_manager_policy.unwrap_or(default.memory_manager_policy),
            root_dir: flags.root_dir.unwrap_or(default.root_dir),
            hostname_override: flags.hostname_override,
            feature_gates: merged.feature_gates.unwrap_or_default(),
        })
    }

    /// Whether an option of the CPU manager's policy is on.
    pub fn cpu_option(&self, name: &str) -> bool {
        let value = self.cpu_manager_policy_options.get(name);
        value.is_some_and(|text| parse_bool(text) == Some(true))
    }
}

#[cfg(test)]
mod tests;
