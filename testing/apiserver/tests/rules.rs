//! What the server in memory answers and does on request.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod shared;

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::{Client, Error};
use serde_json::{Value, json};
use test_apiserver::{Answer, Fault, Server};

fn made() -> (Server, Client) {
    let server = Server::default();
    let client = Client::new(server.clone(), "default");
    (server, client)
}

#[tokio::test]
async fn a_nodes_rebind_resources_are_carried_out() {
    let (_, client) = made();
    shared::rebind::rebinds_are_carried_out(&client).await;
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "compute"}]},
    })
}

async fn api_request(server: &Server, request: http::request::Builder, body: &Value) -> (u16, Value) {
    let request = request.body(Body::from(body.to_string().into_bytes())).unwrap();
    let response = server.answer(request).await.unwrap();
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

/// Binds pod `p`, with these members of the binding's metadata.
async fn bind(server: &Server, node: &str, mut metadata: Value) -> (u16, Value) {
    (metadata["name"], metadata["namespace"]) = ("p".into(), "default".into());
    let target = json!({"kind": "Node", "name": node});
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target});
    let path = "/api/v1/namespaces/default/pods/p/binding";
    api_request(server, Request::post(path), &binding).await
}

#[tokio::test]
async fn it_answers_as_the_real_server_does() {
    let (server, client) = made();
    shared::writes_are_answered(&client).await;
    shared::a_watch_tells_everything_in_order(&client).await;
    server.compact();
    shared::a_watch_from_too_old_a_version_is_told(&client).await;
}

#[tokio::test]
async fn a_manager_applies_its_conditions_and_labels_beside_those_of_others() {
    let (server, client) = made();
    server.put("", "nodes", node("n"));
    let nodes: Api<Node> = Api::all(client);
    let apply = PatchParams::apply("steliad");
    let condition = |status: &str| {
        let mine = json!({"type": "stelia.io/ready", "status": status});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"unschedulable": true}, "status": {"conditions": [mine]}})
    };
    let labels = |labels: Value| {
        let metadata = json!({"name": "n", "labels": labels});
        Patch::Apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}))
    };
    let found = || server.object("", "nodes", "", "n").unwrap();
    let first = Patch::Apply(condition("True"));
    nodes.patch_status("n", &apply, &first).await.unwrap();
    let other = Patch::Apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"conditions": [{"type": "other", "status": "True"}]}}));
    let by_other = PatchParams::apply("other");
    nodes.patch_status("n", &by_other, &other).await.unwrap();
    let version = found()["metadata"]["resourceVersion"].clone();
    nodes.patch_status("n", &apply, &first).await.unwrap();
    assert_eq!(found()["metadata"]["resourceVersion"], version, "nothing changed");
    assert_eq!(found()["spec"], Value::Null, "the status alone is written by its path");
    let second = Patch::Apply(condition("False"));
    nodes.patch_status("n", &apply, &second).await.unwrap();
    let told = |found: Value| -> Vec<String> {
        let conditions = found["status"]["conditions"].as_array().unwrap().iter();
        let told = |one: &Value| format!("{} {}", one["type"], one["status"]).replace('"', "");
        conditions.map(told).collect()
    };
    assert_eq!(told(found()), ["Ready True", "stelia.io/ready False", "other True"]);
    let none = Patch::Apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {}}));
    nodes.patch_status("n", &apply, &none).await.unwrap();
    assert_eq!(told(found()), ["Ready True", "other True"]);

    let mut labelled = node("n");
    labelled["metadata"]["labels"] = json!({"theirs": "1"});
    server.put("", "nodes", labelled);
    nodes
        .patch("n", &apply, &labels(json!({"ours": "true"})))
        .await
        .unwrap();
    assert_eq!(found()["metadata"]["labels"], json!({"ours": "true", "theirs": "1"}));
    nodes.patch("n", &apply, &labels(json!({}))).await.unwrap();
    assert_eq!(found()["metadata"]["labels"], json!({"theirs": "1"}));
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let (server, _) = made();
    server.put("", "pods", pod("p"));
    let (code, status) = bind(&server, "n", json!({"uid": "another"})).await;
    assert_eq!(code, 409, "{status}");
    let mut ending = pod("p");
    ending["metadata"]["deletionTimestamp"] = "2026-05-04T09:12:33Z".into();
    server.put("", "pods", ending);
    assert_eq!(bind(&server, "n", json!({})).await.0, 409);
    server.put("", "pods", pod("p"));
    assert_eq!(bind(&server, "n", json!({})).await.0, 201);
    let found = server.object("", "pods", "default", "p").unwrap();
    assert_eq!(found["spec"]["nodeName"], "n");
    assert_eq!(found["status"]["conditions"][0]["type"], "PodScheduled");
    let (code, status) = bind(&server, "m", json!({})).await;
    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")));
    let message = status["message"].as_str().unwrap();
    assert!(message.ends_with("pod p is already assigned to node \"n\""));
}

