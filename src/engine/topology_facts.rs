//! What of the view is reported to schedulers.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;
use stelia_koordinator::report::numa::KernelNumaNode;
use stelia_koordinator::report::{Alignment, Allocator, Facts, Kubelet, Managers, PodAllocation};
use stelia_kubelet::PodUid;
use stelia_kubelet::config::{KubeletConfig, parse_bool};
use stelia_model as model;
use stelia_settings::Isolation;

/// The node `name` as the view has it. Without kubelet's configuration only its CPU manager's policy is known, from its file.
///
/// # Errors
/// Why the CPUs cannot be told apart: kubelet's file cannot be used.
pub fn node_facts(
    view: &model::Node,
    config: Option<&KubeletConfig>,
    numa: BTreeMap<u32, KernelNumaNode>,
    name: String,
) -> Result<Facts, String> {
    let Some(pool) = &view.pool else {
        let problem = view.kubelet_problem.clone();
        return Err(problem.unwrap_or_else(|| "kubelet's state was not read yet".to_owned()));
    };
    let instances = view.instances.values();
    let owned: CpuSet = instances.flat_map(|instance| instance.exclusive.iter()).collect();
    let configured = || {
        config
            .map(|config| config.reserved_system_cpus.clone())
            .unwrap_or_default()
    };
    let (reserved, exclusive) = match &view.pools {
        Some(pools) => (pools.reserved.clone(), pools.pools.exclusive.clone()),
        None => (configured(), owned.union(&view.kubelet_cpus)),
    };
    Ok(Facts {
        name,
        topology: (*view.topology).clone(),
        numa,
        reserved,
        shared: pool.difference(&exclusive),
        exclusive,
        allocations: allocations(view),
        containers: containers(view),
        kubelet: Kubelet {
            cpu_policy: match config {
                Some(config) => config.cpu_manager_policy.clone(),
                None => view.kubelet_policy.clone().unwrap_or_default(),
            },
            cpu_options: config
                .map(|config| config.cpu_manager_policy_options.clone())
                .unwrap_or_default(),
            reserved: configured(),
            alignment: config.map(|config| Alignment {
                policy: config.topology_manager_policy.clone(),
                scope: config.topology_manager_scope.clone(),
            }),
            max_numa_nodes: config.and_then(max_numa_nodes),
            managers: config.map(managers).unwrap_or_default(),
        },
        allocator: view.pools.as_ref().map(|pools| Allocator {
            policies: pools.policies.clone(),
            held: pools.held.clone(),
            lsr: pools.pools.be_shared.difference(&pools.pools.shared),
        }),
        pods: None,
        devices: BTreeMap::new(),
        problems: Vec::new(),
    })
}

/// kubelet's limit where its configuration has none (`defaultMaxAllowableNUMANodes`).
const MAX_NUMA_NODES: u32 = 8;

/// With how many NUMA nodes kubelet's topology manager starts at most.
fn max_numa_nodes(config: &KubeletConfig) -> Option<u32> {
    let option = config.topology_manager_policy_options.get("max-allowable-numa-nodes");
    option.map_or(Some(MAX_NUMA_NODES), |text| text.trim().parse().ok())
}

/// What kubelet's managers decide by, as far as its configuration tells.
fn managers(config: &KubeletConfig) -> Managers {
    let gate = |name: &str, default: bool| config.feature_gates.get(name).copied().unwrap_or(default);
    let closest = config.topology_manager_policy_options.get("prefer-closest-numa-nodes");
    Managers {
        prefer_closest: closest.and_then(|text| parse_bool(text)).unwrap_or_default(),
        pod_level: gate("PodLevelResources", true) && gate("PodLevelResourceManagers", false),
        reserved_count: if config.reserved_system_cpus.is_empty() {
            config.reserved_count().unwrap_or_default()
        } else {
            0
        },
        ..Managers::default()
    }
}

/// Every pod's own CPUs: kubelet's entries, of all its containers together, and what an instance holds besides.
fn allocations(view: &model::Node) -> Vec<PodAllocation> {
    let mut kubelets: BTreeMap<&PodUid, CpuSet> = BTreeMap::new();
    let of_containers = view.entries.iter();
    let of_containers = of_containers.flat_map(|(pod, containers)| containers.values().map(move |cpus| (pod, cpus)));
    for (pod, cpus) in of_containers.chain(view.pod_entries.iter()) {
        let held = kubelets.entry(pod).or_default();
        *held = held.union(cpus);
    }
    let named = |pod: &PodUid| view.instances.get(pod)?.pod_name.clone();
    let ours = view.instances.values().map(|instance| PodAllocation {
        pod: instance.pod.clone(),
        name: named(&instance.pod),
        cpus: instance.exclusive.difference(&view.kubelet_cpus),
        by_kubelet: false,
    });
    let kubelets = kubelets.into_iter().map(|(pod, cpus)| PodAllocation {
        pod: pod.clone(),
        name: named(pod),
        cpus,
        by_kubelet: true,
    });
    let mut all: Vec<PodAllocation> = kubelets.chain(ours).filter(|one| !one.cpus.is_empty()).collect();
    all.sort_by(|a, b| a.pod.cmp(&b.pod).then(b.by_kubelet.cmp(&a.by_kubelet)));
    all
}

