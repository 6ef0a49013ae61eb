//! What is taken back when steliad is removed.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stelia_api::publication::Publication;
use stelia_publish::PublishOptions;
use stelia_publish::options::PodConditions;
use stelia_publish::withdraw::withdraw;

use crate::support::*;

fn options_of_all() -> PublishOptions {
    PublishOptions {
        ready_label: true,
        remove_taint: Some("stelia.io/not-ready".into()),
        pod_conditions: PodConditions::All,
        ..options()
    }
}

fn node() -> Value {
    json!({
        "metadata": {
            "uid": UID,
            "resourceVersion": "9",
            "annotations": {"isolation.stelia.io/removed-taints": "[{\"key\":\"stelia.io/not-ready\",\"effect\":\"NoSchedule\"}]"},
            "managedFields": [
                {"manager": "kubelet", "operation": "Update", "subresource": "status"},
                {"manager": "steliad", "operation": "Apply"},
            ],
        },
        "spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]},
    })
}

fn object(manager: &str) -> Value {
    json!({"metadata": {"uid": "object-uid", "labels": {"app.kubernetes.io/managed-by": manager}}})
}

/// A server with an object of ours, that answers so about the Node.
fn stands(node: fn() -> Reply) -> (kube::Client, Log) {
    server(move |seen| match (seen.method.as_str(), seen.path.as_str()) {
        ("GET", NODE) => node(),
        ("GET", OBJECT) => Reply::Json(200, object("steliad")),
        _ => ok(),
    })
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_there_and_ours_is_taken_back() {
    let (client, log) = stands(|| Reply::Json(200, node()));
    let told = Publication {
        pods: vec![pod(1, true)],
        ..told(6)
    };
    let all = withdraw(&client, &options_of_all(), Some(&told)).await;
    assert_eq!(all.left, [""; 0]);
    assert_eq!(all.done.len(), 4, "{all:?}");
    let patches = log.of("PATCH", NODE);
    assert_eq!(
        patches[0].body,
        json!({
            "metadata": {"uid": UID, "resourceVersion": "9", "annotations": {"isolation.stelia.io/removed-taints": null}},
            "spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}, {"key": "stelia.io/not-ready", "effect": "NoSchedule"}]},
        })
    );
    // Applied without the label.
    assert_eq!(patches[1].body["metadata"], json!({"name": "worker-1", "uid": UID}));
    assert_eq!(log.of("PATCH", "/api/v1/nodes/worker-1/status").len(), 0);
    let deleted = log.of("DELETE", OBJECT);
    assert_eq!(deleted[0].body["preconditions"], json!({"uid": "object-uid"}));
    let condition = log.of("PATCH", "/api/v1/namespaces/tenant/pods/vm-1/status");
    assert_eq!(condition[0].body["status"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn where_nothing_is_ours_nothing_is_written() {
    for stands in [None, Some(object("koordlet"))] {
        let (client, log) = server(move |seen| match (seen.method.as_str(), seen.path.as_str(), &stands) {
            ("GET", NODE, _) => Reply::Json(200, json!({"metadata": {"uid": UID, "resourceVersion": "9"}})),
            ("GET", OBJECT, Some(stands)) => Reply::Json(200, stands.clone()),
            _ => status(404, "NotFound", "not found", json!([])),
        });
        let all = withdraw(&client, &options_of_all(), None).await;
        assert_eq!(all, Default::default());
        assert!(log.all().iter().all(|seen| seen.method == "GET"), "{:?}", log.all());
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_taken_back_stops_nothing_else_and_is_told() {
    let (client, _log) = stands(|| status(403, "Forbidden", "not for you", json!([])));
    let all = withdraw(&client, &options_of_all(), None).await;
    assert_eq!(all.done, ["the NodeResourceTopology"]);
    assert_eq!(all.left, ["what the Node has of ours: 403 Forbidden: not for you"]);
    // Who was never let near the Node wrote nothing there.
    let all = withdraw(&client, &options(), None).await;
    assert_eq!(all.left, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_for_a_moment_is_asked_again_and_not_for_ever() {
    let failures = Arc::new(Mutex::new(3));
    let left = failures.clone();
    let (client, log) = server(move |seen| {
        let mut left = left.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            return Reply::Closed("connection refused");
        }
        match (seen.method.as_str(), seen.path.as_str()) {
            ("GET", OBJECT) => Reply::Json(200, object("steliad")),
            _ => healthy(seen),
        }
    });
    let all = withdraw(&client, &options(), None).await;
    assert_eq!((all.done.len(), all.left.len()), (1, 0), "{all:?}");
    *failures.lock().unwrap() = u32::MAX;
    log.clear();
    let all = withdraw(&client, &options(), None).await;
    assert_eq!((all.done.len(), all.left.len()), (0, 2), "{all:?}");
    assert_eq!(log.all().len(), 8);
}
