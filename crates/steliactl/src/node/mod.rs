//! Whose a CPU is: what the daemon describes, as plain values.

mod allocated;
#[cfg(test)]
pub(super) mod testing;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::client::Failure;
pub use allocated::{Allocation, Pools, SharedPool};
use stelia_cpus::{CpuSet, Topology};

/// The parts of `Describe` that say whose the CPUs are. Unknown members are left out: a newer daemon may have more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Node {
    /// The shared pool, of whoever chooses CPUs; absent while kubelet's file cannot be used.
    pub pool: Option<CpuSet>,
    /// Why it cannot be used.
    pub kubelet_problem: Option<String>,
    /// What systemd has not answered about for too long a time.
    #[serde(default)]
    pub systemd_problem: Option<String>,
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
