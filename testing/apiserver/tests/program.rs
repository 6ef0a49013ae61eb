//! The server as a program: over HTTP, told what to do by `/control`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod shared;

use std::io::{BufRead, BufReader};
use std::path::Path;
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
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_test-apiserver"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ready: ").expect("where it listens");
        let address = address.to_owned();
        Self { child, address }
    }

    fn client(&self) -> Client {
        let mut config = Config::new(self.address.parse().unwrap());
        // Every answer is seen.
        config.default_retry = false;
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
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string().into_bytes())).unwrap();
    let response = client.send(request).await?;
    let code = response.status().as_u16();
    let text = response.into_body().collect_bytes().await?;
    Ok((code, serde_json::from_slice(&text).unwrap_or_default()))
}

#[tokio::test]
async fn it_is_told_what_to_do_and_tells_what_it_was_asked() {
    let program = Program::start();
    let client = program.client();
    let path = "/api/v1/nodes/n";
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let order = async |order| api_request(&client, "POST", "/control", order).await.unwrap();
    assert_eq!(order(json!({"put": [["", "nodes", node]]})).await, (200, json!({})));
    let (code, found) = api_request(&client, "GET", path, Value::Null).await.unwrap();
    assert_eq!((code, &found["metadata"]["name"]), (200, &json!("n")));
    let custom = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";
    assert_eq!(api_request(&client, "GET", custom, Value::Null).await.unwrap().0, 200);

    let (code, refused) = order(json!({"dwon": 3})).await;
    assert_eq!(code, 400);
    assert!(refused["error"].as_str().unwrap().contains("unknown field `dwon`"));

    order(json!({"down": 3600.0})).await;
    assert!(api_request(&client, "GET", path, Value::Null).await.is_err());
    order(json!({"down": 0.0})).await;
    let (_, counts) = api_request(&client, "GET", "/control", Value::Null).await.unwrap();
    let count = &counts["counts"][0];
    let numbers = ["requests", "succeeded", "unanswered"].map(|name| count[name].as_u64());
    assert_eq!(numbers, [Some(2), Some(1), Some(1)]);
}

#[test]
fn it_listens_on_loopback_alone() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-apiserver"));
    let run = command.args(["--listen", "0.0.0.0:0"]).output().unwrap();
    assert!(!run.status.success());
    assert!(String::from_utf8_lossy(&run.stderr).contains("not a loopback address"));
}

/// The lines of docs/cluster/publish.md, by kubectl.
#[tokio::test]
async fn the_documented_lines_have_a_nodes_vms_moved() {
    let page = include_str!("../../../docs/cluster/publish.md");
    let section = page.split_once("## RebindResources").unwrap().1;
    let lines = section.split_once("```sh\n").unwrap().1.split_once("```").unwrap().0;
    // This server has no schemas that kubectl reads.
    let lines = lines.replace("kubectl create", "kubectl create --validate=false");
    let program = Program::start();
    let folder = tempfile::TempDir::new().unwrap();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": program.address}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(folder.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
    let kubectl = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/tools/kubectl");
    let found = Command::new(kubectl).output().unwrap();
    let found = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    std::os::unix::fs::symlink(found, folder.path().join("kubectl")).unwrap();
    let mut shell = tokio::process::Command::new("bash");
    shell
        .args(["-exc", &lines])
        .env("KUBECONFIG", folder.path().join("kubeconfig"));
    shell
        .env("HOME", folder.path())
        .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
    let ended = shared::rebind::beside_a_willing_node(&program.client(), shell.output())
        .await
        .unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success(),
        "{printed}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    assert!(printed.contains("phase: Succeed"), "{printed}");
}
