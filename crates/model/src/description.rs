//! What `Describe` answers, as JSON. Times are microseconds since the epoch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stelia_api::metrics::Counted;
use stelia_cpus::CpuSet;
use stelia_kubelet::{KubeletConfig, PodUid};
use stelia_node::locality::Localities;

use crate::Node;

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Description {
    pub version: String,
    /// As the engine last saw it.
    pub node: Node,
    /// The running kubelet's configuration under kubelet's own names, or `problem`: why it is not known.
    pub kubelet_config: Value,
    /// The NUMA nodes of each instance's CPUs, memory and devices.
    pub locality: Localities,
    /// What each instance uses, by pod.
    pub usage: BTreeMap<PodUid, Usage>,
    /// Counted since the daemon started.
    pub metrics: Counted,
}

impl Description {
    /// kubelet's `reservedSystemCPUs`; empty where its configuration is not known.
    pub fn kubelet_reserved(&self) -> CpuSet {
        let reserved = self.kubelet_config.get("reservedSystemCPUs").and_then(Value::as_str);
        reserved.and_then(|list| list.parse().ok()).unwrap_or_default()
    }

    /// The largest number of VMs that the node has room for, those that run included: one for each online CPU that can be exclusive. Where
    /// kubelet's configuration would say which these are and is not known, all online CPUs count: kubelet itself bounds the CPUs that pods get.
    pub fn vm_capacity(&self) -> u32 {
        let online = self.node.topology.online();
        let unreserved = |reserved: &CpuSet| online.len() - online.intersection(reserved).len();
        let free = match &self.node.pools {
            Some(pools) => unreserved(&pools.reserved),
            None if self.kubelet_reserved().is_empty() => {
                online.len().saturating_sub(self.reserved_count().unwrap_or(0))
            }
            None => unreserved(&self.kubelet_reserved()),
        };
        u32::try_from(free).unwrap_or(u32::MAX)
    }

    /// How many CPUs kubelet reserves by amount; `None` if its configuration is not known.
    fn reserved_count(&self) -> Option<usize> {
        if self.kubelet_config.get("problem").is_some() {
            return None;
        }
        let config = KubeletConfig::deserialize(&self.kubelet_config).ok()?;
        config.reserved_count().ok()?.try_into().ok()
    }
}

/// What an instance uses now, in its scope and in the container's own cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// `memory.current` of the scope, bytes.
    pub memory_bytes: u64,
    /// `memory.current` of the container's own cgroup, bytes: what was charged before the move stays there.
    pub origin_memory_bytes: u64,
    /// `usage_usec` of the scope's `cpu.stat`, microseconds.
    pub cpu_usec: u64,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use stelia_cpus::testing::Shape;

    use super::*;
    use crate::Pools;

    #[test]
    fn there_is_room_for_a_vm_on_each_cpu_that_is_not_reserved() {
        let shape = Shape {
            nodes: 2,
            cores: 2,
            threads: 2,
            interleaved: false,
        };
        let node = Node {
            topology: Arc::new(shape.topology()),
            ..Node::default()
        };
        let room = |kubelet_config: Value, pools: Option<Arc<Pools>>| {
            let node = Node { pools, ..node.clone() };
            let description = Description {
                node,
                kubelet_config,
                ..Description::default()
            };
            description.vm_capacity()
        };
        assert_eq!(room(json!({}), None), 8);
        // CPU 9 is not online.
        assert_eq!(room(json!({"reservedSystemCPUs": "0-1,9"}), None), 6);
        let amounts = json!({"kubeReserved": {"cpu": "500m"}, "systemReserved": {"cpu": "1"}});
        assert_eq!(room(amounts, None), 6);
        let both = json!({"reservedSystemCPUs": "0", "kubeReserved": {"cpu": "2"}});
        assert_eq!(room(both, None), 7);
        assert_eq!(room(json!({"kubeReserved": {"cpu": "100"}}), None), 0);
        for unknown in [
            json!({"problem": "none runs"}),
            json!({"kubeReserved": {"cpu": "much"}}),
            Value::Null,
        ] {
            assert_eq!(room(unknown, None), 8);
        }
        let pools = Pools {
            reserved: "0-2".parse().unwrap(),
            ..Pools::default()
        };
        assert_eq!(room(json!({"problem": "none runs"}), Some(Arc::new(pools))), 5);
    }
}
