//! A node for tests of output.

use std::sync::Arc;

use stelia_model::Instance;

use super::{Description, parse};

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

/// 2 sockets with a NUMA node of 2 cores of 2 siblings each: 0-1 reserved, 4-5, 2 (its sibling is shared), 6.
pub(crate) fn node() -> Description {
    let instance = |state: &str, degraded: &str, cpus: &str, vcpus: &str| {
        format!(
            r#"{{"container":"vm","state":"{state}","reasons":[{degraded}],"exclusive":"{cpus}","float":"0-1,3,7","float_reason":"pool","vcpus":[{vcpus}]}}"#
        )
    };
    let good = instance(
        "isolated",
        "",
        "4-5",
        r#"{"index":0,"task":{"id":70,"start":1},"cpu":4},{"index":1,"task":{"id":71,"start":1},"cpu":5}"#,
    );
    let bad = instance(
        "floating",
        r#"{"kind":"of-tomorrow","text":"kubelet gave CPU 2 away"}"#,
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
    parse(&text).unwrap()
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
        "{b}":{{"container":"vm","state":"contained","exclusive":"2","float":"0-1,3","float_reason":"near","vcpus":[],
            "allocation":{{"qos":"LSR","cpus":1,"bind":"SpreadByPCPUs","exclusive":"None","alignment":"None",
                "exclusivity":"not-asked",{asked},"explanation":["1 CPUs wanted"]}}}},
        "{c}":{{"container":"vm","state":"floating","exclusive":"","float":"7","float_reason":"node-pool","vcpus":[],
            "allocation":{{"qos":"LS","cpus":0,"bind":"ConstrainedBurst","required":false,"exclusive":"None",
                "strategy":"LeastAllocated","alignment":"None","limit_milli":2500,"numa_node":1,"exclusivity":"not-asked",
                "explanation":["limit 2.5: NUMA node 1\u001b[2J"]}}}}
        }}}},"kubelet_config":{{"reservedSystemCPUs":"0-1"}}}}"#,
        topology = topology(),
        a = PODS[0],
        b = PODS[1],
        c = PODS[2],
    );
    parse(&text).unwrap()
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
