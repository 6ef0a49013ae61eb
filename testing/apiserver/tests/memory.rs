//! The server in memory answers as the real one did.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod shared;

use kube::Client;
use test_apiserver::Server;

fn server() -> (Server, Client) {
    let server = Server::with_topologies().unwrap();
    server.define(&serde_json::from_str(answers::SAMPLES).unwrap()).unwrap();
    let client = Client::new(server.clone(), "default");
    (server, client)
}

#[tokio::test]
async fn it_answers_as_the_real_server_did() {
    let recorded = std::fs::read_to_string(answers::RECORDED).unwrap();
    let recorded: std::collections::BTreeMap<String, serde_json::Value> = serde_json::from_str(&recorded).unwrap();
    let found = answers::answers(&server().1).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), recorded.keys().collect::<Vec<_>>());
    let differing: Vec<String> = found
        .iter()
        .filter(|(name, answer)| recorded[*name] != **answer)
        .map(|(name, answer)| format!("{name}\n  real   {}\n  memory {answer}", recorded[name]))
        .collect();
    assert!(
        differing.is_empty(),
        "{} answers differ:\n{}",
        differing.len(),
        differing[..differing.len().min(5)].join("\n")
    );
}

#[tokio::test]
async fn a_watch_tells_everything_in_order() {
    shared::a_watch_tells_everything_in_order(&server().1).await;
}

#[tokio::test]
async fn a_watch_from_too_old_a_version_is_told() {
    let (server, client) = server();
    server.put(
        "topology.node.k8s.io",
        "noderesourcetopologies",
        shared::topology("any", "1"),
    );
    server.compact();
    shared::a_watch_from_too_old_a_version_is_told(&client).await;
}
