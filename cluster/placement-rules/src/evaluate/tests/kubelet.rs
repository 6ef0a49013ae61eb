//! Nodes on which kubelet chooses the CPUs.

use super::*;

/// A node of kubelet's, its topology, and its options as the object has them.
#[derive(Debug, Clone)]
struct Real {
    node: Node,
    topology: Topology,
    options: BTreeMap<String, String>,
}

impl Real {
    fn facts(&self, node: &Node) -> Facts {
        facts_of("n", node, &self.topology, self.options.clone())
    }
}

const NIC: &str = "example.com/nic";

fn any_pod() -> impl Strategy<Value = Pod> {
    let amount = (1u64..12, 1u64..5, 0u64..3, 0u64..3, 0u8..10);
    let container = (amount, any::<bool>()).prop_map(|((cpus, memory, pages, nics, fraction), guaranteed)| {
        let amounts = Amounts {
            milli_cpus: Some(if fraction == 0 { cpus * 700 } else { cpus * 1000 }),
            memory: Some(memory << 30),
            huge_pages: (pages > 0).then_some((1 << 30, pages << 30)).into_iter().collect(),
            devices: (nics > 0).then(|| (NIC.to_owned(), nics)).into_iter().collect(),
        };
        let mut resources = Resources::guaranteed(amounts);
        if !guaranteed && fraction == 1 {
            resources.limits.milli_cpus = resources.limits.milli_cpus.map(|milli| milli + 1000);
        }
        resources
    });
    vec((container, 0u8..8), 1..3).prop_map(|containers| Pod {
        containers: containers
            .into_iter()
            .enumerate()
            .map(|(at, (resources, kind))| {
                let kind = match (at, kind) {
                    (0, 0) => ContainerKind::Init,
                    (0, 1) => ContainerKind::Sidecar,
                    _ => ContainerKind::App,
                };
                Container::new(&format!("c{at}"), kind, resources)
            })
            .collect(),
        ..Pod::default()
    })
}

fn any_settings() -> impl Strategy<Value = (CpuOptions, Policy, Scope, bool, bool, bool)> {
    let options =
        (any::<bool>(), 0u8..3, any::<bool>(), any::<bool>()).prop_map(|(full, spread, strict, align)| CpuOptions {
            full_pcpus_only: full && spread != 2,
            distribute_cpus_across_numa: spread == 1,
            distribute_cpus_across_cores: spread == 2,
            strict_cpu_reservation: strict,
            align_by_socket: align,
            ..CpuOptions::default()
        });
    let policy = proptest::sample::select(vec![
        Policy::None,
        Policy::BestEffort,
        Policy::Restricted,
        Policy::SingleNumaNode,
    ]);
    let scope = proptest::sample::select(vec![Scope::Container, Scope::Pod]);
    (options, policy, scope, any::<bool>(), any::<bool>(), any::<bool>())
}

/// A node on which pods came and went.
fn any_real() -> impl Strategy<Value = Real> {
    let pods = vec((any_pod(), any::<bool>()), 0..6);
    (any_host(), any_settings(), pods).prop_map(|(host, settings, pods)| {
        let (mut options, policy, scope, memory, closest, devices) = settings;
        options.align_by_socket &= policy != Policy::SingleNumaNode;
        let topology = host.topology();
        let pages = BTreeMap::from([(1 << 30, 4), (2 << 20, 0)]);
        let distances = |id: u32| {
            (0..host.nodes)
                .map(|other| 10 + 7 * u64::from(other.abs_diff(id)))
                .collect()
        };
        let numa = |id: u32| NumaNode {
            memory: 16 << 30,
            huge_pages: pages.clone(),
            distances: distances(id),
        };
        let reserved: CpuSet = topology.siblings(0);
        let mut state = NodeState::default();
        if devices {
            let nics = (0..host.nodes * 2).map(|at| {
                let device = Device {
                    nodes: [at / 2].into(),
                    healthy: true,
                };
                (format!("nic{at}"), device)
            });
            state.devices.resources.insert(NIC.to_owned(), nics.collect());
        }
        let settings = Settings {
            cpu_manager: CpuManager::reserving(options, reserved),
            memory_manager: if memory {
                MemoryManager::Static {
                    reserved: [(0, [("memory".to_owned(), 1 << 30)].into())].into(),
                }
            } else {
                MemoryManager::None
            },
            topology_policy: policy,
            topology_scope: scope,
            topology_options: merge::MergeOptions {
                prefer_closest_numa_nodes: closest,
                ..merge::MergeOptions::default()
            },
            ..Settings::default()
        };
        let machine = Machine {
            cpus: CpuGroups::new(&topology, &BTreeMap::new()),
            numa: (0..host.nodes).map(|id| (id, numa(id))).collect(),
        };
        let mut node = Node::start(machine, settings, state).unwrap();
        for (number, (mut pod, stays)) in pods.into_iter().enumerate() {
            pod.uid = uid(number as u128 + 1).to_string();
            let Ok(admission) = admit(&node, &pod) else { continue };
            // A fault of kubelet's makes a node that its object cannot describe.
            if admission.faults.is_empty() {
                node = if stays {
                    admission.node
                } else {
                    admission.node.without(&pod.uid)
                };
            }
        }
        let options = options.on().map(|name| (name.to_owned(), "true".to_owned())).collect();
        Real {
            node,
            topology,
            options,
        }
    })
}

