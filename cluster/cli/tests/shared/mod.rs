//! A small cluster: six nodes, of every profile, and the pods on them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stelia_cpus::CpuSet;
use stelia_cpus::testing::Shape;
use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource, HeldCpus, NumaTopologyAlignmentPolicy};
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::memory_and_devices::Devices;
use stelia_koordinator::report::profile::{Profile, object};
use stelia_koordinator::report::testing::numa;
use stelia_koordinator::report::{Alignment, Allocator, Facts, Kubelet, Managers, PodAllocation, ReportedPod};
use stelia_kubelet::{PodName, PodUid};

/// A pod: namespace, name, node, CPUs, and the CPUs that it has.
type Running = (&'static str, &'static str, &'static str, u32, &'static str);

const PODS: [Running; 5] = [
    ("team-a", "db", "worker-1", 8, "1-4,17-20"),
    ("team-a", "web", "worker-1", 6, "8-10,24-26"),
    ("team-b", "build", "worker-2", 4, "1-2,17-18"),
    ("team-b", "cache", "worker-2", 8, "8-11,24-27"),
    ("team-b", "index", "worker-3", 12, "8-13,24-29"),
];

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn uid(number: usize) -> String {
    format!("416de7c2-21de-472d-817c-fa9d4306cb{number:02x}")
}

fn allocation(number: usize, (namespace, pod, _, _, list): &Running, by_kubelet: bool) -> PodAllocation {
    PodAllocation {
        pod: PodUid::parse(&uid(number)).unwrap(),
        name: PodName::new(namespace, pod),
        cpus: cpus(list),
        by_kubelet,
    }
}

fn all_of(allocations: &[PodAllocation]) -> CpuSet {
    allocations.iter().flat_map(|one| one.cpus.iter()).collect()
}

/// The allocator of a node that has nothing allocated.
fn allocator(facts: &Facts, alignment: NumaTopologyAlignmentPolicy) -> Option<Allocator> {
    let policies = AllocatorPolicies {
        source: CpuSource::Steliad,
        reserved: facts.reserved.clone(),
        alignment,
        ..AllocatorPolicies::default()
    };
    Some(Allocator {
        policies,
        held: HeldCpus::default(),
        lsr: CpuSet::new(),
    })
}

/// Two NUMA nodes of eight cores with two threads; CPUs 0 and 16, a core, are reserved.
fn facts(name: &str) -> Facts {
    let topology = Shape {
        nodes: 2,
        cores: 8,
        threads: 2,
        interleaved: true,
    }
    .topology();
    let here = PODS.iter().enumerate().filter(|(_, (.., node, _, _))| *node == name);
    let allocations: Vec<PodAllocation> = here.map(|(at, pod)| allocation(at, pod, true)).collect();
    let pods = allocations.iter().map(|one| {
        let pod = ReportedPod {
            name: one.name.clone(),
            exclusive: true,
        };
        (one.pod.clone(), pod)
    });
    let pods: BTreeMap<PodUid, ReportedPod> = pods.collect();
    let exclusive = all_of(&allocations);
    Facts {
        name: name.to_owned(),
        numa: numa(2),
        reserved: cpus("0,16"),
        shared: topology.online().difference(&exclusive),
        exclusive,
        allocations,
        containers: BTreeSet::new(),
        kubelet: Kubelet {
            cpu_policy: "static".to_owned(),
            cpu_options: BTreeMap::from([("full-pcpus-only".to_owned(), "true".to_owned())]),
            reserved: cpus("0,16"),
            alignment: Some(Alignment {
                policy: "single-numa-node".to_owned(),
                scope: "container".to_owned(),
            }),
            max_numa_nodes: Some(8),
            managers: Managers::default(),
        },
        allocator: None,
        pods: Some(pods),
        devices: BTreeMap::new(),
        problems: Vec::new(),
        topology,
    }
}

fn topology(facts: &Facts, profile: Profile) -> Value {
    let version = profile.versions()[0];
    let mut object = serde_json::to_value(object(facts, profile, version, Method::default())).unwrap();
    object["metadata"]["resourceVersion"] = json!("1207");
    object["metadata"]["managedFields"] = json!([
        { "manager": "steliad", "operation": "Apply", "time": "2026-10-01T10:00:00Z" },
    ]);
    object
}

