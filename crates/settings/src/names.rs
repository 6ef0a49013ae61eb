//! The names that settings may have as values.

use stelia_cpus::text::named;

named! {
    /// Which shared CPUs an instance floats on.
    #[derive(Default)]
    pub enum FloatPolicy {
        /// The whole shared pool.
        Node = "node",
        /// The shared pool within the NUMA nodes of the instance's own CPUs; the whole pool where that has fewer than
        /// `float-min-cpus`.
        Numa = "numa",
        /// The pod's own shared pool (Kubernetes' pod-level resources); as `numa` where it has none, as most pods.
        #[default]
        Pod = "pod",
    }
}

named! {
    /// How fast a VM's CPUs wake up: what is allowed, and what a pod asks for. A greater one keeps the CPUs in lighter idle
    /// states, and costs more power and turbo of the neighbours.
    #[derive(Default, PartialOrd, Ord)]
    pub enum LatencyLevel {
        /// As the node is.
        #[default]
        Default = "default",
        /// Within the microseconds of the setting `latency-low-us`.
        Low = "low",
        /// No idle state: the CPUs poll.
        Polling = "polling",
    }
}

named! {
    /// The kinds of cpuset partition that `vcpu/` can be: the values of `cpuset.cpus.partition` (kernel: `Documentation/admin-guide/cgroup-v2.rst`) that
    /// can be asked for.
    pub enum Partition {
        /// No other task runs there, and the scheduler does not balance load: every thread must be pinned.
        Isolated = "isolated",
        /// No other task runs there, once the mask of the kernel's unbound workers excludes the CPUs; the scheduler
        /// balances threads that are not pinned.
        Root = "root",
        /// No partition: other tasks are kept off by `AllowedCPUs=` of their units only. The state is `pinned`.
        Member = "member",
    }
}

impl Partition {
    /// Whether the kernel makes a partition for it.
    pub fn is_partition(self) -> bool {
        self != Self::Member
    }
}

named! {
    /// As which profile of the node's object (`docs/node-topology.md`) the daemon tells what is written to the API server, if at all.
    pub enum Publish {
        Off = "off",
        Nrt = "nrt",
        Koordinator = "koordinator",
        Stelia = "stelia",
    }
}

named! {
    /// Where an instance's `float` and `vcpu` are.
    pub enum TreeHome {
        /// In a scope of its own in `stelia.slice`. The container's processes are moved there; an anchor stays behind.
        Slice = "slice",
        /// In the container's own cgroup: no process leaves its container, and memory, limits and devices stay the pod's.
        InPlace = "in-place",
    }
}

named! {
    /// Where the cgroups of new instances are to be made: of VMs that register, or of those that a rule adopts.
    #[derive(Default)]
    pub enum TreeChoice {
        /// In the container's own cgroup where its runtime copes with that, else in `stelia.slice`.
        #[default]
        Auto = "auto",
        /// In the container's own cgroup. Elsewhere a rule adopts no VM; one that registers gets a scope all the same.
        InPlace = "in-place",
        /// In `stelia.slice`.
        Slice = "slice",
    }
}

impl TreeChoice {
    /// Where an instance is made if its container and runtime permit that.
    pub fn preferred(self) -> TreeHome {
        match self {
            Self::Auto | Self::InPlace => TreeHome::InPlace,
            Self::Slice => TreeHome::Slice,
        }
    }
}

named! {
    /// Who uses a container's exclusive CPUs.
    #[derive(Default)]
    pub enum Isolation {
        /// The vCPU threads alone have the container's exclusive CPUs; everything else of the container runs on shared CPUs.
        #[default]
        Vcpus = "vcpus",
        /// The container's own cgroup is the partition: all of its tasks share its exclusive CPUs, and no other task of the host runs there.
        Container = "container",
    }
}

named! {
    /// How vCPUs are placed on the exclusive CPUs.
    pub enum PlacementPolicy {
        /// The guest's own topology on the host's: SMT siblings on SMT siblings, sockets and NUMA nodes on NUMA nodes.
        Guest = "guest",
        /// Ascending vCPU index on physical cores, each filled before the next: as few cores as possible.
        FullPcpus = "full-pcpus",
        /// Ascending vCPU index on one thread of every physical core first: as many cores as possible.
        SpreadByPcpus = "spread-by-pcpus",
        /// Ascending vCPU index on ascending CPU number.
        Linear = "linear",
    }
}
