//! The Node's label and taint.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stelia_publish::PublishOptions;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn the_label_alone_of_this_node_says_whether_a_vm_can_be_admitted() {
    let (publisher, log) = run(server(healthy), with_label(), told(6));
    pass(10.0).await;
    let label = &log.of("PATCH", NODE)[0];
    assert_eq!(
        label.body,
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "worker-1", "uid": UID, "labels": {"stelia.io/ready": "true"}}})
    );
    assert_eq!(label.query, "&fieldManager=steliad");
    // Which resources a node has is kubelet's to say.
    assert_eq!(log.of("PATCH", "/api/v1/nodes/worker-1/status").len(), 0);
    log.clear();
    pass(600.0).await;
    assert_eq!(log.all().len(), 0, "{:?}", log.all());
    publisher.tell(unready());
    pass(10.0).await;
    let all = log.all();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].body["metadata"]["labels"], json!({"stelia.io/ready": "false"}));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_applied_to_a_node_that_is_not_there_and_its_uid_is_found_later() {
    let mut registered = false;
    let (client, log) = answering("GET", NODE, move |seen| {
        if std::mem::replace(&mut registered, true) {
            healthy(seen)
        } else {
            status(404, "NotFound", "not found", json!([]))
        }
    });
    let publisher = Running::new(client, with_label(), told(6));
    pass(0.05).await;
    assert!(publisher.problem("node").unwrap().contains("404"));
    assert_eq!(log.of("PATCH", NODE).len(), 0);
    pass(20.0).await;
    assert_eq!(publisher.problem("node"), None);
    assert_eq!(log.of("PATCH", NODE).len(), 1);
    let object = log.objects().pop().unwrap();
    assert_eq!(object.body["metadata"]["ownerReferences"][0]["uid"], UID);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_registered_anew_gets_everything_anew() {
    let uid = Arc::new(Mutex::new(UID.to_owned()));
    let now = uid.clone();
    let (client, log) = server(move |seen| {
        let now = now.lock().unwrap().clone();
        let asked = seen.body["metadata"]["uid"].as_str();
        if seen.is("GET", NODE) {
            Reply::Json(200, json!({"metadata": {"uid": now}}))
        } else if seen.path.starts_with(NODE) && asked != Some(&now) {
            let text = "Precondition failed: UID in precondition: 1, UID in object meta: 2";
            status(409, "Conflict", text, json!([]))
        } else {
            ok()
        }
    });
    let publisher = Running::new(client, with_label(), told(6));
    pass(10.0).await;
    *uid.lock().unwrap() = "another".into();
    log.clear();
    publisher.tell(unready());
    pass(30.0).await;
    assert_eq!(log.of("GET", NODE).len(), 1, "{:?}", log.all());
    assert_eq!(log.of("PATCH", NODE).last().unwrap().body["metadata"]["uid"], "another");
    let owner = &log.objects()[0].body["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], "another");
    assert_eq!(publisher.problems(), 0);
}

/// A Node that keeps its taints, and refuses what was written of an older version.
fn tainted(taints: Value) -> (kube::Client, Log, Arc<Mutex<Value>>) {
    let node = json!({
        "metadata": {"uid": UID, "name": "worker-1", "resourceVersion": "5", "annotations": {"a": "b"}},
        "spec": {"taints": taints},
    });
    let node = Arc::new(Mutex::new(node));
    let kept = node.clone();
    let (client, log) = server(move |seen| {
        let mut node = kept.lock().unwrap();
        if seen.is("GET", NODE) {
            return Reply::Json(200, node.clone());
        }
        if !seen.is("PATCH", NODE) || seen.content_type != "application/merge-patch+json" {
            return ok();
        }
        let now = &node["metadata"]["resourceVersion"];
        if *now != seen.body["metadata"]["resourceVersion"] {
            return status(409, "Conflict", "the object has been modified", json!([]));
        }
        let version = now.as_str().unwrap().parse::<u32>().unwrap() + 1;
        node["spec"]["taints"] = seen.body["spec"]["taints"].clone();
        node["metadata"]["resourceVersion"] = version.to_string().into();
        for (key, value) in seen.body["metadata"]["annotations"].as_object().unwrap() {
            node["metadata"]["annotations"][key] = value.clone();
        }
        ok()
    });
    (client, log, node)
}

const KEY: &str = "stelia.io/not-ready";

fn two_taints() -> Value {
    json!([{"key": "dedicated", "value": "vms", "effect": "NoSchedule"}, {"key": KEY, "effect": "NoSchedule"}])
}

fn untainting() -> PublishOptions {
    PublishOptions {
        remove_taint: Some(KEY.into()),
        ..options()
    }
}

#[tokio::test(start_paused = true)]
async fn the_taint_goes_when_vms_can_be_admitted_and_is_remembered() {
    let (client, log, node) = tainted(two_taints());
    let publisher = Running::new(client, untainting(), unready());
    pass(60.0).await;
    assert_eq!(log.of("PATCH", NODE).len(), 0);
    // Somebody changes the Node between our look and our patch.
    publisher.tell(told(6));
    pass(1.0).await;
    let now = node.lock().unwrap().clone();
    let dedicated = json!([{"key": "dedicated", "value": "vms", "effect": "NoSchedule"}]);
    assert_eq!(now["spec"]["taints"], dedicated);
    let remembered = &now["metadata"]["annotations"]["isolation.stelia.io/removed-taints"];
    let remembered: Value = serde_json::from_str(remembered.as_str().unwrap()).unwrap();
    assert_eq!(remembered, json!([{"key": KEY, "effect": "NoSchedule"}]));
    assert_eq!(now["metadata"]["annotations"]["a"], "b");
    assert!(publisher.status.borrow().settled);
    log.clear();
    pass(20.0 * 60.0).await;
    assert_eq!(log.all().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_changes_meanwhile_is_read_again() {
    let (_, _, meanwhile) = tainted(two_taints());
    let mut first = true;
    let (client, log) = server(move |seen| {
        let mut node = meanwhile.lock().unwrap();
        let is_patch = seen.content_type == "application/merge-patch+json";
        if seen.is("GET", NODE) {
            Reply::Json(200, node.clone())
        } else if is_patch && std::mem::replace(&mut first, false) {
            node["spec"]["taints"] = json!([{"key": KEY, "effect": "NoSchedule"}]);
            status(409, "Conflict", "the object has been modified", json!([]))
        } else {
            ok()
        }
    });
    let publisher = Running::new(client, untainting(), told(6));
    pass(10.0).await;
    let patches = log.of("PATCH", NODE);
    assert_eq!(patches.len(), 2, "{:?}", log.all());
    assert_eq!(patches[1].body["spec"]["taints"], json!([]), "of the Node as it is now");
    assert_eq!(publisher.problems(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_the_taint_nothing_is_written() {
    let (client, log, _) = tainted(json!([]));
    let publisher = Running::new(client, untainting(), told(6));
    pass(10.0).await;
    assert_eq!((log.of("GET", NODE).len(), log.of("PATCH", NODE).len()), (2, 0));
    assert!(publisher.status.borrow().settled);
}