#[tokio::test(start_paused = true)]
async fn a_watch_sees_what_enters_and_leaves_its_selection() {
    let (server, client) = made();
    server.put("", "pods", pod("before"));
    let pods: Api<Pod> = Api::all(client);
    let selected = WatchParams::default().fields("spec.nodeName=n").timeout(200);
    let watched = pods.watch(&selected, "0").await.unwrap();
    let bind = |name: &str, node: &str| {
        let mut object = pod(name);
        object["spec"]["nodeName"] = node.into();
        server.put("", "pods", object);
    };
    bind("before", "n");
    bind("beside", "m");
    bind("before", "n");
    bind("before", "m");
    let told = watched.map_ok(|event| match event {
        WatchEvent::Added(_) => "added".to_owned(),
        WatchEvent::Modified(_) => "modified".to_owned(),
        WatchEvent::Deleted(_) => "deleted".to_owned(),
        WatchEvent::Bookmark(_) => "bookmark".to_owned(),
        WatchEvent::Error(error) => error.message.clone(),
    });
    let events: Vec<String> = told.try_collect().await.unwrap();
    assert_eq!(events.join(" "), "added modified deleted bookmark bookmark bookmark");
}

#[tokio::test(start_paused = true)]
async fn faults_meet_the_requests_that_they_are_for() {
    let (server, client) = made();
    server.put("", "nodes", node("n"));
    let nodes: Api<Node> = Api::all(client);
    server.fail(Fault::of("patch", "nodes", 1, Answer::Lost));
    server.fail(Fault::of("get", "nodes", 1, Answer::Close));
    server.fail(Fault::of("get", "nodes", 2, Answer::Status(429)));
    server.fail(Fault::of("", "nodes", 1, Answer::Delay(Duration::from_secs(30))));

    assert!(matches!(nodes.get("n").await.unwrap_err(), Error::Service(_)));
    let busy = nodes.get("n").await.unwrap_err();
    let Error::Api(status) = &busy else { panic!("{busy:?}") };
    assert_eq!((status.code, status.reason.as_str()), (429, "TooManyRequests"));
    let (code, _) = api_request(&server, Request::get("/api/v1/nodes/n"), &Value::Null).await;
    assert_eq!(code, 429);

    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let lost = nodes.patch("n", &PatchParams::default(), &Patch::Merge(&label)).await;
    assert!(matches!(lost.unwrap_err(), Error::Service(_)));
    let begun = tokio::time::Instant::now();
    let found = nodes.get("n").await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(30));
    assert_eq!(found.metadata.labels.unwrap()["a"], "b");

    let counts = server.counts();
    let count = counts[&("get", "nodes".to_owned())];
    assert_eq!((count.requests, count.succeeded, count.unanswered), (4, 1, 1));
    assert_eq!(counts[&("patch", "nodes".to_owned())].unanswered, 1);
}

#[tokio::test(start_paused = true)]
async fn while_it_is_down_nothing_is_answered_and_watches_end() {
    let (server, client) = made();
    let nodes: Api<Node> = Api::all(client);
    let mut watched = std::pin::pin!(nodes.watch(&WatchParams::default(), "0").await.unwrap());
    server.asked();
    server.down(Duration::from_secs(60));
    assert!(watched.next().await.is_none());
    assert!(nodes.list(&ListParams::default()).await.is_err());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(nodes.list(&ListParams::default()).await.is_ok());
    let asked = server.asked().into_iter().map(|asked| (asked.at.as_secs(), asked.code));
    let asked: Vec<(u64, u16)> = asked.collect();
    assert_eq!(asked, [(0, 0), (60, 200)]);
}
