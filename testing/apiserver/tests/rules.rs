//! What the real API server for custom resources has not: nodes, pods, events and leases; and what the server in memory does on request.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::{Client, Error};
use serde_json::{Value, json};
use test_apiserver::{Answer, Fault, Server};

fn made() -> (Server, Client) {
    let server = Server::with_topologies().unwrap();
    let client = Client::new(server.clone(), "default");
    (server, client)
}

fn code(error: &Error) -> (u16, String) {
    match error {
        Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("{other:?}"),
    }
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
    let text = http_body_util::BodyExt::collect(response.into_body())
        .await
        .unwrap()
        .to_bytes();
    (code, serde_json::from_slice(&text).unwrap_or_default())
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
async fn conditions_are_merged_by_type_and_owned_one_by_one() {
    let (server, client) = made();
    server.put("", "nodes", node("n"));
    let nodes: Api<Node> = Api::all(client.clone());
    let mine = json!({"apiVersion": "v1", "kind": "Node", "status": {"conditions": [{"type": "stelia.io/ready", "status": "True"}]}});
    let apply = PatchParams::apply("steliad");
    nodes.patch_status("n", &apply, &Patch::Apply(&mine)).await.unwrap();
    let found = server.object("", "nodes", "", "n").unwrap();
    assert_eq!(found["status"]["conditions"].as_array().unwrap().len(), 2);
    let version = found["metadata"]["resourceVersion"].clone();

    nodes.patch_status("n", &apply, &Patch::Apply(&mine)).await.unwrap();
    assert_eq!(
        server.object("", "nodes", "", "n").unwrap()["metadata"]["resourceVersion"],
        version
    );

    let others =
        json!({"apiVersion": "v1", "kind": "Node", "status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let refused = nodes
        .patch_status("n", &apply, &Patch::Apply(&others))
        .await
        .unwrap_err();
    let (code, message) = code(&refused);
    assert_eq!(code, 409);
    assert!(message.contains("\"before-first-apply\""), "{message}");
    assert!(
        message.ends_with(".status.conditions[type=\"Ready\"].status"),
        "{message}"
    );

    let none = json!({"apiVersion": "v1", "kind": "Node"});
    nodes.patch_status("n", &apply, &Patch::Apply(&none)).await.unwrap();
    let found = server.object("", "nodes", "", "n").unwrap();
    assert_eq!(
        found["status"]["conditions"],
        json!([{"type": "Ready", "status": "True"}])
    );
}

#[tokio::test]
async fn a_status_is_written_by_its_own_path_alone() {
    let (server, client) = made();
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let mut object = pod("p");
    object["status"] = json!({"phase": "Running"});
    pods.create(&PostParams::default(), &serde_json::from_value(object).unwrap())
        .await
        .unwrap();
    assert_eq!(
        server.object("", "pods", "default", "p").unwrap()["status"],
        json!({"phase": "Pending"})
    );
    let both = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
    pods.patch_status("p", &PatchParams::default(), &Patch::Merge(&both))
        .await
        .unwrap();
    let found = server.object("", "pods", "default", "p").unwrap();
    assert_eq!(
        (&found["spec"]["nodeName"], &found["status"]["phase"]),
        (&Value::Null, &json!("Running"))
    );
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let (server, _) = made();
    server.put("", "pods", pod("p"));
    let (code, status) = bind(&server, "n", json!({"uid": "another"})).await;
    assert_eq!(code, 409, "{status}");
    let mut gated = pod("p");
    gated["spec"]["schedulingGates"] = json!([{"name": "stelia.io/wait"}]);
    server.put("", "pods", gated);
    assert_eq!(bind(&server, "n", json!({})).await.0, 409);
    server.put("", "pods", pod("p"));
    assert_eq!(bind(&server, "n", json!({})).await.0, 201);
    let found = server.object("", "pods", "default", "p").unwrap();
    assert_eq!(
        (&found["spec"]["nodeName"], &found["status"]["conditions"][0]["type"]),
        (&json!("n"), &json!("PodScheduled"))
    );
    let (code, status) = bind(&server, "m", json!({})).await;
    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")));
    let message = status["message"].as_str().unwrap();
    assert!(
        message.ends_with("pod p is already assigned to node \"n\""),
        "{message}"
    );
}

#[tokio::test]
async fn a_binding_may_demand_the_pods_version_and_gives_it_annotations() {
    let (server, _) = made();
    let version = server.put("", "pods", pod("p"))["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let demand = |version: &str| json!({"resourceVersion": version, "annotations": {"a": "b"}});
    assert_eq!(bind(&server, "n", demand("1")).await.0, 409);
    assert_eq!(bind(&server, "n", demand(&version)).await.0, 201);
    let found = server.object("", "pods", "default", "p").unwrap();
    assert_eq!(
        (&found["spec"]["nodeName"], &found["metadata"]["annotations"]["a"]),
        (&json!("n"), &json!("b"))
    );
    server.remove("", "pods", "default", "p");
    assert_eq!(server.object("", "pods", "default", "p"), None);
}

#[tokio::test]
async fn an_event_is_checked_and_only_its_series_changes() {
    let (server, _) = made();
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "stelia.io/publish", "reportingInstance": "n",
        "action": "Isolate", "reason": "Isolated", "type": "Normal", "note": "",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"},
    });
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    for (member, value, fault) in [
        ("action", json!(null), "action: Required value"),
        (
            "reportingInstance",
            json!("n".repeat(129)),
            "reportingInstance: Invalid value",
        ),
        ("type", json!("Error"), "type: Invalid value"),
        ("note", json!("n".repeat(1025)), "can have at most 1024 characters"),
        (
            "deprecatedCount",
            json!(2),
            "count: Invalid value: 2: needs to be unset",
        ),
        (
            "reportingController",
            json!("a b"),
            "reportingController: Invalid value",
        ),
        (
            "series",
            json!({"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}),
            "should be at least 2",
        ),
    ] {
        let mut wrong = event.clone();
        wrong[member] = value;
        let (code, status) = api_request(&server, Request::post(path), &wrong).await;
        assert_eq!(code, 422, "{member}");
        assert!(status["message"].as_str().unwrap().contains(fault), "{status}");
    }
    assert_eq!(api_request(&server, Request::post(path), &event).await.0, 201);
    let patch = |body: Value| {
        let server = server.clone();
        let request = Request::patch(format!("{path}/e")).header("content-type", "application/merge-patch+json");
        async move { api_request(&server, request, &body).await }
    };
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}});
    assert_eq!(patch(series).await.0, 200);
    let (code, status) = patch(json!({"note": "another"})).await;
    assert_eq!(code, 422, "{status}");
}

#[tokio::test]
async fn a_lease_is_replaced_only_at_its_version() {
    let (_, client) = made();
    let leases: Api<Lease> = Api::namespaced(client, "kube-system");
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}});
    let held = leases
        .create(&PostParams::default(), &serde_json::from_value(lease.clone()).unwrap())
        .await
        .unwrap();
    let without = leases
        .replace("l", &PostParams::default(), &serde_json::from_value(lease).unwrap())
        .await
        .unwrap_err();
    assert_eq!(code(&without).0, 422);
    leases
        .replace("l", &PostParams::default(), &changed(&held, "b"))
        .await
        .unwrap();
    let stale = leases
        .replace("l", &PostParams::default(), &changed(&held, "c"))
        .await
        .unwrap_err();
    assert_eq!(code(&stale).0, 409);
}

