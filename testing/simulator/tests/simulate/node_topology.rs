//! node-topology: the description of the node for schedulers.

use serde_json::Value;

use super::*;

const OTHER_POD: &str = "aaaaaaaa-64a5-4f8d-8574-41363cbaf8e5";
const NAMED: [&str; 4] = ["export", "topology", "--node-name", "worker-1"];

/// A resource of a NUMA node: capacity, allocatable, available.
fn resource(object: &Value, zone: usize, name: &str) -> [String; 3] {
    let resources = object["zones"][zone]["resources"].as_array().expect("resources");
    let found = resources.iter().find(|resource| resource["name"] == name).expect(name);
    ["capacity", "allocatable", "available"].map(|field| found[field].as_str().expect(field).to_owned())
}

fn annotation(object: &Value, name: &str) -> Value {
    let text = object["metadata"]["annotations"][name].as_str().expect(name);
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn the_node_is_told_as_kubectl_takes_it() {
    let simulation = Simulation::start(&scenario(""));
    let json = simulation.ctl(&NAMED);
    let object: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(object["apiVersion"], "topology.node.k8s.io/v1alpha1");
    assert_eq!(object["metadata"]["name"], "worker-1");
    assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/managed-by"], "steliad");
    // Of the scenario's eight CPUs 2-3 and 4-5 are pods' own, one pair on each node.
    for zone in [0, 1] {
        assert_eq!(resource(&object, zone, "cpu"), ["4", "4", "2"]);
        assert_eq!(resource(&object, zone, "memory"), ["16Gi", "14Gi", "14Gi"]);
        assert_eq!(resource(&object, zone, "hugepages-2Mi"), ["1Gi", "1Gi", "1Gi"]);
        assert_eq!(resource(&object, zone, "hugepages-1Gi")[0], "1Gi");
    }
    assert_eq!(
        object["zones"][1]["costs"][0],
        serde_json::json!({"name": "node-0", "value": 20})
    );
    assert_eq!(
        annotation(&object, "kubelet.koordinator.sh/cpu-manager-policy")["policy"],
        "static"
    );
    let allocated = annotation(&object, "node.koordinator.sh/pod-cpu-allocs");
    let vm = serde_json::json!({"uid": VM, "cpuset": "2-3", "managedByKubelet": true});
    assert!(allocated.as_array().expect("a list").contains(&vm), "{allocated}");
    let pools = annotation(&object, "node.koordinator.sh/cpu-shared-pools");
    assert_eq!(
        (&pools[0]["cpuset"], &pools[1]["cpuset"]),
        (&"0-1".into(), &"6-7".into())
    );
    let detail = annotation(&object, "node.koordinator.sh/cpu-topology");
    assert_eq!(detail["detail"].as_array().map(Vec::len), Some(8));

    let second = simulation.ctl(&[&NAMED[..], &["--json=short", "--api-version", "v1alpha2"]].concat());
    let second: Value = serde_json::from_str(&second).expect("JSON");
    assert_eq!(second["apiVersion"], "topology.node.k8s.io/v1alpha2");
    assert_eq!(
        (&second["topologyPolicies"], &second["zones"]),
        (&Value::Null, &object["zones"])
    );
}

/// kubelet's state, and the same after it assigned a CPU to a pod that is not an instance.
fn states(directory: &Path) -> [String; 2] {
    let kept = fs::read_to_string(directory.join("kubelet/cpu_manager_state")).expect("kubelet's state");
    let mut state: Value = serde_json::from_str(&kept).expect("JSON");
    state["defaultCpuSet"] = "0,6-7".into();
    state["entries"][OTHER_POD] = serde_json::json!({"db": "1"});
    // kubelet itself takes 0 for a file without one.
    state["checksum"] = 0.into();
    [kept, state.to_string()]
}

/// Write kubelet's state as kubelet does.
fn replace(directory: &Path, text: &str) {
    let new = directory.join("kubelet/.new");
    fs::write(&new, text).expect("write");
    fs::rename(new, directory.join("kubelet/cpu_manager_state")).expect("rename");
}

#[test]
fn the_object_follows_kubelets_state() {
    let simulation = Simulation::start(&scenario(""));
    let object = || -> Value {
        let text = simulation.ctl(&[&NAMED[..], &["-o", "json"]].concat());
        serde_json::from_str(&text).expect("JSON")
    };
    let changed = |available: &str| {
        let found = (0..100).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            Some(object()).filter(|object| resource(object, 0, "cpu")[2] == available)
        });
        found.expect("a change")
    };
    assert_eq!(resource(&object(), 0, "cpu")[2], "2");
    let [kept, given] = states(&simulation.sockets);
    replace(&simulation.sockets, &given);
    let allocated = annotation(&changed("1"), "node.koordinator.sh/pod-cpu-allocs");
    assert!(allocated.to_string().contains(OTHER_POD), "{allocated}");
    replace(&simulation.sockets, &kept);
    changed("2");
}
