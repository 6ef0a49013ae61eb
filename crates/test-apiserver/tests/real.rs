//! The real API server, of Debian's packages (`tests/api/server`), answers as it did when its answers were recorded.
//!
//! `make api-test` runs these: they are ignored otherwise, and fail where `STELIA_API` names no folder with both programs.

mod answers;
mod real_server;
mod shared;

use real_server::RealServer;

/// One test, one server after the other: each uses most of a CPU.
#[tokio::test]
#[ignore = "needs the real API server: make api-test"]
async fn it_answers_as_recorded() {
    let server = RealServer::start().await;
    let client = server.client();
    server.define(&client, test_apiserver::TOPOLOGIES).await;
    server.define(&client, answers::SAMPLES).await;
    let found = answers::answers(&client).await;
    if std::env::var_os("STELIA_WRITE_ANSWERS").is_some() {
        let text = serde_json::to_string_pretty(&found).unwrap();
        std::fs::write(answers::RECORDED, text + "\n").unwrap();
    }
    let recorded = std::fs::read_to_string(answers::RECORDED).unwrap();
    let recorded: std::collections::BTreeMap<String, serde_json::Value> = serde_json::from_str(&recorded).unwrap();
    for (name, answer) in &found {
        assert_eq!(recorded.get(name), Some(answer), "{name}");
    }
    assert_eq!(found.len(), recorded.len());
    shared::a_watch_tells_everything_in_order(&client).await;
    shared::a_watch_from_too_old_a_version_is_told(&client).await;
}
