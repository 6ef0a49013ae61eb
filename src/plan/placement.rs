//! Which vCPU goes on which of the instance's CPUs.

use std::collections::BTreeMap;

use crate::cpuset::CpuSet;
use crate::topology::Topology;

/// How vCPUs are laid on the exclusive CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Ascending vCPU index on ascending CPU number.
    #[default]
    Linear,
}

impl Policy {
    /// The name used in configuration and on D-Bus.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
        }
    }

    /// The policy of that name.
    pub fn parse(text: &str) -> Option<Self> {
        (text == "linear").then_some(Self::Linear)
    }
}

/// A vCPU as QEMU describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vcpu {
    /// `cpu-index`.
    pub index: u32,
    /// `props` of `query-cpus-fast`: `socket-id`, `core-id`, `thread-id`, `node-id` and the like.
    pub props: BTreeMap<String, i64>,
}

/// Where the vCPUs go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// (vCPU index, CPU) in ascending index; no CPU where there are more vCPUs than CPUs.
    pub pins: Vec<(u32, Option<u32>)>,
    /// In words, what the policy could not do.
    pub note: Option<String>,
}

/// Choose a CPU for every vCPU: distinct, within `cpus`. The answer depends on nothing but the arguments' values.
pub fn place(policy: Policy, vcpus: &[Vcpu], cpus: &CpuSet, _topology: &Topology) -> Placement {
    let mut indexes: Vec<u32> = vcpus.iter().map(|vcpu| vcpu.index).collect();
    indexes.sort_unstable();
    if vcpus.len() > cpus.len() {
        return Placement {
            pins: indexes.into_iter().map(|index| (index, None)).collect(),
            note: Some(format!("{} vCPUs for {} CPUs: none is pinned", vcpus.len(), cpus.len())),
        };
    }
    match policy {
        Policy::Linear => Placement {
            pins: indexes.into_iter().zip(cpus.iter().map(Some)).collect(),
            note: None,
        },
    }
}
