//! The policy's options, and what differs between versions of kubelet.

use std::collections::BTreeMap;

use stelia_kubelet::config::parse_bool;

use super::CpuGroups;

/// Options of the static policy (`cpuManagerPolicyOptions`), all off by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CpuOptions {
    /// `full-pcpus-only`
    pub full_pcpus_only: bool,
    /// `distribute-cpus-across-numa`
    pub distribute_cpus_across_numa: bool,
    /// `align-by-socket`
    pub align_by_socket: bool,
    /// `distribute-cpus-across-cores`
    pub distribute_cpus_across_cores: bool,
    /// `prefer-align-cpus-by-uncorecache`
    pub prefer_align_cpus_by_uncorecache: bool,
    /// `strict-cpu-reservation`
    pub strict_cpu_reservation: bool,
}

/// Why kubelet does not start with these options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuOptionsError {
    /// The static policy has no such option.
    #[error("unsupported cpumanager option: {0:?}")]
    Unknown(String),
    /// Not a value that Go's `strconv.ParseBool` takes.
    #[error("bad value for option {name:?}: {value:?}")]
    Value {
        /// The option.
        name: String,
        /// Its value.
        value: String,
    },
    /// Two options exclude each other.
    #[error("static policy options {0} and {1} can not be used at the same time")]
    Exclusive(&'static str, &'static str),
    /// align-by-socket with more sockets than NUMA nodes.
    #[error("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA")]
    MoreSocketsThanNodes,
}

type Switch = fn(&mut CpuOptions) -> &mut bool;

/// Every option by its name in KubeletConfiguration.
const OPTIONS: [(&str, Switch); 6] = [
    ("full-pcpus-only", |options| &mut options.full_pcpus_only),
    ("distribute-cpus-across-numa", |options| {
        &mut options.distribute_cpus_across_numa
    }),
    ("align-by-socket", |options| &mut options.align_by_socket),
    ("distribute-cpus-across-cores", |options| {
        &mut options.distribute_cpus_across_cores
    }),
    ("prefer-align-cpus-by-uncorecache", |options| {
        &mut options.prefer_align_cpus_by_uncorecache
    }),
    ("strict-cpu-reservation", |options| &mut options.strict_cpu_reservation),
];

/// CpuOptions that exclude each other (`NewStaticPolicyOptions` of `policy_options.go`).
const EXCLUSIVE: [(&str, &str); 4] = [
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
];

impl CpuOptions {
    /// Parses `cpuManagerPolicyOptions`. Whether a feature gate hides one of them is known to
    /// [`features`](crate::features).
    ///
    /// # Errors
    /// An unknown option, a value that is not a boolean, two options that exclude each other.
    pub fn parse(given: &BTreeMap<String, String>) -> Result<Self, CpuOptionsError> {
        let mut options = Self::default();
        for (name, value) in given {
            let known = OPTIONS.iter().find(|(known, _)| known == name);
            let (_, switch) = known.ok_or_else(|| CpuOptionsError::Unknown(name.clone()))?;
            *switch(&mut options) = parse_bool(value).ok_or_else(|| CpuOptionsError::Value {
                name: name.clone(),
                value: value.clone(),
            })?;
        }
        options.check_exclusive().map(|()| options)
    }

    /// The names of the options that are on.
    pub fn on(mut self) -> impl Iterator<Item = &'static str> {
        OPTIONS
            .into_iter()
            .filter_map(move |(name, switch)| switch(&mut self).then_some(name))
    }

    /// Whether kubelet starts with these options on this node. That align-by-socket excludes the Topology Manager's
    /// policy single-numa-node is checked by [`Settings::go_together`](crate::Settings::go_together).
    ///
    /// # Errors
    /// Two options exclude each other, or an option is incompatible with the node.
    pub fn check(self, topology: &CpuGroups) -> Result<(), CpuOptionsError> {
        self.check_exclusive()?;
        if self.align_by_socket && topology.sockets() > topology.nodes().len() {
            Err(CpuOptionsError::MoreSocketsThanNodes)
        } else {
            Ok(())
        }
    }

    fn check_exclusive(self) -> Result<(), CpuOptionsError> {
        let is_on = |name| self.on().any(|on| on == name);
        match EXCLUSIVE.into_iter().find(|(one, other)| is_on(*one) && is_on(*other)) {
            Some((one, other)) => Err(CpuOptionsError::Exclusive(one, other)),
            None => Ok(()),
        }
    }
}

/// What differs between versions of kubelet; the default is Kubernetes 1.36 as released.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Kubelet {
    /// The NUMA nodes chosen under distribute-cpus-across-numa are copied, and not overwritten by those considered
    /// later (Kubernetes pull request 141238; no release up to 1.36.3 has it).
    pub combinations_copied: bool,
    /// distribute-cpus-across-numa takes the CPUs from at least as many NUMA nodes as the Topology Manager chose, where so many
    /// have free CPUs (Kubernetes pull request 139456, from 1.37 on; before, from as few as can give them).
    pub affinity_is_least: bool,
    /// The feature gates `PodLevelResources` and `PodLevelResourceManagers` are on.
    pub pod_level_resource_managers: bool,
}

/// The minor version of Kubernetes from which on [`Kubelet::affinity_is_least`] holds.
pub const AFFINITY_IS_LEAST_SINCE: u32 = 37;

impl Kubelet {
    /// The same kubelet in Kubernetes 1.`minor`.
    #[must_use]
    pub fn of_version(self, minor: u32) -> Self {
        Self {
            affinity_is_least: minor >= AFFINITY_IS_LEAST_SINCE,
            ..self
        }
    }
}
