//! The node topology report, held against the kernel.

use std::path::Path;

use serde_json::Value;
use stelia_cpus::CpuSet;

use crate::support::*;

const NODES: &str = "/sys/devices/system/node";

/// One of the annotations, which are JSON in a text.
fn annotation(object: &Value, name: &str) -> Value {
    let text = object["metadata"]["annotations"][name].as_str();
    json(text.unwrap_or_else(|| panic!("{name}: {object}")))
}

/// A pod's own CPUs, as the report has them.
fn allocated(object: &Value, pod: &Pod) -> Option<CpuSet> {
    let all = annotation(object, "node.koordinator.sh/pod-cpu-allocs");
    let of_pod = |one: &&Value| one["uid"] == pod.uid && one["managedByKubelet"] == true;
    let found = all.as_array().expect("a list").iter().find(of_pod)?;
    found["cpuset"].as_str().map(cpus)
}

fn shared(object: &Value) -> CpuSet {
    let pools = annotation(object, "node.koordinator.sh/cpu-shared-pools");
    let lists = pools.as_array().expect("a list").iter();
    let lists = lists.filter_map(|pool| pool["cpuset"].as_str());
    lists.fold(CpuSet::new(), |all, list| all.union(&cpus(list)))
}

/// A resource of a zone: capacity, allocatable, available.
fn resource(zone: &Value, name: &str) -> [String; 3] {
    let all = zone["resources"].as_array().expect("a list");
    let found = all.iter().find(|resource| resource["name"] == name);
    let found = found.unwrap_or_else(|| panic!("{name}: {zone}"));
    ["capacity", "allocatable", "available"].map(|field| found[field].as_str().expect("a quantity").to_owned())
}

#[test]
fn the_report_says_what_the_kernel_and_kubelet_say() {
    on_node(|| {
        let pod = Pod::vm("reported", 2);
        assert_isolated(&pod, 2);
        let own = pod.exclusive();
        let printed = json(&run("steliactl export topology -o json"));
        assert_eq!(printed["apiVersion"], "topology.node.k8s.io/v1alpha1");
        assert_eq!(
            printed["metadata"]["name"],
            read("/proc/sys/kernel/hostname").to_lowercase()
        );
        assert_eq!(allocated(&printed, &pod), Some(own.clone()));
        assert_eq!(shared(&printed), pool());
        let policy = annotation(&printed, "kubelet.koordinator.sh/cpu-manager-policy");
        let reserved = cpus(policy["reservedCPUs"].as_str().unwrap_or_default());
        let zones = printed["zones"].as_array().expect("zones");
        assert_eq!(zones.len(), 2, "{printed}");
        for (node, zone) in zones.iter().enumerate() {
            assert_eq!(zone["name"], format!("node-{node}"));
            let online = cpus(&read(format!("{NODES}/node{node}/cpulist")));
            let [capacity, _, available] = resource(zone, "cpu");
            assert_eq!(capacity, online.len().to_string());
            let free = pool().intersection(&online).difference(&reserved);
            assert_eq!(available, free.len().to_string());
            let costs = zone["costs"].as_array().expect("costs").iter();
            let costs: Vec<String> = costs.map(|cost| cost["value"].to_string()).collect();
            assert_eq!(costs.join(" "), read(format!("{NODES}/node{node}/distance")));
            let meminfo = read(format!("{NODES}/node{node}/meminfo"));
            let total = meminfo.lines().find(|line| line.contains("MemTotal:"));
            let kib = total.and_then(|line| line.split_whitespace().nth(3)).expect("MemTotal");
            let bytes: u64 = kib.parse::<u64>().expect("KiB") * 1024;
            assert_eq!(resource(zone, "memory")[0], in_units(bytes));
        }
        let detail = annotation(&printed, "node.koordinator.sh/cpu-topology");
        for cpu in detail["detail"].as_array().expect("CPUs") {
            let place = format!("/sys/devices/system/cpu/cpu{}", cpu["id"]);
            let [node, core] = ["node", "core"].map(|field| cpu[field].as_u64().expect("a number"));
            assert!(Path::new(&format!("{place}/node{node}")).exists(), "{cpu}");
            let siblings = cpus(&read(format!("{place}/topology/thread_siblings_list")));
            assert_eq!(siblings.iter().map(u64::from).min(), Some(core * 2), "{cpu}");
        }
        let second = json(&run("steliactl export topology -o json --api-version v1alpha2"));
        assert_eq!(second["apiVersion"], "topology.node.k8s.io/v1alpha2");
        // Free memory is another number each time.
        let zones = |object: &Value| -> Vec<_> {
            let zones = object["zones"].as_array().expect("zones").iter();
            zones
                .map(|zone| (zone["name"].clone(), zone["costs"].clone(), resource(zone, "cpu")))
                .collect()
        };
        assert_eq!(zones(&second), zones(&printed));
    });
}

/// As Kubernetes writes quantities.
fn in_units(bytes: u64) -> String {
    let units = ["", "Ki", "Mi", "Gi"];
    let (mut number, mut unit) = (bytes, 0);
    while unit + 1 < units.len() && number % 1024 == 0 {
        (number, unit) = (number / 1024, unit + 1);
    }
    format!("{number}{}", units[unit])
}
