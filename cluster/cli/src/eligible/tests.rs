use serde_json::{Value, json};
use stelia_koordinator::allocator::AllocationRequest;

use super::*;

fn node(spec: Value) -> NodeObject {
    let labels = spec["labels"].as_object().into_iter().flatten();
    let amounts = spec["allocatable"].as_object().into_iter().flatten();
    NodeObject {
        labels: labels
            .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
            .collect(),
        taints: serde_json::from_value(spec["taints"].clone()).unwrap_or_default(),
        cordoned: spec["cordoned"] == true,
        not_ready: None,
        allocatable: amounts
            .map(|(key, value)| (key.clone(), value.as_str().unwrap().parse().unwrap()))
            .collect(),
    }
}

fn pod_request(spec: Value) -> PodRequest {
    let mut spec = spec;
    if spec["containers"].is_null() {
        spec["containers"] = json!([{ "name": "c", "resources": { "limits": { "cpu": "2", "memory": "1Gi" } } }]);
    }
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "vm" }, "spec": spec });
    PodRequest::of_manifest(&pod.to_string(), None, &AllocationRequest::default()).unwrap()
}

fn told(pod_request: &PodRequest, node: &NodeObject) -> Vec<String> {
    rules(pod_request, "w", node)
        .into_iter()
        .map(|refusal| refusal.what)
        .collect()
}

#[test]
fn taints_are_tolerated_as_kubernetes_does_it() {
    let tainted = |effect: &str| node(json!({ "taints": [{ "key": "dedicated", "value": "db", "effect": effect }] }));
    let cordoned = || node(json!({ "cordoned": true }));
    let (schedule, execute) = (
        "taint dedicated=db:NoSchedule is not tolerated",
        "taint dedicated=db:NoExecute is not tolerated",
    );
    let unschedulable = "taint node.kubernetes.io/unschedulable:NoSchedule is not tolerated";
    let exists = json!([{ "operator": "Exists" }]);
    for (tolerations, node, expected) in [
        (json!([]), tainted("NoSchedule"), schedule),
        (json!([]), tainted("NoExecute"), execute),
        (json!([]), tainted("PreferNoSchedule"), ""),
        (json!([]), cordoned(), unschedulable),
        (exists.clone(), cordoned(), ""),
        (exists, tainted("NoSchedule"), ""),
        (
            json!([{ "key": "dedicated", "operator": "Exists" }]),
            tainted("NoSchedule"),
            "",
        ),
        (
            json!([{ "key": "dedicated", "value": "db" }]),
            tainted("NoSchedule"),
            "",
        ),
        (
            json!([{ "key": "dedicated", "value": "web" }]),
            tainted("NoSchedule"),
            schedule,
        ),
        (
            json!([{ "key": "dedicated", "value": "db", "effect": "NoExecute" }]),
            tainted("NoSchedule"),
            schedule,
        ),
        (
            json!([{ "key": "dedicated", "value": "db", "effect": "NoSchedule" }]),
            tainted("NoSchedule"),
            "",
        ),
        (
            json!([{ "operator": "Equal", "value": "db" }]),
            tainted("NoSchedule"),
            schedule,
        ),
        (
            json!([{ "key": "dedicated", "operator": "Gt", "value": "1" }]),
            tainted("NoSchedule"),
            schedule,
        ),
    ] {
        let pod_request = pod_request(json!({ "tolerations": tolerations }));
        assert_eq!(told(&pod_request, &node).concat(), expected, "{tolerations}");
    }
}

