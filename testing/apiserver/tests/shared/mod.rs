//! What both servers, the one in memory and the real one, must answer to.
#![allow(dead_code)] // Each test uses a part of it.

pub mod counting;
pub mod process;
pub mod publishers;
pub mod rebind;

use futures_util::{StreamExt, TryStreamExt};
use http::Request;
use kube::Client;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::client::Body;
use serde_json::{Value, json};

pub fn topology(name: &str, available: &str) -> Value {
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": name},
        "zones": [{"name": "node-0", "type": "Node",
            "resources": [{"name": "cpu", "capacity": "4", "allocatable": "4", "available": available}]}],
    })
}

pub fn topologies(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("topology.node.k8s.io", "v1alpha2", "NodeResourceTopology");
    let resource = ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies");
    Api::all_with(client.clone(), &resource)
}

const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

/// Method, where it goes, how and with which body; what is answered: the code, and the reason with the field of a refusal, or the generation.
type Step = (&'static str, &'static str, &'static str, Value, u16, &'static str);

fn steps() -> Vec<Step> {
    let of = |name: &str, metadata: Value| {
        let mut object = topology(name, "2");
        for (member, value) in metadata.as_object().unwrap() {
            object["metadata"][member.as_str()] = value.clone();
        }
        object
    };
    let (a, old, other) = (of("a", json!({})), json!({"resourceVersion": "1"}), json!({"uid": "x"}));
    let only_if = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": other});
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    let zones = json!({"zones": topology("a", "3")["zones"]});
    const B: &str = "/b?fieldManager=m";
    const UID: &str = "Invalid metadata.uid";
    vec![
        ("POST", "", JSON, a.clone(), 201, "1"),
        ("POST", "", JSON, a.clone(), 409, "AlreadyExists"),
        ("PUT", "/a", JSON, a.clone(), 422, "Invalid metadata.resourceVersion"),
        ("PUT", "/a", JSON, of("a", old.clone()), 409, "Conflict"),
        ("PUT", "/a", JSON, of("b", old.clone()), 400, "BadRequest"),
        ("PUT", "/none", JSON, of("none", old.clone()), 404, "NotFound"),
        ("PATCH", "/a", MERGE, labelled.clone(), 200, "1"),
        ("PATCH", "/a", MERGE, zones, 200, "2"),
        ("PATCH", "/a", MERGE, json!({"metadata": old}), 409, "Conflict"),
        ("PATCH", "/a", MERGE, json!({"metadata": other}), 422, UID),
        ("PATCH", "/none", MERGE, labelled, 404, "NotFound"),
        ("PATCH", "/a", JSON, json!({}), 415, "UnsupportedMediaType"),
        ("PATCH", B, APPLY, of("b", other.clone()), 409, "Conflict"),
        ("PATCH", B, APPLY, of("b", json!({})), 201, "1"),
        ("PATCH", B, APPLY, of("b", json!({})), 200, "1"),
        ("PATCH", B, APPLY, topology("b", "3"), 200, "2"),
        ("PATCH", B, APPLY, of("b", other), 422, UID),
        ("DELETE", "/a", JSON, only_if, 409, "Conflict"),
        ("DELETE", "/a", JSON, Value::Null, 200, ""),
        ("DELETE", "/a", JSON, Value::Null, 404, "NotFound"),
        ("DELETE", "/b", JSON, Value::Null, 200, ""),
        ("GET", "?fieldSelector=spec.x%3D1", JSON, Value::Null, 400, "BadRequest"),
    ]
}

pub async fn writes_are_answered(client: &Client) {
    for (method, place, kind, body, code, means) in steps() {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let path = format!("/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies{place}");
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let response = client
            .send(request.body(Body::from(text.into_bytes())).unwrap())
            .await
            .unwrap();
        let status = response.status().as_u16();
        let answer = response.into_body().collect_bytes().await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        let field = answer["details"]["causes"][0]["field"].as_str().unwrap_or_default();
        let reason = answer["reason"].as_str().unwrap_or_default();
        let found = match answer["metadata"]["generation"].as_u64() {
            Some(generation) => generation.to_string(),
            None => format!("{reason} {field}").trim().to_owned(),
        };
        assert_eq!((status, found.as_str()), (code, means), "{method} {place} {body}");
    }
}

pub async fn a_watch_tells_everything_in_order(client: &Client) {
    let api = topologies(client);
    let list = api.list(&ListParams::default()).await.unwrap();
    let from = list.metadata.resource_version.unwrap();
    let selected = WatchParams::default().fields("metadata.name=watched");
    let watched = api.watch(&selected, &from).await.unwrap();
    let new = |name: &str| serde_json::from_value(topology(name, "0")).unwrap();
    api.create(&PostParams::default(), &new("watched")).await.unwrap();
    api.create(&PostParams::default(), &new("beside")).await.unwrap();
    let apply = PatchParams::apply("watching").force();
    for available in 1..=20 {
        let object = topology("watched", &available.to_string());
        api.patch("watched", &apply, &Patch::Apply(object)).await.unwrap();
    }
    api.delete("watched", &Default::default()).await.unwrap();
    api.delete("beside", &Default::default()).await.unwrap();
    let mut seen = Vec::new();
    let mut last = 0;
    let mut watched = std::pin::pin!(watched);
    while let Some(event) = watched.try_next().await.unwrap() {
        let (what, object) = match event {
            WatchEvent::Added(object) => ("added", object),
            WatchEvent::Modified(object) => ("modified", object),
            WatchEvent::Deleted(object) => ("deleted", object),
            other => panic!("{other:?}"),
        };
        let version: u64 = object.metadata.resource_version.unwrap().parse().unwrap();
        assert!(version > last, "{version} after {last}");
        last = version;
        let available = &object.data["zones"][0]["resources"][0]["available"];
        seen.push((what, available.as_str().unwrap().to_owned()));
        if what == "deleted" {
            break;
        }
    }
    let modified = (1..=20).map(|available| ("modified", available.to_string()));
    let mut expected = vec![("added", "0".to_owned())];
    expected.extend(modified);
    expected.push(("deleted", "20".to_owned()));
    assert_eq!(seen, expected);
}

pub async fn a_watch_from_too_old_a_version_is_told(client: &Client) {
    let request = Request::get("/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies?watch=1&resourceVersion=1");
    let request = request.body(Vec::new()).unwrap();
    let events = client.request_events::<DynamicObject>(request).await.unwrap();
    let events: Vec<WatchEvent<_>> = events.map(|event| event.unwrap()).collect().await;
    let [WatchEvent::Error(status)] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    assert!(status.message.starts_with("too old resource version: 1 ("));
}
