//! Why an instance is pinned, and why it floats where it does.

use stelia_cpus::text::named;

named! {
    /// What keeps an instance from a partition.
    pub enum PinnedReason {
        /// Class LSR: BE may run on its CPUs, and a partition would keep it out.
        Class = "class",
        /// This kernel has no `cpuset.cpus.exclusive`.
        NoPartitions = "no-partitions",
        /// The setting `partition` is `member`.
        Setting = "setting",
        /// The rule that adopted it has `partition` set to `member`.
        Rule = "rule",
        /// The kernel refused it twice; the journal has its words. It is asked for again at audits and at AttachVcpus.
        Refused = "refused",
    }
}

impl PinnedReason {
    /// Whether somebody decided that it be so.
    pub fn is_wanted(self) -> bool {
        matches!(self, Self::Class | Self::Setting | Self::Rule)
    }
}

named! {
    /// What decided which CPUs an instance floats on.
    #[derive(Default)]
    pub enum FloatReason {
        /// The setting is `pod`, and kubelet gave the pod a shared pool of its own.
        PodPool = "pod-pool",
        /// The setting is `pod` or `numa`: the shared pool within the NUMA nodes of its own CPUs.
        Near = "near",
        /// These have fewer CPUs than `float-min-cpus`, so that it is the whole shared pool.
        TooFewNear = "too-few-near",
        /// The setting is `node`, or it has no CPUs of its own to be near to: the whole shared pool.
        #[default]
        Pool = "pool",
        /// Class LS: the shared pool of the NUMA node that was chosen for it.
        NodePool = "node-pool",
        /// Class BE: the BE shared pool.
        BePool = "be-pool",
        /// Where others pin its vCPUs: the container's own CPUs that no vCPU is pinned to; in a scope the shared pool, too.
        Spare = "spare",
        /// Too few near, and no vCPUs are attached: its own CPUs, unless a partition has them already, and the shared CPUs of their NUMA nodes.
        UntilAttached = "until-attached",
        /// None could be chosen: it keeps what it had. The reasons of degradation say why.
        Unchanged = "kept",
        /// The container's own cgroup is its partition: all of its tasks run on its exclusive CPUs, and it has no float.
        NoFloat = "no-float",
    }
}
