//! Why an instance is contained, and why it floats where it does.

use stelia_text::named;

/// What keeps an instance from a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainedReason {
    /// Class LSR: BE may run on its CPUs, and a partition would keep it out.
    Class,
    /// This kernel has no `cpuset.cpus.exclusive`.
    NoPartitions,
    /// The setting `partition` is `member`.
    Setting,
    /// The rule that adopted it has `partition` set to `member`.
    Rule,
    /// The kernel refused it twice; the journal has its words. It is asked for again at audits and at AttachVcpus.
    Refused,
}

named!(ContainedReason {
    Class = "class",
    NoPartitions = "no-partitions",
    Setting = "setting",
    Rule = "rule",
    Refused = "refused"
});

impl ContainedReason {
    /// For the pod too: what it says of the node is no secret.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Class => "its class, LSR, lets pods of class BE run there too",
            Self::NoPartitions => "the node's kernel has no partitions of the kind",
            Self::Setting => "the node's setting partition is \"member\"",
            Self::Rule => "the rule that adopted it wants no partition",
            Self::Refused => "the kernel refused a partition; steliad's journal has its words",
        }
    }

    /// Whether somebody decided that it be so.
    pub fn is_wanted(self) -> bool {
        matches!(self, Self::Class | Self::Setting | Self::Rule)
    }
}

/// What decided which CPUs an instance floats on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatReason {
    /// The setting is `pod`, and kubelet gave the pod a shared pool of its own.
    PodPool,
    /// The setting is `pod` or `numa`: the shared pool within the NUMA nodes of its own CPUs.
    Near,
    /// These have fewer CPUs than `float-min-cpus`, so that it is the whole shared pool.
    TooFewNear,
    /// The setting is `node`, or it has no CPUs of its own to be near to: the whole shared pool.
    Pool,
    /// Class LS: the shared pool of the NUMA node that was chosen for it.
    NodePool,
    /// Class BE: the BE shared pool.
    BePool,
    /// Where others pin its vCPUs: the container's own CPUs that no vCPU is pinned to; in a scope the shared pool, too.
    Spare,
    /// Too few near, and its vCPUs are not attached yet: its own CPUs, and what is shared on their NUMA nodes.
    UntilAttached,
    /// None could be chosen: it keeps what it had. The reasons of degradation say why.
    Unchanged,
}

named!(FloatReason {
    PodPool = "pod-pool",
    Near = "near",
    TooFewNear = "too-few-near",
    Pool = "pool",
    NodePool = "node-pool",
    BePool = "be-pool",
    Spare = "spare",
    UntilAttached = "until-attached",
    Unchanged = "kept"
});
