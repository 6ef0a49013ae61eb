//! What both servers are asked that takes more than one request.
#![allow(dead_code)] // Each test uses a part of it.

pub mod counting;
pub mod process;
pub mod publishers;

use futures_util::{StreamExt, TryStreamExt};
use http::Request;
use kube::Client;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
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
    Api::all_with(
        client.clone(),
        &ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies"),
    )
}

pub async fn a_watch_tells_everything_in_order(client: &Client) {
    let api = topologies(client);
    let from = api
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let watched = api
        .watch(&WatchParams::default().fields("metadata.name=watched"), &from)
        .await
        .unwrap();
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
        seen.push((
            what,
            object.data["zones"][0]["resources"][0]["available"]
                .as_str()
                .unwrap()
                .to_owned(),
        ));
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
    let events = client
        .request_events::<DynamicObject>(request.body(Vec::new()).unwrap())
        .await
        .unwrap();
    let events: Vec<WatchEvent<_>> = events.map(|event| event.unwrap()).collect().await;
    let [WatchEvent::Error(status)] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    assert!(
        status.message.starts_with("too old resource version: 1 ("),
        "{}",
        status.message
    );
}
