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

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use error::ConfigError;
pub use flags::{Flags, parse_bool};
pub use read::read;
pub(super) use read::text;

use stelia_cpus::CpuSet;
use stelia_cpus::quantity::{Quantity, QuantityError};
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
    /// The cgroup below which kubelet makes its pods' cgroups, in the form of paths in cgroupfs; `/` where none is configured.
    pub cgroup_root: String,
    /// `cgroupfs` or `systemd`, as configured: kubelet 1.34 and later ask the runtime and use this only where it does not answer.
    pub cgroup_driver: String,
    /// Whether pods' cgroups are below one for each QoS class and one for all pods.
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
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
            cgroup_root: "/".to_owned(),
            cgroup_driver: "cgroupfs".to_owned(),
            cgroups_per_qos: true,
            root_dir: PathBuf::from("/var/lib/kubelet"),
            hostname_override: None,
            feature_gates: BTreeMap::new(),
        }
    }
}

impl KubeletConfig {
    /// How many CPUs `kubeReserved` and `systemReserved` come to, rounded up: those that kubelet chooses itself where
    /// `reservedSystemCPUs` names none.
    ///
    /// # Errors
    /// An amount is not a quantity.
    pub fn reserved_count(&self) -> Result<u32, QuantityError> {
        let amounts = self.reserved_amounts.iter();
        let sum = amounts
            .map(|text| text.parse::<Quantity>())
            .try_fold(Quantity::default(), |sum, amount| Ok(sum.plus(amount?)))?;
        Ok(u32::try_from(sum.value()).unwrap_or(u32::MAX))
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
    cgroup_root: Option<String>,
    cgroup_driver: Option<String>,
    #[serde(rename = "cgroupsPerQOS")]
    cgroups_per_qos: Option<bool>,
    feature_gates: Option<BTreeMap<String, bool>>,
}

/// Quantities by resource.
type Amounts = BTreeMap<String, Option<String>>;

const KIND: &str = "KubeletConfiguration";

impl Fragment {
    /// Parse a KubeletConfiguration, YAML or JSON. `place` names it in errors.
    ///
    /// # Errors
    /// The text does not parse, or is of another kind: kubelet would not start with it.
    pub fn parse(text: &str, place: &str) -> Result<Self, ConfigError> {
        let fragment: Self = yaml(text, place)?;
        match fragment.kind.as_deref() {
            Some(KIND) => Ok(fragment),
            kind => Err(ConfigError::Kind {
                place: place.to_owned(),
                kind: excerpt::excerpt(kind.unwrap_or_default()),
            }),
        }
    }
}

/// The options for YAML of others: an error must not quote the file, which may contain secrets, and aliases may repeat
/// 10,000 events only, because aliases of aliases grow exponentially, and a real file needs few.
pub fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
    }
}

pub(super) fn yaml<T: DeserializeOwned>(text: &str, place: &str) -> Result<T, ConfigError> {
    serde_saphyr::from_str_with_options(text, yaml_options()).map_err(|cause| ConfigError::Yaml {
        place: place.to_owned(),
        cause: excerpt::cause(&cause),
    })
}

/// A key that a later source has wins.
fn set<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

fn extend<T>(map: &mut BTreeMap<String, T>, given: Option<BTreeMap<String, T>>, replace: bool) {
    if replace && given.is_some() {
        map.clear();
    }
    map.extend(given.into_iter().flatten());
}

impl KubeletConfig {
    /// Merges kubelet's sources: the files from the first to the last, then the flags.
    ///
    /// # Errors
    /// The reserved CPUs are not a CPU list.
    pub fn new(files: impl IntoIterator<Item = Fragment>, flags: Flags) -> Result<Self, ConfigError> {
        let (mut config, mut reserved) = (Self::default(), String::new());
        let (mut kube, mut system) = (Amounts::new(), Amounts::new());
        let files = files.into_iter().map(|file| (file, false));
        for (source, is_flags) in files.chain([(flags.fragment, true)]) {
            // A flag replaces a whole map; of the gates it sets only those it names.
            let options = &mut config.topology_manager_policy_options;
            extend(options, source.topology_manager_policy_options, is_flags);
            let options = &mut config.cpu_manager_policy_options;
            extend(options, source.cpu_manager_policy_options, is_flags);
            extend(&mut kube, source.kube_reserved, is_flags);
            extend(&mut system, source.system_reserved, is_flags);
            extend(&mut config.feature_gates, source.feature_gates, false);
            set(&mut reserved, source.reserved_system_cpus);
            set(&mut config.cpu_manager_policy, source.cpu_manager_policy);
            set(&mut config.topology_manager_policy, source.topology_manager_policy);
            set(&mut config.topology_manager_scope, source.topology_manager_scope);
            set(&mut config.memory_manager_policy, source.memory_manager_policy);
            // Empty stands for "not given".
            set(&mut config.cgroup_root, source.cgroup_root.filter(|root| !root.is_empty()));
            set(&mut config.cgroup_driver, source.cgroup_driver.filter(|driver| !driver.is_empty()));
            set(&mut config.cgroups_per_qos, source.cgroups_per_qos);
        }
        set(&mut config.root_dir, flags.root_dir);
        config.hostname_override = flags.hostname_override;
        config.reserved_system_cpus = reserved.parse().map_err(ConfigError::ReservedCpus)?;
        let amounts = [kube, system].into_iter();
        config.reserved_amounts = amounts
            .filter_map(|mut amounts| amounts.remove("cpu").flatten())
            .collect();
        Ok(config)
    }

    /// Whether an option of the CPU manager's policy is on.
    pub fn cpu_option(&self, name: &str) -> bool {
        let value = self.cpu_manager_policy_options.get(name);
        value.is_some_and(|text| parse_bool(text) == Some(true))
    }
}

#[cfg(test)]
mod tests;
