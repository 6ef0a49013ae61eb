//! An API server on the node, and what an administrator gives the programs that talk to it.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command};
use std::sync::Mutex;

use serde_json::{Value, json};

use super::http::exchange;
use super::{configure, put, run, wait_until};

pub const SERVER: &str = "127.0.0.1:6443";
pub const TOPOLOGIES: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";

static RUNNING: Mutex<Option<Child>> = Mutex::new(None);

/// Until [`stop`].
pub fn start() {
    let server = Command::new("/job/test-apiserver").args(["--listen", SERVER]).spawn();
    *RUNNING.lock().expect("no server") = Some(server.expect("an API server"));
    wait_until("the API server answers", || get("/control"));
}

pub fn stop() {
    if let Some(mut server) = RUNNING.lock().expect("a server").take() {
        let _ = server.kill();
        let _ = server.wait();
    }
}

/// The body of an answer. `None`: nobody answers, or not with success.
pub fn text(server: &str, method: &str, path: &str, body: &str) -> Option<String> {
    let stream = TcpStream::connect(server).ok()?;
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {server}");
    let answer = exchange(&stream, &stream, &head, body).ok()?;
    answer.is_success().then_some(answer.body)
}

pub fn ask(server: &str, method: &str, path: &str, body: &str) -> Option<Value> {
    text(server, method, path, body).map(|text| serde_json::from_str(&text).expect("JSON"))
}

pub fn get(path: &str) -> Option<Value> {
    ask(SERVER, "GET", path, "")
}

pub fn order(order: &Value) {
    ask(SERVER, "POST", "/control", &order.to_string()).expect("an order is carried out");
}

/// A client's configuration for this cluster, with this token.
pub fn kubeconfig(cluster: &Value, token: &str) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "node",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "node"}}],
        "users": [{"name": "node", "user": {"token": token}}],
    });
    config.to_string()
}

/// That of the package of this name, whose user and directory it made.
pub fn configure_package(package: &str) {
    let directory = package.strip_prefix("stelia-").expect("one of the cluster's packages");
    let file = format!("/etc/stelia/{directory}/kubeconfig");
    put(&file, kubeconfig(&json!({"server": format!("http://{SERVER}")}), "t"));
    run(&["chown", &format!("root:{package}"), &file]);
    run(&["chmod", "0640", &file]);
}

/// The daemon tells what schedulers need; the name that it gives the Node.
pub fn publish() -> String {
    configure("publish = \"stelia\"\n");
    let told = wait_until("the daemon tells", || {
        let text = fs::read_to_string("/run/stelia/publish/node.json").ok()?;
        let told: Value = serde_json::from_str(&text).ok()?;
        told["object"].is_object().then_some(told)
    });
    told["node"].as_str().expect("the Node's name").to_owned()
}
