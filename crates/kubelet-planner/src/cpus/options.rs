//! The policy's options, and what differs between kubelets.

use std::collections::BTreeMap;

use super::CpuTopology;

/// Options of the static policy (`cpuManagerPolicyOptions`), all off by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Options {
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
pub enum OptionsError {
    /// No option of the static policy.
    #[error("unsupported cpumanager option: {0:?}")]
    Unknown(String),
    /// The value is no truth value.
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
    /// align-by-socket where there are more sockets than NUMA nodes.
    #[error("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA")]
    MoreSocketsThanNodes,
}

const FULL: &str = "full-pcpus-only";
const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
const BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const UNCORE: &str = "prefer-align-cpus-by-uncorecache";
const STRICT: &str = "strict-cpu-reservation";

impl Options {
    /// Read `cpuManagerPolicyOptions`. Whether a feature gate hides one of them, [`features`](crate::features) says.
    ///
    /// # Errors
    /// An unknown option, a value that is no truth value, two options that exclude each other.
    pub fn parse(given: &BTreeMap<String, String>) -> Result<Self, OptionsError> {
        let mut options = Self::default();
        for (name, value) in given {
            let option = match name.as_str() {
                FULL => &mut options.full_pcpus_only,
                ACROSS_NUMA => &mut options.distribute_cpus_across_numa,
                BY_SOCKET => &mut options.align_by_socket,
                ACROSS_CORES => &mut options.distribute_cpus_across_cores,
                UNCORE => &mut options.prefer_align_cpus_by_uncorecache,
                STRICT => &mut options.strict_cpu_reservation,
                _ => return Err(OptionsError::Unknown(name.clone())),
            };
            *option = match value.as_str() {
                "1" | "t" | "T" | "true" | "True" | "TRUE" => true,
                "0" | "f" | "F" | "false" | "False" | "FALSE" => false,
                _ => {
                    return Err(OptionsError::Value {
                        name: name.clone(),
                        value: value.clone(),
                    });
                }
            };
        }
        options.together().map(|()| options)
    }

    /// The names of those that are on.
    pub fn on(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.full_pcpus_only, FULL),
            (self.distribute_cpus_across_numa, ACROSS_NUMA),
            (self.align_by_socket, BY_SOCKET),
            (self.distribute_cpus_across_cores, ACROSS_CORES),
            (self.prefer_align_cpus_by_uncorecache, UNCORE),
            (self.strict_cpu_reservation, STRICT),
        ];
        all.into_iter().filter(|(on, _)| *on).map(|(_, name)| name)
    }

    /// Whether kubelet starts with these options on this node. That align-by-socket excludes the Topology Manager's
    /// policy single-numa-node is not looked at.
    ///
    /// # Errors
    /// Two options exclude each other, or an option does not go with the node.
    pub fn check(self, topology: &CpuTopology) -> Result<(), OptionsError> {
        self.together()?;
        match self.align_by_socket && topology.sockets() > topology.nodes().len() {
            true => Err(OptionsError::MoreSocketsThanNodes),
            false => Ok(()),
        }
    }

    fn together(self) -> Result<(), OptionsError> {
        let pairs = [
            (
                self.full_pcpus_only && self.distribute_cpus_across_cores,
                FULL,
                ACROSS_CORES,
            ),
            (
                self.distribute_cpus_across_numa && self.distribute_cpus_across_cores,
                ACROSS_NUMA,
                ACROSS_CORES,
            ),
            (
                self.prefer_align_cpus_by_uncorecache && self.distribute_cpus_across_cores,
                UNCORE,
                ACROSS_CORES,
            ),
            (
                self.prefer_align_cpus_by_uncorecache && self.distribute_cpus_across_numa,
                UNCORE,
                ACROSS_NUMA,
            ),
        ];
        let clash = pairs.into_iter().find(|(both, ..)| *both);
        clash.map_or(Ok(()), |(_, one, other)| Err(OptionsError::Exclusive(one, other)))
    }
}

/// What differs between kubelets; the default is Kubernetes 1.36 as released.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Kubelet {
    /// The NUMA nodes chosen under distribute-cpus-across-numa are kept, and not overwritten by those looked at later
    /// (Kubernetes pull request 141238; no release up to 1.36.3 has it).
    pub combinations_copied: bool,
    /// The feature gates `PodLevelResources` and `PodLevelResourceManagers` are on.
    pub pod_level_resource_managers: bool,
}
