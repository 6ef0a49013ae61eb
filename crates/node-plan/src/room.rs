//! kubelet's sum of requests: it admits a pod only if the requests of all pods on the node fit what is allocatable (`GeneralPredicates`).

use kubelet_planner::start_errors::reserved_bytes;
use kubelet_planner::{Machine, Pod};
use stelia_cpus::quantity::Quantity;
use stelia_kubelet::{AllocatedPods, KubeletConfig};

/// CPUs in thousandths and memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    milli_cpus: u64,
    memory: u64,
}

/// What a node may give, and what its pods request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    allocatable: Sum,
    /// By kubelet's file, which lacks a RuntimeClass's overhead, has init containers beside the others (1.36) or not at all, and may have pods that
    /// ended.
    requested: Option<Sum>,
}

/// Whether the requests of all pods fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    Fits,
    /// Why that is not known.
    Unknown(String),
    /// The pod requests more than the whole node may give.
    TooLarge {
        /// `cpu` or `memory`; kubelet's reason is `OutOf` with this.
        resource: &'static str,
        message: String,
    },
}

impl Room {
    /// `pods`: kubelet's record of what it gave, where it can be read; `is_there` says whether a pod of it still exists.
    pub fn new(
        config: &KubeletConfig,
        machine: &Machine,
        pods: Option<&AllocatedPods>,
        is_there: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let online = 1000 * machine.cpus.cpus().len() as u64;
        let reserved = match config.reserved_system_cpus.len() as u64 {
            0 => {
                let amounts = [&config.kube_reserved, &config.system_reserved].into_iter();
                let amounts = amounts.filter_map(|reserved| reserved.get("cpu"));
                let mut amounts = amounts.map(|text| text.parse::<Quantity>());
                amounts.try_fold(0u64, |sum, amount| Some(sum.saturating_add(amount.ok()?.milli())))?
            }
            cpus => 1000 * cpus,
        };
        let nodes = machine.numa.values();
        let memory = nodes.fold(0u64, |sum, node| {
            let pages = node.huge_pages.iter().map(|(size, count)| size.saturating_mul(*count));
            let pages = pages.fold(0, u64::saturating_add);
            sum.saturating_add(node.memory.saturating_sub(pages))
        });
        let living = |pods: &AllocatedPods| -> Option<Sum> {
            let pods = pods.pods.iter().filter(|(uid, _)| is_there(uid));
            let mut containers = pods.flat_map(|(_, containers)| containers.values());
            containers.try_fold(Sum::default(), |sum, requests| {
                let amount = |kind: &str| match requests.get(kind) {
                    Some(text) => text.parse::<Quantity>().ok(),
                    None => Some(Quantity::default()),
                };
                Some(Sum {
                    milli_cpus: sum.milli_cpus.saturating_add(amount("cpu")?.milli()),
                    memory: sum.memory.saturating_add(amount("memory")?.value()),
                })
            })
        };
        Some(Self {
            allocatable: Sum {
                milli_cpus: online.saturating_sub(reserved),
                memory: memory.saturating_sub(reserved_bytes(config, Some(machine))?),
            },
            requested: pods.and_then(living),
        })
    }

    /// Whether this pod's requests fit too.
    pub fn fit(&self, pod: &Pod) -> Fit {
        let own = pod.requests();
        let own = Sum {
            milli_cpus: own.milli_cpus.unwrap_or(0),
            memory: own.memory.unwrap_or(0),
        };
        let amounts = |sum: &Sum| [sum.milli_cpus, sum.memory];
        let kinds = [("cpu", "OutOfcpu"), ("memory", "OutOfmemory")];
        let of_node = amounts(&own).into_iter().zip(amounts(&self.allocatable));
        for ((resource, _), (own, allocatable)) in kinds.into_iter().zip(of_node) {
            if own > allocatable {
                let message =
                    format!("Node didn't have enough resource: {resource}, requested: {own}, capacity: {allocatable}");
                return Fit::TooLarge { resource, message };
            }
        }
        let Some(others) = &self.requested else {
            return Fit::Unknown(
                "the requests of other pods are unknown, so it was not checked whether the node has room".to_owned(),
            );
        };
        let sums = amounts(&own)
            .into_iter()
            .zip(amounts(others))
            .zip(amounts(&self.allocatable));
        let over = kinds
            .into_iter()
            .zip(sums)
            .find(|(_, ((own, others), all))| own.saturating_add(*others) > *all);
        match over {
            None => Fit::Fits,
            Some(((resource, reason), ((own, others), all))) => {
                let [own, others, all] = [own, others, all].map(|amount| match resource {
                    "cpu" => format!("{amount}m"),
                    _ => format!("{amount} bytes"),
                });
                Fit::Unknown(format!(
                    "kubelet may reject the pod ({reason}): it requests {own} of {resource}, other pods request {others} by kubelet's record, \
                     and {all} is allocatable. The record may include init containers and pods that ended"
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kubelet_planner::cpus::CpuGroups;
    use kubelet_planner::{Amounts, Container, ContainerKind, NumaNode, Resources};
    use stelia_cpus::testing::Shape;

    use super::*;

    /// Eight CPUs, of which one is reserved, and 16 GiB, of which 1 is.
    fn room(pods: Option<&AllocatedPods>) -> Room {
        let shape = Shape {
            nodes: 1,
            cores: 4,
            threads: 2,
            interleaved: false,
        };
        let node = NumaNode {
            memory: 16 << 30,
            ..NumaNode::default()
        };
        let machine = Machine {
            cpus: CpuGroups::new(&shape.topology(), &BTreeMap::new()),
            numa: [(0, node)].into(),
        };
        let config = KubeletConfig {
            reserved_system_cpus: "0".parse().unwrap(),
            system_reserved: [("memory".to_owned(), "1Gi".to_owned())].into(),
            eviction_hard: BTreeMap::new(),
            ..KubeletConfig::default()
        };
        Room::new(&config, &machine, pods, |uid| uid != "gone").unwrap()
    }

    fn pod(milli_cpus: u64, memory: u64) -> Pod {
        let amounts = Amounts {
            milli_cpus: Some(milli_cpus),
            memory: Some(memory),
            ..Amounts::default()
        };
        let resources = Resources {
            requests: amounts,
            ..Resources::default()
        };
        Pod {
            containers: vec![Container::new("c", ContainerKind::App, resources)],
            ..Pod::default()
        }
    }

    #[test]
    fn requests_are_summed_as_far_as_they_are_known() {
        let requests = BTreeMap::from([("cpu".to_owned(), "1500m".to_owned())]);
        let containers = BTreeMap::from([("c".to_owned(), requests)]);
        let pods = AllocatedPods {
            pods: ["one", "two", "gone"]
                .map(|uid| (uid.to_owned(), containers.clone()))
                .into(),
        };
        let room_beside = room(Some(&pods));
        assert_eq!(room_beside.fit(&pod(4000, 1 << 30)), Fit::Fits);
        let Fit::Unknown(why) = room_beside.fit(&pod(4001, 1 << 30)) else {
            panic!("4001");
        };
        assert!(
            why.contains("other pods request 3000m") && why.contains("OutOfcpu"),
            "{why}"
        );
        assert!(matches!(room(None).fit(&pod(1000, 1)), Fit::Unknown(why) if why.contains("was not checked")));
        for (pod, expected) in [(pod(7001, 1), "cpu"), (pod(1000, (15 << 30) + 1), "memory")] {
            let found = room(None).fit(&pod);
            assert!(
                matches!(&found, Fit::TooLarge { resource, .. } if *resource == expected),
                "{found:?}"
            );
        }
    }
}