fn exclusive_of(admission: &kubelet_planner::Admission) -> CpuSet {
    let own = admission
        .containers
        .iter()
        .filter_map(|container| match &container.cpus {
            Cpus::Exclusive(cpus) => Some(cpus.iter()),
            _ => None,
        });
    own.flatten().collect()
}

proptest! {
    #![proptest_config(cases(96))]

    /// The object has enough for kubelet's own answer, and a reservation leaves what kubelet's next object says.
    #[test]
    fn where_kubelet_chooses_the_answer_is_kubelets(real in any_real(), mut pod in any_pod()) {
        let (shape, described) = read(&real.facts(&real.node));
        let before = forecast(&shape, described, Vec::new());
        let told = evaluate(&shape, &before, &plain(&pod));
        pod.uid = uid(99).to_string();
        match admit(&real.node, &pod) {
            Err(rejection) => {
                let refusal = told.unwrap_err();
                prop_assert_eq!(refusal.name, rejection.reason().unwrap_or("NoAnswer"));
                prop_assert_eq!(refusal.text, rejection.to_string());
            }
            Ok(admission) if admission.faults.iter().all(|(_, fault)| *fault == kubelet_planner::cpus::Fault::Overwritten) => {
                prop_assert_eq!(told.unwrap().outcome.cpus, exclusive_of(&admission));
                let (_, next) = read(&real.facts(&admission.node));
                let after = forecast(&shape, ParsedNode { available: before.published, ..next.clone() }, vec![coming(plain(&pod), None)]);
                let certain = admission.containers.iter().all(|one| one.devices.values().all(|chosen| chosen.certain));
                if certain {
                    prop_assert_eq!(after.expected, next.available);
                } else {
                    prop_assert_eq!((after.expected.free, after.expected.memory), (next.available.free, next.available.memory));
                }
            }
            Ok(_) => prop_assert!(told.is_err()),
        }
    }

    /// A pod that is placed beside others finds room, and so do they, in every order in which kubelet may learn of them.
    #[test]
    fn whatever_the_order_in_which_pods_arrive_all_find_room(
        real in any_real(), pods in vec(any_pod(), 1..4),
    ) {
        let mut pods = pods;
        for pod in &mut pods {
            for container in &mut pod.containers {
                // Which devices a plugin prefers is not known.
                container.resources.requests.devices.clear();
                container.resources.limits.devices.clear();
            }
        }
        let (shape, described) = read(&real.facts(&real.node));
        let (mut on_their_way, mut arrivals): (Vec<Pod>, Vec<Arrival>) = (Vec::new(), Vec::new());
        for (number, mut pod) in pods.into_iter().enumerate() {
            let now = forecast(&shape, described.clone(), arrivals.clone());
            if evaluate(&shape, &now, &plain(&pod)).is_ok() {
                arrivals.push(coming(plain(&pod), None));
                pod.uid = uid(number as u128 + 50).to_string();
                on_their_way.push(pod);
            }
        }
        for order in orders_of(on_their_way.len()) {
            let mut node = real.node.clone();
            for at in order {
                let admission = admit(&node, &on_their_way[at]);
                prop_assert!(admission.is_ok(), "{:?}", admission.err().map(|rejection| rejection.to_string()));
                node = admission.unwrap().node;
            }
        }
    }
}

fn orders_of(count: usize) -> Vec<Vec<usize>> {
    match count {
        0 => vec![Vec::new()],
        _ => {
            let with = |order: Vec<usize>| {
                (0..count).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, count - 1);
                    order
                })
            };
            orders_of(count - 1).into_iter().flat_map(with).collect()
        }
    }
}

/// A node with two NUMA nodes of so many cores, without siblings, on which one CPU is reserved.
fn two_numa_nodes(cores: u32, reserved: &str, topology_policy: Policy) -> (NodeShape, ParsedNode) {
    let topology = host(2, cores, 1).topology();
    let machine = machine(&topology, &[[10, 20], [20, 10]]);
    let settings = Settings {
        cpu_manager: CpuManager::reserving(CpuOptions::default(), reserved.parse().unwrap()),
        topology_policy,
        ..Settings::default()
    };
    let node = Node::start(machine, settings, NodeState::default()).unwrap();
    read(&facts_of("n", &node, &topology, BTreeMap::new()))
}