/// The object with the summary that a publisher adds: where it has attributes as one of these, else as an annotation.
fn summarized(mut object: Value, reason: &str, instances: Value, degraded: u64) -> Value {
    let message = match reason {
        "Ready" => "",
        _ => "kubelet's CPU manager state cannot be used",
    };
    let waiting_too_long = instances["waiting"].as_u64().unwrap_or(0);
    let summary = json!({
        "version": "0.1.0", "reason": reason, "message": message, "instances": instances, "degraded": degraded,
        "waiting_too_long": waiting_too_long,
    });
    let (name, value) = ("isolation.stelia.io/summary", summary.to_string());
    if object["apiVersion"] == "topology.node.k8s.io/v1alpha1" {
        object["metadata"]["annotations"][name] = json!(value)
    } else {
        match &mut object["attributes"] {
            Value::Array(attributes) => attributes.push(json!({ "name": name, "value": value })),
            none => *none = json!([{ "name": name, "value": value }]),
        }
    }
    object
}

/// NodeResourceTopologies; worker-5 has none.
pub fn topologies() -> Vec<Value> {
    let mut steliads = facts("worker-2");
    steliads.allocator = allocator(&steliads, NumaTopologyAlignmentPolicy::SingleNumaNode);
    steliads.allocations.iter_mut().for_each(|one| one.by_kubelet = false);
    let mut lean = facts("worker-4");
    lean.exclusive = cpus("1-5,17-21,8-12,24-28");
    lean.problems = vec!["the name of a pod is not known: no fingerprint of the pods".to_owned()];
    let mut unusable = topology(&facts("worker-6"), Profile::Stelia);
    let state = json!({ "name": "isolation.stelia.io/state", "value": "unusable" });
    unusable["attributes"].as_array_mut().unwrap().push(state);
    let ready = |facts: &Facts, profile, instances, degraded| {
        let object = topology(facts, profile);
        summarized(object, "Ready", instances, degraded)
    };
    let one = json!({ "isolated": 1 });
    vec![
        ready(&facts("worker-1"), Profile::Stelia, json!({ "isolated": 2 }), 0),
        ready(&steliads, Profile::Stelia, json!({ "isolated": 1, "waiting": 1 }), 1),
        ready(&facts("worker-3"), Profile::Koordinator, one, 0),
        ready(&lean, Profile::Nrt, json!({ "isolated": 1, "pinned": 2 }), 0),
        summarized(unusable, "KubeletStateUnusable", json!({}), 0),
    ]
}

/// Nodes: worker-3 is tainted, worker-5 cordoned.
pub fn nodes() -> Vec<Value> {
    let node = |number: u32| {
        let name = format!("worker-{number}");
        let mut spec = json!({});
        match number {
            3 => spec["taints"] = json!([{ "key": "dedicated", "value": "db", "effect": "NoSchedule" }]),
            5 => spec["unschedulable"] = json!(true),
            _ => {}
        }
        let zone = if number < 4 { "a" } else { "b" };
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/arch": "amd64",
                    "stelia.io/ready": if number == 6 { "false" } else { "true" },
                    "topology.kubernetes.io/zone": zone,
                },
            },
            "spec": spec,
            "status": {
                "allocatable": { "cpu": "30", "memory": "28Gi", "pods": "110", "hugepages-2Mi": "4Gi" },
                "capacity": { "cpu": "32", "memory": "32Gi", "pods": "110", "hugepages-2Mi": "4Gi" },
            },
        })
    };
    (1..=6).map(node).collect()
}

fn pod(namespace: &str, name: &str, number: usize, cpus: &str, status: Value) -> Value {
    let amounts = json!({ "cpu": cpus, "memory": "2Gi" });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": namespace, "name": name, "uid": uid(number) },
        "spec": {
            "containers": [{
                "name": "vm",
                "image": "example.com/vm",
                "resources": { "limits": amounts, "requests": amounts },
            }],
        },
        "status": status,
    })
}

