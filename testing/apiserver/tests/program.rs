//! The server as a program: over HTTP, told what to do by `/control`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use http::Request;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::{Value, json};

struct Program {
    child: Child,
    address: String,
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_test-apiserver"));
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("ready: ")
            .expect("where it listens")
            .to_owned();
        Self { child, address }
    }

    fn client(&self, token: Option<&str>) -> Client {
        let mut config = Config::new(self.address.parse().unwrap());
        // Every answer is seen.
        config.default_retry = false;
        config.auth_info.token = token.map(|token| token.to_owned().into());
        Client::try_from(config).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn api_request(client: &Client, method: &str, path: &str, body: Value) -> Result<(u16, Value), kube::Error> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    let response = client
        .send(request.body(Body::from(body.to_string().into_bytes())).unwrap())
        .await?;
    let code = response.status().as_u16();
    Ok((
        code,
        serde_json::from_slice(&response.into_body().collect_bytes().await?).unwrap_or_default(),
    ))
}

#[tokio::test]
async fn it_is_told_what_to_do_and_tells_what_it_was_asked() {
    let program = Program::start(&["--token", "secret"]);
    let (stranger, client) = (program.client(None), program.client(Some("secret")));
    let path = "/api/v1/nodes/n";
    assert_eq!(api_request(&stranger, "GET", path, Value::Null).await.unwrap().0, 401);

    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let busy = json!({"verb": "get", "resource": "nodes", "answer": {"status": {"code": 429, "retry_after": 1}}});
    let closed = json!({"verb": "get", "resource": "nodes", "answer": "close"});
    let order = json!({"put": [["", "nodes", node]], "faults": [busy, closed]});
    assert_eq!(
        api_request(&client, "POST", "/control", order).await.unwrap(),
        (200, json!({}))
    );
    assert_eq!(api_request(&client, "GET", path, Value::Null).await.unwrap().0, 429);
    assert!(api_request(&client, "GET", path, Value::Null).await.is_err());
    let (code, found) = api_request(&client, "GET", path, Value::Null).await.unwrap();
    assert_eq!((code, &found["metadata"]["name"]), (200, &json!("n")));

    let (code, refused) = api_request(&client, "POST", "/control", json!({"dwon": 3}))
        .await
        .unwrap();
    assert_eq!(code, 400);
    assert!(
        refused["error"].as_str().unwrap().contains("unknown field `dwon`"),
        "{refused}"
    );

    let (_, counts) = api_request(&client, "GET", "/control", Value::Null).await.unwrap();
    let count = &counts["counts"][0];
    assert_eq!(counts["requests"], 4);
    assert_eq!(
        (&count["requests"], &count["succeeded"], &count["unanswered"]),
        (&json!(4), &json!(1), &json!(1))
    );

    api_request(&client, "POST", "/control", json!({"down": 3600.0}))
        .await
        .unwrap();
    assert!(api_request(&client, "GET", path, Value::Null).await.is_err());
    api_request(&client, "POST", "/control", json!({"down": 0.0, "tokens": ["renewed"]}))
        .await
        .unwrap();
    assert_eq!(api_request(&client, "GET", path, Value::Null).await.unwrap().0, 401);
    assert_eq!(
        api_request(&program.client(Some("renewed")), "GET", path, Value::Null)
            .await
            .unwrap()
            .0,
        200
    );
}

#[test]
fn it_listens_on_loopback_alone() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-apiserver"));
    let run = command.args(["--listen", "0.0.0.0:0"]).output().unwrap();
    assert!(!run.status.success());
    assert!(String::from_utf8_lossy(&run.stderr).contains("not a loopback address"));
}
