//! Whose a CPU is: what the daemon describes, as plain values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::client::Failure;
use crate::cpuset::CpuSet;
use crate::topology::Topology;

/// The parts of `Describe` that say whose the CPUs are. Unknown members are left out: a newer daemon may have more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Node {
    /// The shared pool, of whoever chooses CPUs; absent while kubelet's file cannot be used.
    pub pool: Option<CpuSet>,
    /// Why it cannot be used.
    pub kubelet_problem: Option<String>,
    /// Who chooses CPUs: `kubelet` or `steliad`; absent: a daemon that is older than that choice.
    #[serde(default)]
    pub cpu_source: Option<String>,
    /// The CPUs as steliad's own allocator divides them; absent where kubelet chooses.
    #[serde(default)]
    pub pools: Option<Pools>,
    /// kubelet's entries by pod and container.
    pub entries: BTreeMap<String, BTreeMap<String, CpuSet>>,
    /// When kubelet last wrote it, microseconds since the epoch.
    #[serde(default)]
    pub kubelet_modified_us: Option<u64>,
    /// The online CPUs.
    pub topology: Topology,
    /// CPUs that are there and not online.
    #[serde(default)]
    pub offline: CpuSet,
    /// `cpuset.cpus.exclusive` of stelia.slice.
    pub slice_exclusive: CpuSet,
    /// Whether the kernel has isolated partitions; absent while nothing tells.
    #[serde(default)]
    pub partitions: Option<bool>,
    /// Units outside that are restricted for contained instances, with what they had before.
    #[serde(default)]
    pub restricted: BTreeMap<String, String>,
    /// Counted since the daemon started.
    #[serde(default)]
    pub counters: Counters,
    /// The last pass that came to its end.
    #[serde(default)]
    pub last_pass: Option<LastPass>,
    /// The instances by pod.
    pub instances: BTreeMap<String, Instance>,
    /// Scopes that are left alone, with the reason.
    #[serde(default)]
    pub unreadable: Vec<(String, String)>,
    /// `reservedSystemCPUs` of kubelet.
    #[serde(skip)]
    pub reserved: CpuSet,
    /// The daemon's version.
    #[serde(skip)]
    pub version: String,
}

/// What the daemon counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Counters {
    /// Things found changed by somebody else.
    pub drift_found: u64,
    /// Those put right in the same pass.
    pub drift_repaired: u64,
}

/// What the last pass did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all(serialize = "PascalCase"))]
pub struct LastPass {
    /// Its number since the daemon started.
    pub number: u32,
    /// What asked for it.
    pub trigger: String,
    /// When it ended, microseconds since the epoch.
    #[serde(rename(serialize = "EndedTimestamp"))]
    pub ended_us: u64,
    /// How long it took, microseconds.
    #[serde(rename(serialize = "DurationUSec"))]
    pub duration_us: u64,
    /// Steps taken.
    pub steps: u32,
    /// Writes to cgroup files.
    pub writes: u32,
    /// Cgroup moves.
    pub moves: u32,
    /// What could not be done.
    pub failures: u32,
}

/// One instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Instance {
    /// The container.
    pub container: String,
    /// isolated, contained, floating, …
    pub state: String,
    /// Why the promise is not whole.
    pub degraded: Vec<String>,
    /// Its CPUs.
    pub exclusive: CpuSet,
    /// Where everything else of it runs.
    pub float: CpuSet,
    /// The scope's cgroup.
    #[serde(default)]
    pub scope: String,
    /// Its vCPU threads.
    pub vcpus: Vec<Vcpu>,
    /// What steliad's own allocator gave it; absent where kubelet chose its CPUs.
    #[serde(default)]
    pub allocation: Option<Allocation>,
}

impl Instance {
    /// Its QoS class; empty where kubelet chose its CPUs.
    pub fn class(&self) -> &str {
        self.allocation.as_ref().map_or("", |allocation| &allocation.qos)
    }

    /// Its state, and its class where it has one.
    pub fn in_words(&self) -> String {
        match self.class() {
            "" => self.state.clone(),
            class => format!("{}, {class}", self.state),
        }
    }
}

