//! An API server and etcd on the node, with a key and a token that nobody else is told.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::real::common::image::write;
use crate::real::program;
use crate::support::host::{journal_of, output, run, wait_until_or};

/// The node's address, on the loopback device: kubelet takes none of 127.0.0.0/8.
const ADDRESS: &str = "192.0.2.1";
const SERVER: &str = "127.0.0.1:6443";
const FOLDER: &str = "/run/kubelet-node/api";
const TOKEN: &str = "of-the-tests";
/// kubelet makes it for its own port when it starts; here it signs service accounts' tokens as well.
const KEY: &str = "/var/lib/kubelet/pki/kubelet.key";
const UNITS: [&str; 2] = ["real-apiserver", "real-etcd"];

/// kubelet's flags for this server.
pub fn flags() -> String {
    format!("--kubeconfig={FOLDER}/kubeconfig --node-ip={ADDRESS}")
}

/// What kubelet reads when it starts, which it does before the server.
pub fn prepare() {
    output(&["ip", "link", "set", "lo", "up"]);
    output(&["ip", "address", "add", &format!("{ADDRESS}/32"), "dev", "lo"]);
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "node",
        "clusters": [{"name": "cluster", "cluster": {"server": format!("https://{SERVER}"), "insecure-skip-tls-verify": true}}],
        "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "node"}}],
        "users": [{"name": "node", "user": {"token": TOKEN}}],
    });
    write(&Path::new(FOLDER).join("kubeconfig"), &kubeconfig.to_string());
    write(
        &Path::new(FOLDER).join("tokens"),
        &format!("{TOKEN},node,node,system:masters\n"),
    );
}

pub fn start() {
    let etcd = "http://127.0.0.1:2379";
    let data = format!("--data-dir={FOLDER}/etcd");
    let (client, advertised) = (
        format!("--listen-client-urls={etcd}"),
        format!("--advertise-client-urls={etcd}"),
    );
    // Nothing has to outlive the node.
    let options = [
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        &data,
        &client,
        &advertised,
    ];
    start_unit("real-etcd", "etcd", &options);
    let options = [
        format!("--etcd-servers={etcd}"),
        format!("--cert-dir={FOLDER}/certificates"),
        "--secure-port=6443".into(),
        "--bind-address=127.0.0.1".into(),
        format!("--advertise-address={ADDRESS}"),
        "--endpoint-reconciler-type=none".into(),
        format!("--token-auth-file={FOLDER}/tokens"),
        "--authorization-mode=AlwaysAllow".into(),
        "--service-account-issuer=https://node".into(),
        format!("--service-account-key-file={KEY}"),
        format!("--service-account-signing-key-file={KEY}"),
        "--service-cluster-ip-range=10.0.0.0/24".into(),
        // Nobody makes the account that it would want for each pod.
        "--disable-admission-plugins=ServiceAccount".into(),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    start_unit("real-apiserver", "kube-apiserver", &options);
    wait_until_or("the API server is ready", journal, || {
        let (code, _) = call("GET", "/readyz", "application/json", &json!(null))?;
        (code == 200).then_some(())
    });
}

fn start_unit(unit: &str, name: &str, options: &[&str]) {
    let program = program(name).display().to_string();
    run(&[
        &["systemd-run", "--quiet", "--collect", "--unit", unit, &program],
        options,
    ]
    .concat());
}

pub fn stop() {
    for unit in UNITS {
        output(&["systemctl", "stop", unit]);
    }
    output(&["ip", "address", "delete", &format!("{ADDRESS}/32"), "dev", "lo"]);
    let _ = fs::remove_dir_all(FOLDER);
}

fn journal() -> String {
    journal_of(&UNITS)
}

/// A line for a shell of an administrator, which has kubectl and may do everything.
pub fn in_shell(line: &str) -> Output {
    let folder = program("kubectl").parent().map(Path::to_owned).unwrap_or_default();
    let path = format!("PATH={}:/usr/bin:/bin", folder.display());
    let (home, kubeconfig) = (format!("HOME={FOLDER}"), format!("KUBECONFIG={FOLDER}/kubeconfig"));
    output(&["env", &path, &home, &kubeconfig, "sh", "-c", line])
}

/// Code and body of an answer. The server speaks TLS only, with a certificate that it made itself.
pub fn call(method: &str, path: &str, kind: &str, body: &Value) -> Option<(u16, Value)> {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {SERVER}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let address = format!("OPENSSL:{SERVER},verify=0");
    let mut socat = Command::new("socat");
    let socat = socat.args(["-", &address]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut socat = socat.stderr(Stdio::null()).spawn().expect("socat");
    // It stays open until the answer is there: the server drops the request of a client that closes its side.
    let mut stdin = socat.stdin.take().expect("a pipe");
    let asked = stdin.write_all(request.as_bytes());
    let mut answer = String::new();
    let answered = socat.stdout.take().expect("a pipe").read_to_string(&mut answer);
    drop(stdin);
    socat.wait().expect("socat");
    asked.and(answered).ok()?;
    let (head, text) = answer.split_once("\r\n\r\n")?;
    let code = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((code, serde_json::from_str(text).unwrap_or_else(|_| text.into())))
}

/// A request that must succeed.
pub fn ask(method: &str, path: &str, kind: &str, body: &Value) -> Value {
    let (code, answer) = call(method, path, kind, body).unwrap_or_else(|| panic!("{method} {path}: no answer"));
    assert!((200..300).contains(&code), "{method} {path}: {code} {answer}");
    answer
}

/// An object; none while the server has no such.
pub fn get(path: &str) -> Option<Value> {
    let (code, answer) = call("GET", path, "application/json", &json!(null))?;
    (code == 200).then_some(answer)
}
