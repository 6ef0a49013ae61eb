//! Laws of apply and watch, whatever is asked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use futures_util::StreamExt;
use http::Request;
use kube::Client;
use kube::api::{DynamicObject, WatchEvent};
use kube::client::Body;
use proptest::prelude::*;
use serde_json::{Value, json};
use test_apiserver::Server;

const PATH: &str = "/apis/stelia.io/v1/namespaces/ns/samples";

#[derive(Debug, Clone)]
enum Op {
    Apply {
        name: u8,
        manager: u8,
        force: bool,
        object: Value,
    },
    Patch {
        name: u8,
        manager: u8,
        object: Value,
    },
    Delete {
        name: u8,
    },
}

fn members() -> impl Strategy<Value = Value> {
    let zone = (0..3u8, proptest::option::of(0..3u8));
    let zones = proptest::collection::btree_map(zone.0, zone.1, 0..3);
    let labels = proptest::collection::btree_map("[ab]", "[xy]", 0..2);
    let tags = proptest::collection::btree_set("[pqr]", 0..3);
    (zones, labels, tags, proptest::option::of("[12]")).prop_map(|(zones, labels, tags, a)| {
        let zones: Vec<Value> = zones
            .into_iter()
            .map(|(name, value)| match value {
                Some(value) => json!({"name": format!("node-{name}"), "value": value.to_string()}),
                None => json!({"name": format!("node-{name}")}),
            })
            .collect();
        let mut object = json!({"metadata": {"labels": labels}, "zones": zones, "tags": tags, "spec": {}});
        if let Some(a) = a {
            object["spec"]["a"] = a.into();
        }
        object
    })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![
        4 => (0..2u8, 0..3u8, any::<bool>(), members())
            .prop_map(|(name, manager, force, object)| Op::Apply { name, manager, force, object }),
        2 => (0..2u8, 0..3u8, members()).prop_map(|(name, manager, object)| Op::Patch { name, manager, object }),
        1 => (0..2u8).prop_map(|name| Op::Delete { name }),
    ];
    proptest::collection::vec(one, 1..25)
}

async fn api_request(client: &Client, method: &str, path: String, kind: &str, body: Value) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let response = client
        .send(request.body(Body::from(body.to_string().into_bytes())).unwrap())
        .await
        .unwrap();
    let code = response.status().as_u16();
    (
        code,
        serde_json::from_slice(&response.into_body().collect_bytes().await.unwrap()).unwrap_or_default(),
    )
}

async fn act(client: &Client, op: &Op) -> (u16, Value) {
    let whole = |name: u8, object: &Value| {
        let mut object = object.clone();
        object["apiVersion"] = "stelia.io/v1".into();
        object["kind"] = "Sample".into();
        object["metadata"]["name"] = format!("s{name}").into();
        object
    };
    match op {
        Op::Apply {
            name,
            manager,
            force,
            object,
        } => {
            let path = format!("{PATH}/s{name}?fieldManager=m{manager}&force={force}");
            api_request(
                client,
                "PATCH",
                path,
                "application/apply-patch+yaml",
                whole(*name, object),
            )
            .await
        }
        Op::Patch { name, manager, object } => {
            let path = format!("{PATH}/s{name}?fieldManager=m{manager}");
            api_request(client, "PATCH", path, "application/merge-patch+json", object.clone()).await
        }
        Op::Delete { name } => {
            api_request(
                client,
                "DELETE",
                format!("{PATH}/s{name}"),
                "application/json",
                Value::Null,
            )
            .await
        }
    }
}

/// Every member of `wanted` is in `object`; items of lists somewhere in the list.
fn contains(object: &Value, wanted: &Value) -> bool {
    match (object, wanted) {
        (Value::Object(has), Value::Object(wanted)) => wanted.iter().all(|(name, value)| {
            has.get(name).is_some_and(|has| contains(has, value)) || [json!({}), json!([])].contains(value)
        }),
        (Value::Array(has), Value::Array(wanted)) => wanted.iter().all(|one| has.iter().any(|has| contains(has, one))),
        (has, wanted) => has == wanted,
    }
}

fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn made() -> (Server, Client) {
    let server = Server::new().unwrap();
    server
        .define(&serde_json::from_str(include_str!("answers/samples.json")).unwrap())
        .unwrap();
    (server.clone(), Client::new(server, "ns"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// What was applied is there, and applied once more it writes nothing. Twice more where it emptied a list, which may be gone at first and empty
    /// afterwards, as in the real server.
    #[test]
    fn an_apply_holds_and_is_idempotent(ops in ops()) {
        run(async {
            let (_, client) = made();
            for op in &ops {
                let (code, first) = act(&client, op).await;
                if let (Op::Apply { object, .. }, 200 | 201) = (op, code) {
                    prop_assert!(contains(&first, object), "{object} in {first}");
                    let (_, second) = act(&client, op).await;
                    let (code, third) = act(&client, op).await;
                    prop_assert_eq!(code, 200);
                    prop_assert_eq!(&third, &second);
                    let lists = ["zones", "tags"];
                    if lists.iter().all(|name| first[*name].is_array() || second[*name].is_null()) {
                        prop_assert_eq!(second, first);
                    }
                }
            }
            Ok(())
        })?;
    }

    /// Without force nobody's fields change but one's own and unowned ones; a refusal changes nothing.
    #[test]
    fn what_others_own_is_changed_by_force_alone(ops in ops()) {
        run(async {
            let (server, client) = made();
            for op in &ops {
                let before = server.objects("stelia.io", "samples");
                let (code, answer) = act(&client, op).await;
                let after = server.objects("stelia.io", "samples");
                match (op, code) {
                    (_, 400..) => prop_assert_eq!(before, after),
                    (Op::Apply { manager, force: false, name, .. }, _) => {
                        let named = |all: &[Value]| all.iter().find(|one| one["metadata"]["name"] == format!("s{name}").as_str()).cloned();
                        let Some(before) = named(&before) else { continue };
                        for entry in before["metadata"]["managedFields"].as_array().unwrap() {
                            if entry["manager"] == format!("m{manager}").as_str() && entry["operation"] == "Apply" {
                                continue;
                            }
                            let kept = answer["metadata"]["managedFields"].as_array().unwrap().contains(entry);
                            prop_assert!(kept, "{entry} in {answer}");
                        }
                    }
                    _ => {}
                }
            }
            Ok(())
        })?;
    }

    /// Whoever follows a watch from the beginning has what a list has.
    #[test]
    fn a_watch_replayed_is_the_list(ops in ops()) {
        run(async {
            let (server, client) = made();
            for op in &ops {
                act(&client, op).await;
            }
            let request = Request::get("/apis/stelia.io/v1/samples?watch=1&resourceVersion=1&timeoutSeconds=1").body(Vec::new()).unwrap();
            let mut events = std::pin::pin!(client.request_events::<DynamicObject>(request).await.unwrap());
            let mut replayed = BTreeMap::new();
            let expected = server.objects("stelia.io", "samples");
            let last = server.last_version();
            let mut seen = 1;
            while seen < last {
                let Some(event) = events.next().await else { break };
                let (object, there) = match event.unwrap() {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
                    WatchEvent::Deleted(object) => (object, false),
                    other => panic!("{other:?}"),
                };
                let object = serde_json::to_value(object).unwrap();
                seen = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                let name = object["metadata"]["name"].to_string();
                if there { replayed.insert(name, object) } else { replayed.remove(&name) };
            }
            prop_assert_eq!(replayed.into_values().collect::<Vec<_>>(), expected);
            Ok(())
        })?;
    }
}
