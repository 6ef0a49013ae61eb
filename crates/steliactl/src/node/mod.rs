//! The node as the daemon describes it, and the owner of each CPU.

#[cfg(test)]
pub(crate) mod testing;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use stelia_api::view::{Allocation, Instance, LastPass, Pools};
use stelia_node::locality::Localities;

use super::client::Failure;

pub(crate) type Description = stelia_api::view::Description<Localities>;

/// Parses the answer of `Describe`.
///
/// # Errors
/// The text has another form: the daemon is older than this program, or much newer.
pub(crate) fn parse(description: &str) -> Result<Description, Failure> {
    serde_json::from_str(description).map_err(|cause| {
        Failure::Other(format!(
            "Describe answers what this program does not understand; is it as new as the daemon? {cause}"
        ))
    })
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "owner")]
pub(crate) enum Owner {
    Shared,
    /// Reserved for the system by kubelet's or steliad's configuration; floats may run there as well.
    Reserved,
    Instance {
        pod: String,
        /// Isolation is not degraded.
        whole: bool,
        /// Its QoS class; empty where kubelet chose its CPUs.
        #[serde(skip_serializing_if = "String::is_empty")]
        class: String,
    },
    /// A pod that is not an instance.
    Pod {
        pod: String,
    },
    /// kubelet assigned it to a container that its file no longer lists; steliad does not allocate it.
    Kubelet,
    /// kubelet's file does not list it, or cannot be used.
    Unknown,
}

/// What an instance holds comes before kubelet's entries, because the kernel enforces it.
pub(crate) fn owner(description: &Description, cpu: u32) -> Owner {
    let node = &description.node;
    for (pod, instance) in &node.instances {
        if instance.exclusive.contains(cpu) {
            return Owner::Instance {
                pod: pod.clone(),
                whole: instance.degraded.is_empty(),
                class: instance.class().to_owned(),
            };
        }
    }
    for (pod, containers) in &node.entries {
        if containers.values().any(|cpus| cpus.contains(cpu)) {
            return Owner::Pod { pod: pod.clone() };
        }
    }
    if let Some(pools) = &node.pools {
        let whose = [
            (&pools.kubelet, Owner::Kubelet),
            (&pools.reserved, Owner::Reserved),
            (&pools.shared, Owner::Shared),
        ];
        let found = whose.into_iter().find(|(cpus, _)| cpus.contains(cpu));
        return found.map_or(Owner::Unknown, |(_, owner)| owner);
    }
    match &node.pool {
        _ if description.kubelet_reserved().contains(cpu) => Owner::Reserved,
        Some(pool) if pool.contains(cpu) => Owner::Shared,
        _ => Owner::Unknown,
    }
}

/// The state, with the class where there is one.
pub(crate) fn state_and_class(instance: &Instance) -> String {
    match instance.class() {
        "" => instance.state.clone(),
        class => format!("{}, {class}", instance.state),
    }
}

/// Serializes with the field names of steliactl's JSON.
pub(crate) fn named_allocation<S: Serializer>(of: &Option<Allocation>, serializer: S) -> Result<S::Ok, S::Error> {
    let named = |of: &Allocation| {
        json!({
            "Class": of.qos, "Count": of.cpus, "BindPolicy": of.bind, "BindPolicyRequired": of.required,
            "ExclusivePolicy": of.exclusive, "AllocateStrategy": of.strategy, "AlignmentPolicy": of.alignment,
            "LimitMilliCPU": of.limit_milli, "NUMANode": of.numa_node, "Exclusivity": of.exclusivity,
            "Explanation": of.explanation,
        })
    };
    of.as_ref().map(named).serialize(serializer)
}

/// Serializes with the field names of steliactl's JSON.
pub(crate) fn named_pools<S: Serializer>(of: &Option<Pools>, serializer: S) -> Result<S::Ok, S::Error> {
    let named = |of: &Pools| {
        let by_node = of.shared_by_node.iter();
        let by_node =
            by_node.map(|(node, pool)| (node.to_string(), json!({ "Socket": pool.socket, "CPUs": pool.cpus })));
        json!({
            "Reserved": of.reserved, "Kubelet": of.kubelet, "Allocatable": of.allocatable, "Exclusive": of.exclusive,
            "Shared": of.shared, "SharedByNode": by_node.collect::<Value>(), "BEShared": of.be_shared,
        })
    };
    of.as_ref().map(named).serialize(serializer)
}

/// Serializes with the field names of steliactl's JSON.
pub(crate) fn named_pass<S: Serializer>(of: &Option<LastPass>, serializer: S) -> Result<S::Ok, S::Error> {
    let named = |of: &LastPass| {
        json!({
            "Number": of.number, "Trigger": of.trigger, "EndedTimestamp": of.ended_us, "DurationUSec": of.duration_us,
            "Steps": of.steps, "Writes": of.writes, "Moves": of.moves, "Failures": of.failures,
        })
    };
    of.as_ref().map(named).serialize(serializer)
}
