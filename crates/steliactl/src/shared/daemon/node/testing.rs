//! A node for tests of output.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use stelia_api::quiet::{Quiet, Remaining};
use stelia_api::{Reason, ReasonCode};
use stelia_kernel::locality::{Locality, NodeMemory};
use stelia_koordinator::allocator::{Allocation, CpuExclusivePolicy, Exclusivity, Qos};
use stelia_model::{Instance, PinnedThread, Pools};

use super::Description;

/// An isolated VM, a degraded one, and a pod that is not an instance.
pub(crate) const PODS: [&str; 3] = [
    "aaaaaaaa-0000-4000-8000-000000000000",
    "bbbbbbbb-0000-4000-8000-000000000000",
    "cccccccc-0000-4000-8000-000000000000",
];

/// The instance of this pod, to be changed.
pub(crate) fn instance_mut<'a>(description: &'a mut Description, pod: &str) -> &'a mut Instance {
    Arc::make_mut(description.node.instances.get_mut(pod).unwrap())
}

/// The members of the first that are missing, from the second.
fn complete(given: &mut Value, whole: &Value) {
    if let (Value::Object(given), Value::Object(whole)) = (given, whole) {
        for (name, value) in whole {
            complete(given.entry(name).or_insert_with(|| value.clone()), value);
        }
    }
}

fn complete_each(given: &mut Value, whole: &impl Serialize) {
    let whole = serde_json::to_value(whole).unwrap();
    match given {
        Value::Array(all) => all.iter_mut().for_each(|one| complete(one, &whole)),
        Value::Object(all) => all.values_mut().for_each(|one| complete(one, &whole)),
        _ => {}
    }
}

/// The description of which only these members are given; the others are those of a node of which nothing is known.
pub(crate) fn described(given: &str) -> Description {
    let mut all: Value = serde_json::from_str(given).unwrap();
    complete(&mut all, &serde_json::to_value(Description::default()).unwrap());
    let localities = &mut all["locality"]["instances"];
    complete_each(localities, &Locality::default());
    for locality in localities.as_object_mut().unwrap().values_mut() {
        complete_each(&mut locality["memory"], &NodeMemory::default());
    }
    let node = &mut all["node"];
    complete(&mut node["pools"], &serde_json::to_value(Pools::default()).unwrap());
    complete_each(&mut node["quiet"]["remaining"], &Remaining::default());
    complete_each(&mut node["instances"], &Instance::default());
    for (uid, instance) in node["instances"].as_object_mut().unwrap() {
        instance["pod"] = uid.as_str().into();
        complete_each(
            &mut instance["degraded"],
            &Reason::of(&Default::default(), ReasonCode::StepFailed, ""),
        );
        complete_each(&mut instance["vcpus"], &PinnedThread::default());
    }
    serde_json::from_value(all).unwrap()
}

/// Likewise what is known of disturbances.
pub(crate) fn quiet(given: &str) -> Quiet {
    let mut all: Value = serde_json::from_str(given).unwrap();
    complete(&mut all, &serde_json::to_value(Quiet::default()).unwrap());
    serde_json::from_value(all).unwrap()
}

/// What steliad gave an instance of this class.
pub(crate) fn allocation(qos: Qos) -> Allocation {
    Allocation {
        qos,
        cpus: 0,
        bind: Default::default(),
        required: false,
        exclusive: CpuExclusivePolicy::None,
        strategy: Default::default(),
        alignment: Default::default(),
        limit_milli: 0,
        numa_node: None,
        exclusivity: Exclusivity::NotAsked,
        explanation: Vec::new(),
    }
}

/// 2 sockets with a NUMA node of 2 cores of 2 siblings each: 0-1 reserved, 4-5, 2 (its sibling is shared), 6.
pub(crate) fn node() -> Description {
    let instance = |state: &str, degraded: &str, cpus: &str, vcpus: &str| {
        format!(
            r#"{{"container":"vm","state":"{state}","degraded":[{degraded}],"exclusive":"{cpus}","float":"0-1,3,7","float_reason":"pool","vcpus":[{vcpus}]}}"#
        )
    };
    let good = instance(
        "isolated",
        "",
        "4-5",
        r#"{"index":0,"task":{"id":70,"start":1},"cpu":4},{"index":1,"task":{"id":71,"start":1},"cpu":5}"#,
    );
    let bad = instance(
        "waiting",
        r#"{"code":"no-assignment","text":"kubelet gave CPU 2 away"}"#,
        "2",
        "",
    );
    let text = format!(
        r#"{{"version":"0","node":{{"cpu_source":"kubelet","pool":"0-1,3,7","entries":{{"{a}":{{"vm":"4-5"}},"{b}":{{"vm":"2"}},"{c}":{{"db":"6"}}}},
        "topology":{topology},"slice_exclusive":"4-5","instances":{{"{a}":{good},"{b}":{bad}}}}},
        "kubelet_config":{{"reservedSystemCPUs":"0-1"}}}}"#,
        topology = topology(),
        a = PODS[0],
        b = PODS[1],
        c = PODS[2],
    );
    described(&text)
}

/// The same node where steliad chooses the CPUs: 0 reserved, 4-5 of an LSE instance, 2 of an LSR instance, 6 still
/// kubelet's, and an LS instance on the shared pool of node 1.
pub(crate) fn allocated() -> Description {
    let asked = r#""required":false,"strategy":"MostAllocated","limit_milli":0,"numa_node":null"#;
    let text = format!(
        r#"{{"version":"0","node":{{"cpu_source":"steliad",
        "pools":{{"reserved":"0","kubelet":"6","allocatable":"1,3,7","exclusive":"2,4-6","shared":"0-1,3,7",
            "shared_by_node":{{"0":{{"socket":0,"cpus":"0-1,3"}},"1":{{"socket":1,"cpus":"7"}}}},"be_shared":"0-3,7"}},
        "pool":"0-1,3,7","kubelet_problem":null,"entries":{{}},"topology":{topology},"slice_exclusive":"2,4-5","instances":{{
        "{a}":{{"container":"vm","state":"isolated","exclusive":"4-5","float":"7","float_reason":"near","vcpus":[],
            "allocation":{{"qos":"LSE","cpus":2,"bind":"FullPCPUs","exclusive":"NUMANodeLevel","alignment":"SingleNUMANode",
                "exclusivity":"downgraded",{asked},"explanation":["2 CPUs wanted, FullPCPUs","NUMA node 1 is shared: PCPULevel"]}}}},
        "{b}":{{"container":"vm","state":"pinned","exclusive":"2","float":"0-1,3","float_reason":"near","vcpus":[],
            "allocation":{{"qos":"LSR","cpus":1,"bind":"SpreadByPCPUs","exclusive":"None","alignment":"None",
                "exclusivity":"not-asked",{asked},"explanation":["1 CPUs wanted"]}}}},
        "{c}":{{"container":"vm","state":"shared","exclusive":"","float":"7","float_reason":"node-pool","vcpus":[],
            "allocation":{{"qos":"LS","cpus":0,"bind":"ConstrainedBurst","required":false,"exclusive":"None",
                "strategy":"LeastAllocated","alignment":"None","limit_milli":2500,"numa_node":1,"exclusivity":"not-asked",
                "explanation":["limit 2.5: NUMA node 1\u001b[2J"]}}}}
        }}}},"kubelet_config":{{"reservedSystemCPUs":"0-1"}}}}"#,
        topology = topology(),
        a = PODS[0],
        b = PODS[1],
        c = PODS[2],
    );
    described(&text)
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