/// What an instance asked of steliad's own allocator, and what became of it. The names are the allocator's; a newer daemon may
/// have others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "PascalCase"))]
pub struct Allocation {
    /// LSE, LSR, LS or BE.
    #[serde(rename(serialize = "Class"))]
    pub qos: String,
    /// How many CPUs of its own.
    #[serde(rename(serialize = "Count"))]
    pub cpus: u32,
    /// The bind policy.
    #[serde(rename(serialize = "BindPolicy"))]
    pub bind: String,
    /// Whether the node requires it.
    #[serde(rename(serialize = "BindPolicyRequired"))]
    pub required: bool,
    /// The exclusive policy.
    #[serde(rename(serialize = "ExclusivePolicy"))]
    pub exclusive: String,
    /// The allocate strategy.
    #[serde(rename(serialize = "AllocateStrategy"))]
    pub strategy: String,
    /// The alignment policy.
    #[serde(rename(serialize = "AlignmentPolicy"))]
    pub alignment: String,
    /// The pod's CPU limit in thousandths of a CPU; 0: none was asked for.
    #[serde(rename(serialize = "LimitMilliCPU"))]
    pub limit_milli: u64,
    /// The NUMA node whose shared pool it runs on; absent: the pool of all.
    #[serde(rename(serialize = "NUMANode"))]
    pub numa_node: Option<u32>,
    /// What became of the exclusive policy: `not-asked`, `kept`, `downgraded` or `dropped`.
    #[serde(rename(serialize = "Exclusivity"))]
    pub exclusivity: String,
    /// How the allocator came to its answer.
    pub explanation: Vec<String>,
}

/// The online CPUs as steliad's own allocator divides them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "PascalCase"))]
pub struct Pools {
    /// Never allocated; in the shared pools.
    pub reserved: CpuSet,
    /// What kubelet still holds: never allocated, in no pool.
    pub kubelet: CpuSet,
    /// What a new instance with CPUs of its own may get.
    pub allocatable: CpuSet,
    /// CPUs of LSE, LSR and of kubelet's pods.
    pub exclusive: CpuSet,
    /// Where LS and Burstable pods run.
    pub shared: CpuSet,
    /// The same by NUMA node.
    pub shared_by_node: BTreeMap<u32, SharedPool>,
    /// Where BE and BestEffort pods run.
    #[serde(rename(serialize = "BEShared"))]
    pub be_shared: CpuSet,
}

/// A NUMA node's part of the shared pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "PascalCase"))]
pub struct SharedPool {
    /// The socket it is in.
    pub socket: u32,
    /// Its CPUs; may be none.
    #[serde(rename(serialize = "CPUs"))]
    pub cpus: CpuSet,
}

/// A vCPU thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Vcpu {
    /// The guest's number of it.
    pub index: u32,
    /// Its thread on the host.
    pub task: Task,
    /// The CPU it is pinned to.
    pub cpu: Option<u32>,
}

/// A thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Task {
    /// Its number on the host.
    pub id: i32,
    /// When it started, in ticks since boot: a number is used again, both together are not.
    #[serde(default)]
    pub start: u64,
}

/// Whose a CPU is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "owner")]
pub enum Owner {
    /// In the shared pool.
    Shared,
    /// Kept for the system by the configuration of who chooses the CPUs; what floats may run there as well.
    Reserved,
    /// An instance has it.
    Instance {
        /// Its pod.
        pod: String,
        /// Whether all that is promised of the instance holds.
        whole: bool,
        /// Its QoS class; empty where kubelet chose its CPUs.
        #[serde(skip_serializing_if = "String::is_empty")]
        class: String,
    },
    /// A pod that is no instance has it.
    Pod {
        /// Which one.
        pod: String,
    },
    /// kubelet gave it to a container that its file does not name any more: it is not steliad's to give.
    Kubelet,
    /// Nothing tells: kubelet's file says nothing of it, or cannot be used.
    Unknown,
}

impl Node {
    /// Of the text that `Describe` answers.
    ///
    /// # Errors
    /// It is no such text: the daemon is older than this program, or much newer.
    pub fn parse(description: &str) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Description {
            #[serde(default)]
            version: String,
            node: Node,
            #[serde(default)]
            kubelet_config: KubeletConfig,
        }
        #[derive(Default, Deserialize)]
        struct KubeletConfig {
            #[serde(rename = "reservedSystemCPUs", default)]
            reserved: CpuSet,
        }
        let description: Description = serde_json::from_str(description).map_err(|cause| {
            Failure::Other(format!(
                "the daemon describes itself in words this program does not know: {cause}"
            ))
        })?;
        Ok(Self {
            reserved: description.kubelet_config.reserved,
            version: description.version,
            ..description.node
        })
    }

    /// Whose it is. What an instance holds comes before what kubelet says: it is what the kernel enforces.
    pub fn owner(&self, cpu: u32) -> Owner {
        for (pod, instance) in &self.instances {
            if instance.exclusive.contains(cpu) {
                return Owner::Instance {
                    pod: pod.clone(),
                    whole: instance.degraded.is_empty(),
                    class: instance.class().to_owned(),
                };
            }
        }
        for (pod, containers) in &self.entries {
            if containers.values().any(|cpus| cpus.contains(cpu)) {
                return Owner::Pod { pod: pod.clone() };
            }
        }
        if let Some(pools) = &self.pools {
            let whose = [
                (&pools.kubelet, Owner::Kubelet),
                (&pools.reserved, Owner::Reserved),
                (&pools.shared, Owner::Shared),
            ];
            let found = whose.into_iter().find(|(cpus, _)| cpus.contains(cpu));
            return found.map_or(Owner::Unknown, |(_, owner)| owner);
        }
        match &self.pool {
            _ if self.reserved.contains(cpu) => Owner::Reserved,
            Some(pool) if pool.contains(cpu) => Owner::Shared,
            _ => Owner::Unknown,
        }
    }
}