#[test]
fn a_pod_waits_where_another_order_would_leave_it_without_room() {
    // Two NUMA nodes with 4 and 3 free CPUs, of which one is the reserved core.
    let (shape, described) = two_numa_nodes(4, "7", Policy::SingleNumaNode);
    let of = |cpus: u64| plain(&testing::pod(cpus * 1000, 1));
    let ask_with = |coming_pods: &[u64], cpus: u64| {
        let arrivals = coming_pods.iter().map(|cpus| coming(of(*cpus), None)).collect();
        evaluate(&shape, &forecast(&shape, described.clone(), arrivals), &of(cpus))
    };
    assert!(ask_with(&[], 2).is_ok() && ask_with(&[2], 3).is_ok());
    assert_eq!(ask_with(&[2, 3], 2).unwrap_err().name, "PodsOnTheirWay");
    // Pods whose order cannot matter are tried in one, however many there are.
    let one = SharedRequest::new(of(1));
    let arrival = Arrival {
        request: one.clone(),
        ..coming(of(1), None)
    };
    assert!(evaluate(&shape, &forecast(&shape, described.clone(), vec![arrival; 6]), &one).is_ok());
}

#[test]
fn a_vm_on_a_node_of_kubelets_needs_cpus_of_its_own_and_no_options() {
    let (shape, described) = read(&stelia_koordinator::report::testing::facts());
    let forecast = forecast(&shape, described, Vec::new());
    let fits = evaluate(&shape, &forecast, &testing::vm(2)).unwrap();
    assert_eq!(fits.outcome.cpus.to_string().as_str(), "6-7");
    assert_eq!(fits.assigned_cpus, None);
    assert_eq!(fits.outcome.allocation, None);
    let [mut with_options, mut shared] = [2, 2].map(testing::vm);
    with_options.vm.as_mut().unwrap().allocation.qos = Some(Qos::Lse);
    shared.pod = testing::pod(1500, 1);
    for (request, reason) in [
        (with_options, "InvalidArgument"),
        (shared, "NotGuaranteed"),
        (testing::vm(4), "TopologyAffinityError"),
    ] {
        assert_eq!(evaluate(&shape, &forecast, &request).unwrap_err().name, reason);
    }
}

/// Whoever makes pods chooses how different they are, and with more different ones there are more orders than are tried.
#[test]
fn no_more_orders_are_tried_than_the_effort_allows() {
    let (shape, described) = two_numa_nodes(32, "0", Policy::None);
    let of = |number: u64| {
        let mut pod = testing::pod(2000, 1);
        pod.containers[0].resources.requests.memory = Some((1 << 30) + number);
        pod.containers[0].resources.limits = pod.containers[0].resources.requests.clone();
        coming(plain(&pod), None)
    };
    let with = |arrivals: Vec<Arrival>| {
        let forecast = NodeForecast::new(&shape, described.available.clone(), arrivals);
        (
            evaluate(&shape, &forecast, &plain(&testing::pod(2000, 1))),
            forecast.expected.free.len(),
        )
    };
    assert_eq!(with((0..12).map(of).collect()).0.unwrap_err().name, "PodsOnTheirWay");
    // Of those that are late no order is tried.
    let late = |arrival| Arrival {
        is_late: true,
        ..arrival
    };
    assert!(with((0..12).map(|number| late(of(number))).collect()).0.is_ok());
    // However many there are, the time is bounded, and what is not counted is not free.
    assert_eq!(with((0..5000).map(of).collect()).1, 0);
    // An author who spends all the time has as many CPUs of each NUMA node as his pods request, and closes no node.
    let many_containers = |_| {
        let mut pod = testing::pod(1000, 1);
        let idle = |at| Container::new(&format!("c{at}"), ContainerKind::App, Resources::default());
        pod.containers.extend((1..64).map(idle));
        pod.resources = Some(pod.containers[0].resources.clone());
        late(coming(plain(&pod), None))
    };
    let (placement, free) = with((0..65).map(many_containers).collect());
    assert!(placement.is_ok(), "{placement:?}");
    assert_eq!(free, 63 - 2 * 3, "62 are asked about, and get none");
    let large = |_| {
        let mut pod = Pod::clone(&many_containers(0).request.pod);
        let own = testing::pod(1_000_000, 1).containers[0].resources.clone();
        pod.resources = Some(own);
        late(coming(plain(&pod), None))
    };
    assert_eq!(with((0..65).map(large).collect()).1, 63, "none of them is admitted");
}
