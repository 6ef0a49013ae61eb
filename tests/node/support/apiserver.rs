//! An API server on the node, and what an administrator gives the programs that talk to it.

use std::fs;
use std::net::TcpStream;

use serde_json::{Value, json};

use super::http::exchange;
use super::{configure, output, put, run, wait_until};

pub const SERVER: &str = "127.0.0.1:6443";
pub const TOPOLOGIES: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";

pub fn start() {
    run(&format!(
        "systemd-run --quiet --collect --unit=test-apiserver /job/test-apiserver --listen {SERVER}"
    ));
    wait_until("the API server answers", || get("/control"));
}

pub fn stop() {
    output("systemctl stop test-apiserver");
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
