//! Which shared CPUs an instance floats on: the names of the policies.

/// The choice of shared CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FloatPolicy {
    /// The whole shared pool.
    Node,
    /// The shared pool within the NUMA nodes of the instance's own CPUs; the whole pool where too little is left there.
    Numa,
    /// The pod's own shared pool (Kubernetes' pod-level resources); as `numa` where it has none, as most pods.
    #[default]
    Pod,
}

impl FloatPolicy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Node, Self::Numa, Self::Pod];

    /// The name used in configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Numa => "numa",
            Self::Pod => "pod",
        }
    }

    /// The policy of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == text)
    }
}