/// The pods whose instance is a container without a VM. One with a VM, as KubeVirt's, can be migrated.
fn containers(view: &model::Node) -> BTreeSet<PodUid> {
    let is_one = |instance: &&std::sync::Arc<model::Instance>| {
        instance.isolation == Isolation::Container && instance.vcpus.is_empty()
    };
    let found = view.instances.values().filter(is_one);
    found.map(|instance| instance.pod.clone()).collect()
}

#[cfg(test)]
mod tests {
    use stelia_cpus::testing::Shape;
    use stelia_koordinator::allocator::{AllocatorPolicies, HeldCpus, Pools};

    use super::*;

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn pod(text: &str) -> PodUid {
        PodUid::parse(text).unwrap()
    }

    const A: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";
    const B: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

    /// Eight CPUs; kubelet gave pod A 2-3 in two containers, and pod B 4 as a whole.
    fn view() -> model::Node {
        let topology = Shape {
            nodes: 2,
            cores: 2,
            threads: 2,
            interleaved: false,
        };
        let containers = [("vm", "2"), ("side", "3")].map(|(name, list)| (name.to_owned(), cpus(list)));
        model::Node {
            topology: topology.topology().into(),
            pool: Some(cpus("0-1,5-7")),
            entries: BTreeMap::from([(pod(A), BTreeMap::from(containers))]).into(),
            pod_entries: BTreeMap::from([(pod(B), cpus("4"))]).into(),
            kubelet_cpus: cpus("2-4"),
            kubelet_policy: Some("static".to_owned()),
            ..model::Node::default()
        }
    }

    fn facts(view: &model::Node, config: Option<&KubeletConfig>) -> Facts {
        node_facts(view, config, BTreeMap::new(), "n".to_owned()).unwrap()
    }

    fn allocation(uid: &str, list: &str, by_kubelet: bool) -> PodAllocation {
        PodAllocation {
            pod: pod(uid),
            name: None,
            cpus: cpus(list),
            by_kubelet,
        }
    }

    #[test]
    fn what_kubelet_gave_is_told_by_pod() {
        let config = KubeletConfig {
            cpu_manager_policy: "static".to_owned(),
            reserved_system_cpus: cpus("0"),
            topology_manager_policy: "restricted".to_owned(),
            ..KubeletConfig::default()
        };
        let facts = facts(&view(), Some(&config));
        assert_eq!(
            facts.allocations,
            [allocation(A, "2-3", true), allocation(B, "4", true)]
        );
        assert_eq!(
            (facts.reserved, facts.exclusive, facts.shared),
            (cpus("0"), cpus("2-4"), cpus("0-1,5-7"))
        );
        assert_eq!(facts.kubelet.alignment.unwrap().policy, "restricted");
    }

    #[test]
    fn a_container_is_told_apart_from_a_vm_whose_container_is_the_partition() {
        let mut view = view();
        let mut container = crate::engine::registered(pod(A));
        container.isolation = Isolation::Container;
        let mut vm = crate::engine::registered(pod(B));
        vm.isolation = Isolation::Container;
        vm.vcpus = vec![model::PinnedThread::default()];
        view.instances.insert(pod(A), container.into());
        view.instances.insert(pod(B), vm.into());
        assert_eq!(facts(&view, None).containers, BTreeSet::from([pod(A)]));
        let mut of_runner = crate::engine::registered(pod(A));
        of_runner.isolation = Isolation::Vcpus;
        view.instances.insert(pod(A), of_runner.into());
        assert!(facts(&view, None).containers.is_empty());
    }

    #[test]
    fn without_kubelets_configuration_its_file_tells_the_policy() {
        let facts = facts(&view(), None);
        assert_eq!(facts.kubelet.cpu_policy, "static");
        assert_eq!(facts.kubelet.alignment, None);
        assert!(facts.reserved.is_empty());
    }

    #[test]
    fn what_steliad_allocates_is_told_beside_kubelets() {
        let mut view = view();
        let mut instance = crate::engine::registered(pod(B));
        instance.exclusive = cpus("4,6-7");
        view.instances.insert(pod(B), instance.into());
        view.pool = Some(cpus("0-1,5"));
        view.pools = Some(std::sync::Arc::new(model::Pools {
            reserved: cpus("1"),
            kubelet: cpus("2-4"),
            policies: AllocatorPolicies::default(),
            held: HeldCpus::default(),
            pools: Pools {
                allocatable: cpus("0,5"),
                exclusive: cpus("2-4,6-7"),
                shared: cpus("0-1,5"),
                shared_by_node: BTreeMap::new(),
                be_shared: cpus("0-1,5"),
            },
        }));
        let facts = facts(&view, None);
        let expected = [
            allocation(A, "2-3", true),
            allocation(B, "4", true),
            allocation(B, "6-7", false),
        ];
        assert_eq!(facts.allocations, expected);
        assert_eq!((facts.reserved, facts.shared), (cpus("1"), cpus("0-1,5")));
    }

    #[test]
    fn a_file_that_cannot_be_used_leaves_nothing_to_report() {
        let mut view = view();
        view.pool = None;
        view.kubelet_problem = Some("no JSON".to_owned());
        let refused = node_facts(&view, None, BTreeMap::new(), "n".to_owned());
        assert_eq!(refused.unwrap_err(), "no JSON");
    }
}
