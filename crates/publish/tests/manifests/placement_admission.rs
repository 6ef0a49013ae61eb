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
        let mut others = changed(
            request,
            "/userInfo/username",
            json!("system:serviceaccount:kube-system:replicaset-controller"),
        );
        set(&mut others, "/object/metadata/labels", json!({"any": "label"}));
        assert_eq!(denials(&others), [], "{request}");
    }
    // A pod that gets no CPUs is bound without the annotation, and not every cluster adds labels.
    for gone in ["/object/metadata/annotations", "/object/metadata/labels"] {
        assert_eq!(denials(&removed("binding-create", gone)), [], "{gone}");
    }
}

#[test]
fn the_account_of_the_policies_is_the_deployments() {
    let base = documents(&cluster("placement/base").join("admission.yaml"));
    let account = "system:serviceaccount:stelia-system:stelia-placement";
    let policies = base.iter().filter(|object| kind(object) == "ValidatingAdmissionPolicy");
    let conditions: Vec<&Value> = policies
        .map(|policy| &policy["spec"]["matchConditions"][0]["expression"])
        .collect();
    assert_eq!(
        conditions,
        [&json!(format!("request.userInfo.username == '{account}'")); 2]
    );
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
