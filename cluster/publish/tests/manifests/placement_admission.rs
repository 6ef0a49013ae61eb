//! What stelia-placement may make of its rights to the status and the binding of every pod. The requests were written as those of the publisher.

use rstest::rstest;
use serde_json::{Value, json};

use crate::admission::{changed, denied, messages, recorded, removed, set};
use crate::policy::denials;
use crate::{cluster, documents, kind};

const REQUESTS: [&str; 2] = ["placement-status-patch", "binding-create"];
const CONDITIONS: &str = "of the conditions of a pod stelia-placement writes isolation.stelia.io/ only";
const STATUS: &str = "of the status of a pod stelia-placement writes conditions only";
const METADATA: &str = "stelia-placement changes no metadata of pods";

#[test]
fn what_it_asks_is_admitted_and_others_are_not_asked() {
    for request in REQUESTS {
        assert_eq!(denials(&recorded(request)), [], "{request}");
        let controller = json!("system:serviceaccount:kube-system:replicaset-controller");
        let mut others = changed(request, "/userInfo/username", controller);
        set(&mut others, "/object/metadata/labels", json!({"any": "label"}));
        assert_eq!(denials(&others), [], "{request}");
    }
    // A pod that gets no CPUs is bound without the annotation, and not every cluster adds labels.
    for gone in ["/object/metadata/annotations", "/object/metadata/labels"] {
        assert_eq!(denials(&removed("binding-create", gone)), [], "{gone}");
    }
}

/// kustomize moves the account to another namespace, and does not change the expressions.
#[rstest]
#[case("stelia-placement", "placement-status-patch", "/object/metadata/labels")]
#[case("stelia-placement", "binding-create", "/object/metadata/labels")]
#[case("stelia-publish", "pod-status-patch", "/object/metadata/labels")]
#[case("stelia-publish", "node-patch", "/object/metadata/labels")]
#[case("stelia-publish", "topology-update", "/object/metadata/ownerReferences")]
#[case("stelia-publish", "event-create", "/object/reportingInstance")]
fn the_policies_hold_in_every_namespace(#[case] account: &str, #[case] request: &str, #[case] what: &str) {
    let mut review = changed(request, what, json!({"any": "label"}));
    let user = |namespace| json!(format!("system:serviceaccount:{namespace}:{account}"));
    set(&mut review, "/userInfo/username", user("stelia-system"));
    let said = denials(&review);
    assert!(!said.is_empty());
    set(&mut review, "/userInfo/username", user("other"));
    assert_eq!(denials(&review), said);
}

#[test]
fn the_account_of_the_policies_is_the_deployments() {
    let base = documents(&cluster("placement/base").join("admission.yaml"));
    let deployment = documents(&cluster("placement/base").join("deployment.yaml"));
    let account = deployment[0]["spec"]["template"]["spec"]["serviceAccountName"].as_str();
    let account = account.expect("an account");
    let policies = base.iter().filter(|object| kind(object) == "ValidatingAdmissionPolicy");
    let conditions = policies.map(|policy| &policy["spec"]["matchConditions"][0]["expression"]);
    let conditions: Vec<&str> = conditions.filter_map(Value::as_str).collect();
    assert_eq!(conditions.len(), 2);
    for condition in conditions {
        assert!(condition.ends_with(&format!("endsWith(':{account}')")), "{condition}");
    }
}

#[rstest]
#[case("/object/status/conditions/0/status", json!("True"), CONDITIONS)]
#[case("/object/status/conditions/-", json!({"type": "Ready", "status": "True"}), CONDITIONS)]
#[case("/object/status/conditions/-", json!({"type": "stelia.io/isolated", "status": "True"}), CONDITIONS)]
#[case("/object/status/conditions", json!([]), CONDITIONS)]
#[case("/object/status/phase", json!("Failed"), STATUS)]
#[case("/object/status/nominatedNodeName", json!("worker-2"), STATUS)]
#[case("/object/metadata/labels/app", json!("other"), METADATA)]
#[case("/object/metadata/annotations", json!({"a": "b"}), METADATA)]
#[case("/object/metadata/finalizers", json!(["example.com/stay"]), METADATA)]
fn of_a_pods_status_it_writes_its_conditions_only(#[case] pointer: &str, #[case] value: Value, #[case] message: &str) {
    assert_eq!(denied(&changed("placement-status-patch", pointer, value)), message);
}

#[test]
fn the_pod_itself_is_not_changed() {
    for operation in ["CREATE", "UPDATE", "DELETE"] {
        let mut itself = changed("placement-status-patch", "/operation", json!(operation));
        let request = itself["request"].as_object_mut().expect("a request");
        request.remove("subResource");
        let said = messages(&itself);
        assert!(
            said.contains(&"stelia-placement writes the status of pods only".to_owned()),
            "{said:?}"
        );
    }
}

#[rstest]
#[case("/object/metadata/annotations/example.com~1a", json!("b"), "a binding of stelia-placement has no annotation but the CPUs")]
#[case("/object/metadata/labels/app", json!("other"), "a binding of stelia-placement has no labels")]
#[case("/object/target/kind", json!("Service"), "a binding of stelia-placement is to a node")]
fn a_binding_has_the_node_and_the_cpus_only(#[case] pointer: &str, #[case] value: Value, #[case] message: &str) {
    assert_eq!(denied(&changed("binding-create", pointer, value)), message);
}