/// Pods: five that run, one that waits, one that kubelet refused.
pub fn pods() -> Vec<Value> {
    let running = PODS.iter().enumerate().map(|(at, (namespace, name, node, cpus, _))| {
        let mut pod = pod(namespace, name, at, &cpus.to_string(), json!({ "phase": "Running" }));
        pod["spec"]["nodeName"] = json!(node);
        let (status, reason, message) = match *name {
            "build" => ("False", "WaitingTooLong", "it runs on shared CPUs"),
            "cache" => ("False", "Evicted", "kubelet gave CPUs of its to another pod"),
            // No publisher writes conditions on its node.
            "index" => return pod,
            _ => ("True", "Isolated", "its vCPUs have CPUs to themselves"),
        };
        pod["status"]["conditions"] = json!([{
            "type": "stelia.io/isolated", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-10-01T10:00:00Z",
        }]);
        pod
    });
    let message = "0/6 nodes are available: 1 node(s) had untolerated taint {dedicated: db}, 1 node(s) were unschedulable, \
                   4 cannot align pod.";
    let conditions = json!([
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message },
    ]);
    let pending = json!({ "phase": "Pending", "conditions": conditions });
    let waiting = pod("team-a", "big", 5, "12", pending);
    let failed = json!({
        "phase": "Failed",
        "reason": "SMTAlignmentError",
        "message": "Pod was rejected: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
    });
    let mut refused = pod("team-b", "odd", 6, "3", failed);
    refused["spec"]["nodeName"] = json!("worker-1");
    running.chain([waiting, refused]).collect()
}

const GPU: &str = "nvidia.com/gpu";

/// Four nodes with four GPUs at each NUMA node, all at node 1 of which are pods' on the first and the third: what is free of CPUs and GPUs is on
/// different NUMA nodes there. The third one's kubelet rejects what is not aligned; on the fourth steliad chooses the CPUs.
pub fn gpus() -> Vec<Value> {
    const NODES: [(&str, &str, [usize; 2]); 4] = [
        ("gpu-1", "best-effort", [4, 0]),
        ("gpu-2", "best-effort", [4, 2]),
        ("gpu-3", "restricted", [4, 0]),
        ("gpu-4", "best-effort", [4, 4]),
    ];
    const PODS: [(Running, u64); 6] = [
        (("team-a", "render", "gpu-1", 12, "1-6,17-22"), 0),
        (("team-a", "train", "gpu-1", 2, "8,24"), 4),
        (("team-b", "serve", "gpu-2", 4, "8-9,24-25"), 2),
        (("team-c", "render", "gpu-3", 12, "1-6,17-22"), 0),
        (("team-c", "train", "gpu-3", 2, "8,24"), 4),
        (("team-d", "notebook", "gpu-4", 6, "8-10,24-26"), 0),
    ];
    let mut all = Vec::new();
    for (name, policy, free) in NODES {
        let of_steliad = name == "gpu-4";
        let here = (64..).zip(&PODS).filter(|(_, ((.., node, _, _), _))| *node == name);
        let here: Vec<(usize, &(Running, u64))> = here.collect();
        let mut of = facts(name);
        of.allocations = here
            .iter()
            .map(|(at, (pod, _))| allocation(*at, pod, !of_steliad))
            .collect();
        of.exclusive = all_of(&of.allocations);
        of.shared = of.topology.online().difference(&of.exclusive);
        of.kubelet.alignment = Some(Alignment {
            policy: policy.to_owned(),
            scope: "pod".to_owned(),
        });
        let gpus = |free| BTreeMap::from([(GPU.to_owned(), Devices { all: 4, free })]);
        of.devices = (0..).zip(free.map(gpus)).collect();
        if of_steliad {
            of.kubelet.cpu_policy = "none".to_owned();
            of.kubelet.cpu_options = BTreeMap::new();
            of.allocator = allocator(&of, NumaTopologyAlignmentPolicy::BestEffort);
        }
        all.push(topology(&of, Profile::Stelia));
        all.push(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": name },
            "status": { "allocatable": { "cpu": "30", "memory": "60Gi", "pods": "110", GPU: "8" } },
        }));
        for (at, ((namespace, pod_name, node, count, _), gpus)) in here {
            let running = json!({ "phase": "Running" });
            let mut vm = pod(namespace, pod_name, at, &count.to_string(), running);
            vm["spec"]["nodeName"] = json!(node);
            for amounts in ["limits", "requests"].iter().filter(|_| *gpus > 0) {
                vm["spec"]["containers"][0]["resources"][amounts][GPU] = json!(gpus.to_string());
            }
            all.push(vm);
        }
    }
    all
}