fn changed(lease: &Lease, holder: &str) -> Lease {
    let mut lease = lease.clone();
    lease.spec.as_mut().unwrap().holder_identity = Some(holder.into());
    lease
}

#[tokio::test]
async fn lists_come_in_pages_and_selected() {
    let (server, client) = made();
    for at in 0..25 {
        let mut object = pod(&format!("p-{at:02}"));
        object["spec"]["nodeName"] = format!("n-{}", at % 2).into();
        object["metadata"]["labels"]["vm"] = format!("{}", at % 3).into();
        server.put("", "pods", object);
    }
    let pods: Api<Pod> = Api::all(client);
    let mut names = Vec::new();
    let mut page = ListParams::default().limit(10);
    loop {
        let list = pods.list(&page).await.unwrap();
        assert!(list.items.len() <= 10);
        names.extend(list.items.into_iter().filter_map(|pod| pod.metadata.name));
        match list.metadata.continue_ {
            Some(token) if !token.is_empty() => page.continue_token = Some(token),
            _ => break,
        }
    }
    assert_eq!(names, (0..25).map(|at| format!("p-{at:02}")).collect::<Vec<_>>());
    let selected = pods
        .list(&ListParams::default().fields("spec.nodeName=n-1").labels("vm!=0"))
        .await
        .unwrap();
    assert_eq!(
        selected.items.len(),
        (0..25).filter(|at| at % 2 == 1 && at % 3 != 0).count()
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_sees_what_enters_and_leaves_its_selection() {
    let (server, client) = made();
    server.put("", "pods", pod("before"));
    let pods: Api<Pod> = Api::all(client);
    let watched = pods
        .watch(&WatchParams::default().fields("spec.nodeName=n").timeout(200), "0")
        .await
        .unwrap();
    let bind = |name: &str, node: &str| {
        let mut object = pod(name);
        object["spec"]["nodeName"] = node.into();
        server.put("", "pods", object);
    };
    bind("before", "n");
    bind("beside", "m");
    bind("before", "n");
    bind("before", "m");
    let events: Vec<String> = watched
        .map_ok(|event| match event {
            WatchEvent::Added(_) => "added".to_owned(),
            WatchEvent::Modified(_) => "modified".to_owned(),
            WatchEvent::Deleted(_) => "deleted".to_owned(),
            WatchEvent::Bookmark(_) => "bookmark".to_owned(),
            WatchEvent::Error(error) => error.message.clone(),
        })
        .try_collect()
        .await
        .unwrap();
    assert_eq!(
        events,
        ["added", "modified", "deleted", "bookmark", "bookmark", "bookmark"]
    );
}

#[tokio::test(start_paused = true)]
async fn faults_meet_the_requests_that_they_are_for() {
    let (server, client) = made();
    server.put("", "nodes", node("n"));
    let nodes: Api<Node> = Api::all(client);
    server.fail(Fault::of("patch", "nodes", 1, Answer::Lost));
    server.fail(Fault::of("get", "nodes", 1, Answer::Close));
    server.fail(Fault::of(
        "get",
        "nodes",
        2,
        Answer::Status {
            code: 429,
            retry_after: Some(7),
            message: None,
        },
    ));
    server.fail(Fault::of("", "nodes", 1, Answer::delay(Duration::from_secs(30))));

    assert!(matches!(nodes.get("n").await.unwrap_err(), Error::Service(_)));
    let busy = nodes.get("n").await.unwrap_err();
    let Error::Api(status) = &busy else { panic!("{busy:?}") };
    assert_eq!(
        (
            status.code,
            status.details.as_ref().map(|details| details.retry_after_seconds)
        ),
        (429, Some(7))
    );
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
    let asked: Vec<(u64, u16)> = server
        .asked()
        .into_iter()
        .map(|asked| (asked.at.as_secs(), asked.code))
        .collect();
    assert_eq!(asked, [(0, 0), (60, 200)]);
}

#[tokio::test]
async fn a_token_is_asked_for() {
    let (server, _) = made();
    server.accept(Some(vec!["good".into()]));
    let with = |token: &str| Request::get("/api/v1/nodes").header("authorization", format!("Bearer {token}"));
    assert_eq!(api_request(&server, with("good"), &Value::Null).await.0, 200);
    let (code, status) = api_request(&server, with("old"), &Value::Null).await;
    assert_eq!((code, status["reason"].as_str()), (401, Some("Unauthorized")));
    assert_eq!(
        api_request(&server, Request::get("/api/v1/nodes"), &Value::Null)
            .await
            .0,
        401
    );
    server.accept(Some(vec!["new".into()]));
    assert_eq!(api_request(&server, with("good"), &Value::Null).await.0, 401);
}

#[tokio::test]
async fn a_resource_that_is_taken_away_is_not_found_and_comes_back() {
    let (server, _) = made();
    let path = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";
    server.undefine("topology.node.k8s.io", "noderesourcetopologies");
    let (code, body) = api_request(&server, Request::get(path), &Value::Null).await;
    assert_eq!(
        (code, body),
        (404, Value::Null),
        "a text, as of a path that no server has"
    );
    let definition: Value = serde_saphyr::from_str(test_apiserver::TOPOLOGIES).unwrap();
    assert_eq!(
        api_request(
            &server,
            Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
            &definition
        )
        .await
        .0,
        201
    );
    assert_eq!(api_request(&server, Request::get(path), &Value::Null).await.0, 200);
}

#[tokio::test]
async fn an_object_with_a_finalizer_goes_when_that_is_gone() {
    let (server, client) = made();
    let mut object = pod("p");
    object["metadata"]["finalizers"] = json!(["stelia.io/kept"]);
    server.put("", "pods", object);
    let pods: Api<Pod> = Api::namespaced(client, "default");
    pods.delete("p", &Default::default()).await.unwrap();
    assert!(server.object("", "pods", "default", "p").unwrap()["metadata"]["deletionTimestamp"].is_string());
    let none = json!({"metadata": {"finalizers": null}});
    pods.patch("p", &PatchParams::default(), &Patch::Merge(&none))
        .await
        .unwrap();
    assert_eq!(server.object("", "pods", "default", "p"), None);
}