#[test]
fn labels_names_and_required_affinity_are_asked_for() {
    let there = node(json!({ "labels": { "zone": "a", "size": "12" } }));
    for (spec, expected) in [
        (json!({ "nodeSelector": { "zone": "a" } }), ""),
        (
            json!({ "nodeSelector": { "zone": "b" } }),
            "it has not the labels of spec.nodeSelector",
        ),
        (json!({ "nodeName": "v" }), "spec.nodeName names another node"),
        (json!({ "nodeName": "w" }), ""),
    ] {
        assert_eq!(told(&pod_request(spec), &there).concat(), expected);
    }
    let one = |operator: &str, key: &str, values: Value| json!({ "key": key, "operator": operator, "values": values });
    let term = |operator: &str, key: &str, values: Value| json!({ "matchExpressions": [one(operator, key, values)] });
    let both = json!({ "matchExpressions": [one("Exists", "gpu", json!([])), one("Exists", "zone", json!([]))] });
    for (terms, matches) in [
        (json!([term("In", "zone", json!(["a", "b"]))]), true),
        (json!([term("NotIn", "zone", json!(["a"]))]), false),
        (json!([term("NotIn", "gpu", json!(["a"]))]), true),
        (json!([term("Exists", "gpu", json!(null))]), false),
        (json!([term("DoesNotExist", "gpu", json!([]))]), true),
        (json!([term("Gt", "size", json!(["11"]))]), true),
        (json!([term("Lt", "size", json!(["11"]))]), false),
        (json!([term("Gt", "zone", json!(["1"]))]), false),
        (json!([term("Near", "zone", json!(["1"]))]), false),
        (
            json!([{ "matchFields": [one("In", "metadata.name", json!(["w"]))] }]),
            true,
        ),
        // Terms are alternatives, requirements of one are not, and a term without any matches nothing.
        (
            json!([term("Exists", "gpu", json!([])), term("Exists", "zone", json!([]))]),
            true,
        ),
        (json!([both]), false),
        (json!([{}]), false),
        (json!([]), false),
    ] {
        let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } });
        let pod_request = pod_request(json!({ "affinity": { "nodeAffinity": required } }));
        assert_eq!(told(&pod_request, &there).is_empty(), matches, "{terms}");
    }
}

#[test]
fn what_pods_request_is_taken_off_what_the_node_allows() {
    let node = node(json!({ "allocatable": { "cpu": "7900m", "memory": "8Gi", "pods": "3", "example.com/nic": "2" } }));
    let limits = json!({ "cpu": "2", "memory": "1Gi", "example.com/nic": "1" });
    let pod_request = pod_request(json!({ "containers": [{ "name": "c", "resources": { "limits": limits } }] }));
    let mut used = Used::default();
    assert_eq!(
        fit(&pod_request.requests, &node, &used),
        (2, "example.com/nic".to_owned())
    );
    assert_eq!(requests(&pod_request.requests, &node, &used), []);
    used.add(&pod_request.requests);
    used.add(&pod_request.requests);
    let told: Vec<String> = requests(&pod_request.requests, &node, &used)
        .iter()
        .map(|one| format!("{}: {}", one.what, one.detail))
        .collect();
    assert_eq!(
        told,
        ["too little example.com/nic is left of what pods may request: 1 requested, 0 left"]
    );
    used.add(&Amounts {
        milli_cpus: Some(u64::MAX),
        memory: Some(u64::MAX),
        ..Amounts::default()
    });
    let told: Vec<String> = requests(&pod_request.requests, &node, &used)
        .into_iter()
        .map(|one| one.detail)
        .collect();
    assert_eq!(
        told,
        [
            "2 requested, 0 left",
            "1Gi requested, 0 left",
            "1 requested, 0 left",
            ""
        ]
    );
    assert_eq!(fit(&pod_request.requests, &node, &used).0, 0);
    // A node that does not tell what it allows has room for nothing that is requested, and for any number of pods.
    assert_eq!(
        fit(&Amounts::default(), &NodeObject::default(), &Used::default()).0,
        u64::MAX
    );
}

/// The node's device plugin offers them, and kubelet publishes how many are healthy.
#[test]
fn vms_are_counted_as_the_node_has_them() {
    let limits = json!({"cpu": "2", "memory": "1Gi", "stelia.io/vm": "1", "example.com/gpu": "0"});
    let pod_request = pod_request(json!({ "containers": [{ "name": "c", "resources": { "limits": limits } }] }));
    let with = |vms: Value| {
        let mut allocatable = json!({"cpu": "8", "memory": "8Gi", "pods": "100"});
        if let Some(vms) = vms.as_str() {
            allocatable["stelia.io/vm"] = vms.into();
        }
        let node = node(json!({ "allocatable": allocatable }));
        let short = requests(&pod_request.requests, &node, &Used::default());
        let short: Vec<String> = short.into_iter().map(|refusal| refusal.what).collect();
        (short, fit(&pod_request.requests, &node, &Used::default()).0)
    };
    assert_eq!(with("9".into()), (vec![], 4));
    assert_eq!(with("3".into()), (vec![], 3));
    let none = "too little stelia.io/vm is left of what pods may request".to_owned();
    assert_eq!(with("0".into()), (vec![none.clone()], 0));
    // Without the device plugin.
    assert_eq!(with(Value::Null), (vec![none], 0));
}