/// A node for tests of what is printed.
#[cfg(test)]
pub(super) mod testing {
    use super::Node;

    /// The VM whose promise holds, the one whose promise is broken, and a pod that is no instance.
    pub(in crate::ctl) const PODS: [&str; 3] = ["aaaaaaaa", "bbbbbbbb", "cccccccc"];

    /// 2 sockets with a NUMA node of 2 cores of 2 siblings each: 0-1 reserved, 4-5, 2 (its sibling is shared), 6.
    pub(in crate::ctl) fn node() -> Node {
        let instance = |state: &str, degraded: &str, cpus: &str, vcpus: &str| {
            format!(
                r#"{{"container":"vm","state":"{state}","degraded":[{degraded}],"exclusive":"{cpus}","float":"0-1,3,7","vcpus":[{vcpus}]}}"#
            )
        };
        let good = instance(
            "isolated",
            "",
            "4-5",
            r#"{"index":0,"task":{"id":70,"start":1},"cpu":4},{"index":1,"task":{"id":71,"start":1},"cpu":5}"#,
        );
        let bad = instance("floating", r#""kubelet gave CPU 2 away""#, "2", "");
        let text = format!(
            r#"{{"version":"0","node":{{"pool":"0-1,3,7","entries":{{"{a}":{{"vm":"4-5"}},"{b}":{{"vm":"2"}},"{c}":{{"db":"6"}}}},
            "topology":{topology},"slice_exclusive":"4-5","instances":{{"{a}":{good},"{b}":{bad}}}}},
            "kubelet_config":{{"reservedSystemCPUs":"0-1"}}}}"#,
            topology = topology(),
            a = PODS[0],
            b = PODS[1],
            c = PODS[2],
        );
        Node::parse(&text).unwrap()
    }

    /// The same node where steliad chooses the CPUs: 0 reserved, 4-5 an LSE's, 2 an LSR's, 6 still kubelet's, and an LS on the
    /// shared pool of node 1.
    pub(in crate::ctl) fn allocated() -> Node {
        let asked = r#""required":false,"strategy":"MostAllocated","limit_milli":0,"numa_node":null"#;
        let text = format!(
            r#"{{"version":"0","node":{{"cpu_source":"steliad",
            "pools":{{"reserved":"0","kubelet":"6","allocatable":"1,3,7","exclusive":"2,4-6","shared":"0-1,3,7",
                "shared_by_node":{{"0":{{"socket":0,"cpus":"0-1,3"}},"1":{{"socket":1,"cpus":"7"}}}},"be_shared":"0-3,7"}},
            "pool":"0-1,3,7","kubelet_problem":null,"entries":{{}},"topology":{topology},"slice_exclusive":"2,4-5","instances":{{
            "{a}":{{"container":"vm","state":"isolated","degraded":[],"exclusive":"4-5","float":"7","vcpus":[],
                "allocation":{{"qos":"LSE","cpus":2,"bind":"FullPCPUs","exclusive":"NUMANodeLevel","alignment":"SingleNUMANode",
                    "exclusivity":"downgraded",{asked},"explanation":["2 CPUs wanted, FullPCPUs","NUMA node 1 is shared: PCPULevel"]}}}},
            "{b}":{{"container":"vm","state":"contained","degraded":[],"exclusive":"2","float":"0-1,3","vcpus":[],
                "allocation":{{"qos":"LSR","cpus":1,"bind":"SpreadByPCPUs","exclusive":"None","alignment":"None",
                    "exclusivity":"not-asked",{asked},"explanation":["1 CPUs wanted"]}}}},
            "{c}":{{"container":"vm","state":"floating","degraded":[],"exclusive":"","float":"7","vcpus":[],
                "allocation":{{"qos":"LS","cpus":0,"bind":"ConstrainedBurst","required":false,"exclusive":"None",
                    "strategy":"LeastAllocated","alignment":"None","limit_milli":2500,"numa_node":1,"exclusivity":"not-asked",
                    "explanation":["limit 2.5: NUMA node 1\u001b[2J"]}}}}
            }}}},"kubelet_config":{{"reservedSystemCPUs":"0-1"}}}}"#,
            topology = topology(),
            a = PODS[0],
            b = PODS[1],
            c = PODS[2],
        );
        Node::parse(&text).unwrap()
    }

    fn topology() -> String {
        let cpus = (0..8).map(|cpu| {
            format!(
                r#""{cpu}":{{"package":{},"core":{},"node":{}}}"#,
                cpu / 4,
                cpu / 2 % 2,
                cpu / 4
            )
        });
        format!(r#"{{"cpus":{{{}}}}}"#, cpus.collect::<Vec<_>>().join(","))
    }
}
