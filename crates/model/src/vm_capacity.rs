//! How many VMs a node has room for.

use stelia_cpus::CpuSet;
use stelia_kubelet::KubeletConfig;

use crate::Node;

impl Node {
    /// The largest number of VMs that the node has room for, those that run included: one for each online CPU that can be exclusive. `config`:
    /// the running kubelet's configuration. `None` if the number depends on it and it is not known or not valid, or if no online
    /// CPU is known.
    pub fn room_for_vms(&self, config: Option<&KubeletConfig>) -> Option<u32> {
        let online = self.topology.online();
        if online.is_empty() {
            return None;
        }
        let unreserved = |reserved: &CpuSet| online.len() - online.intersection(reserved).len();
        let free = match (&self.pools, config) {
            (Some(pools), _) => unreserved(&pools.reserved),
            (None, Some(config)) if config.reserved_system_cpus.is_empty() => {
                let reserved = usize::try_from(config.reserved_count().ok()?).ok()?;
                online.len().saturating_sub(reserved)
            }
            (None, Some(config)) => unreserved(&config.reserved_system_cpus),
            (None, None) => return None,
        };
        u32::try_from(free).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stelia_cpus::testing::Shape;

    use super::*;
    use crate::Pools;

    fn room(config: Option<KubeletConfig>, reserved: Option<&str>) -> Option<u32> {
        let shape = Shape {
            nodes: 2,
            cores: 2,
            threads: 2,
            interleaved: false,
        };
        let pools = reserved.map(|reserved| {
            Arc::new(Pools {
                reserved: reserved.parse().unwrap(),
                ..Pools::default()
            })
        });
        let node = Node {
            topology: Arc::new(shape.topology()),
            pools,
            ..Node::default()
        };
        node.room_for_vms(config.as_ref())
    }

    fn config(cpus: &str, kube: &str, system: &str) -> Option<KubeletConfig> {
        let cpu = |amount: &str| [("cpu".to_owned(), amount.to_owned())].into();
        Some(KubeletConfig {
            reserved_system_cpus: cpus.parse().unwrap(),
            kube_reserved: cpu(kube),
            system_reserved: cpu(system),
            ..KubeletConfig::default()
        })
    }

    #[test]
    fn there_is_room_for_a_vm_on_each_cpu_that_is_not_reserved() {
        assert_eq!(room(Some(KubeletConfig::default()), None), Some(8));
        // CPU 9 is not online.
        assert_eq!(room(config("0-1,9", "0", "0"), None), Some(6));
        assert_eq!(room(config("", "500m", "1"), None), Some(6));
        assert_eq!(room(config("0", "2", "0"), None), Some(7));
        assert_eq!(room(config("", "100", "0"), None), Some(0));
        assert_eq!(room(None, Some("0-2")), Some(5));
    }

    #[test]
    fn where_kubelets_configuration_is_not_known_the_number_is_not() {
        assert_eq!(room(None, None), None);
        assert_eq!(room(config("", "much", "0"), None), None);
        assert_eq!(Node::default().room_for_vms(Some(&KubeletConfig::default())), None);
    }
}
