//! The kind of cpuset partition `vcpu/` is made.

/// The values of `cpuset.cpus.partition` (kernel: `Documentation/admin-guide/cgroup-v2.rst`) that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partition {
    /// Nobody else runs there, and the scheduler does not balance: every thread must be pinned.
    #[default]
    Isolated,
    /// Nobody else runs there; the scheduler balances the threads among the CPUs.
    Root,
    /// No partition: others are only kept away by the lists of what is outside. The state is `contained` then.
    Member,
}

impl Partition {
    /// The kernel's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Isolated => "isolated",
            Self::Root => "root",
            Self::Member => "member",
        }
    }

    /// The partition of that name.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Isolated, Self::Root, Self::Member]
            .into_iter()
            .find(|partition| partition.name() == text)
    }
}
