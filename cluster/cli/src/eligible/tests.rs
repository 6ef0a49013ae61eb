use rstest::rstest;
use serde_json::{Value, json};
use stelia_koordinator::allocator::AllocationRequest;

use super::*;

fn node(spec: Value) -> NodeObject {
    let amounts = spec["allocatable"].as_object().into_iter().flatten();
    let amounts = amounts.map(|(key, value)| (key.clone(), value.as_str().unwrap().parse().unwrap()));
    NodeObject {
        labels: serde_json::from_value(spec["labels"].clone()).unwrap_or_default(),
        taints: serde_json::from_value(spec["taints"].clone()).unwrap_or_default(),
        cordoned: spec["cordoned"] == true,
        not_ready: None,
        allocatable: amounts.collect(),
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
    let rules = rules(pod_request, "w", node).into_iter();
    rules.map(|refusal| refusal.what).collect()
}

const UNSCHEDULABLE: &str = "taint node.kubernetes.io/unschedulable:NoSchedule is not tolerated";

/// The effect of the taint `dedicated=db`; none: the node is cordoned.
#[rstest]
#[case(json!([]), "NoSchedule", "taint dedicated=db:NoSchedule is not tolerated")]
#[case(json!([]), "NoExecute", "taint dedicated=db:NoExecute is not tolerated")]
#[case(json!([]), "PreferNoSchedule", "")]
#[case(json!([]), "", UNSCHEDULABLE)]
#[case(json!([{"operator": "Exists"}]), "", "")]
#[case(json!([{"operator": "Exists"}]), "NoSchedule", "")]
#[case(json!([{"key": "dedicated", "operator": "Exists"}]), "NoSchedule", "")]
#[case(json!([{"key": "dedicated", "value": "db"}]), "NoSchedule", "")]
#[case(json!([{"key": "dedicated", "value": "web"}]), "NoSchedule", "dedicated")]
#[case(json!([{"key": "dedicated", "value": "db", "effect": "NoExecute"}]), "NoSchedule", "dedicated")]
#[case(json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]), "NoSchedule", "")]
#[case(json!([{"operator": "Equal", "value": "db"}]), "NoSchedule", "dedicated")]
#[case(json!([{"key": "dedicated", "operator": "Gt", "value": "1"}]), "NoSchedule", "dedicated")]
fn taints_are_tolerated_as_kubernetes_does_it(#[case] tolerations: Value, #[case] effect: &str, #[case] told_of: &str) {
    let node = node(match effect {
        "" => json!({"cordoned": true}),
        effect => json!({"taints": [{"key": "dedicated", "value": "db", "effect": effect}]}),
    });
    let told = told(&pod_request(json!({"tolerations": tolerations})), &node).concat();
    assert!(told.contains(told_of) && told.is_empty() == told_of.is_empty());
}

#[rstest]
#[case(json!({"nodeSelector": {"zone": "a"}}), "")]
#[case(json!({"nodeSelector": {"zone": "b"}}), "it lacks the labels of spec.nodeSelector")]
#[case(json!({"nodeName": "v"}), "spec.nodeName names another node")]
#[case(json!({"nodeName": "w"}), "")]
fn labels_and_names_are_asked_for(#[case] spec: Value, #[case] expected: &str) {
    let there = node(json!({"labels": {"zone": "a"}}));
    assert_eq!(told(&pod_request(spec), &there).concat(), expected);
}

fn one(operator: &str, key: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": operator, "values": values})
}

fn term(operator: &str, key: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [one(operator, key, values)]})
}

#[rstest]
#[case(json!([term("In", "zone", &["a", "b"])]), true)]
#[case(json!([term("NotIn", "zone", &["a"])]), false)]
#[case(json!([term("NotIn", "gpu", &["a"])]), true)]
#[case(json!([{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]), false)]
#[case(json!([term("DoesNotExist", "gpu", &[])]), true)]
#[case(json!([term("Gt", "size", &["11"])]), true)]
#[case(json!([term("Lt", "size", &["11"])]), false)]
#[case(json!([term("Gt", "zone", &["1"])]), false)]
#[case(json!([term("Near", "zone", &["1"])]), false)]
#[case(json!([{"matchFields": [one("In", "metadata.name", &["w"])]}]), true)]
// Terms are alternatives, requirements of one are not, and a term without any matches nothing.
#[case(json!([term("Exists", "gpu", &[]), term("Exists", "zone", &[])]), true)]
#[case(json!([{"matchExpressions": [one("Exists", "gpu", &[]), one("Exists", "zone", &[])]}]), false)]
#[case(json!([{}]), false)]
#[case(json!([]), false)]
fn required_affinity_is_asked_for(#[case] terms: Value, #[case] matches: bool) {
    let there = node(json!({"labels": {"zone": "a", "size": "12"}}));
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    let pod_request = pod_request(json!({"affinity": {"nodeAffinity": required}}));
    assert_eq!(told(&pod_request, &there).is_empty(), matches);
}

#[test]
fn what_pods_request_is_taken_off_what_the_node_allows() {
    let node = node(json!({ "allocatable": { "cpu": "7900m", "memory": "8Gi", "pods": "3", "example.com/nic": "2" } }));
    let limits = json!({ "cpu": "2", "memory": "1Gi", "example.com/nic": "1" });
    let pod_request = pod_request(json!({ "containers": [{ "name": "c", "resources": { "limits": limits } }] }));
    let mut used = Used::default();
    let asked = &pod_request.requests;
    assert_eq!(fit(asked, &node, &used), (2, "example.com/nic".to_owned()));
    assert_eq!(requests(asked, &node, &used), []);
    used.add(asked);
    used.add(asked);
    let told = requests(asked, &node, &used);
    assert_eq!((told.len(), told[0].detail.as_str()), (1, "1 requested, 0 left"));
    assert!(told[0].what.contains("example.com/nic"));
    used.add(&Amounts {
        milli_cpus: Some(u64::MAX),
        memory: Some(u64::MAX),
        ..Amounts::default()
    });
    let told = requests(asked, &node, &used);
    let told: Vec<&str> = told.iter().map(|one| one.detail.as_str()).collect();
    let expected = "2 requested, 0 left; 1Gi requested, 0 left; 1 requested, 0 left; ";
    assert_eq!(told.join("; "), expected);
    assert_eq!(fit(asked, &node, &used).0, 0);
    // A node that does not tell what it allows has room for nothing that is requested, and for any number of pods.
    let any = fit(&Amounts::default(), &NodeObject::default(), &Used::default());
    assert_eq!(any.0, u64::MAX);
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
    let none = "too little allocatable stelia.io/vm".to_owned();
    assert_eq!(with("0".into()), (vec![none.clone()], 0));
    // Without the device plugin.
    assert_eq!(with(Value::Null), (vec![none], 0));
}
