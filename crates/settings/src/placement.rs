//! How vCPUs are laid on CPUs: the names of the policies.

/// How vCPUs are laid on the exclusive CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementPolicy {
    /// The guest's own topology on the host's: SMT siblings on SMT siblings, sockets and NUMA nodes on NUMA nodes.
    #[default]
    Guest,
    /// Ascending vCPU index on physical cores, each filled before the next: as few cores as possible.
    FullPcpus,
    /// Ascending vCPU index on one thread of every physical core first: as many cores as possible.
    SpreadByPcpus,
    /// Ascending vCPU index on ascending CPU number.
    Linear,
}

impl PlacementPolicy {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Guest, Self::FullPcpus, Self::SpreadByPcpus, Self::Linear];

    /// The name used in configuration and on D-Bus.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::FullPcpus => "full-pcpus",
            Self::SpreadByPcpus => "spread-by-pcpus",
            Self::Linear => "linear",
        }
    }

    /// The policy of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == text)
    }
}
