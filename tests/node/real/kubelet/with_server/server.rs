//! An API server and etcd on the node, with a key and a token that nobody else is told.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::real::program;
use crate::support::http::exchange;
use crate::support::*;

/// The node's address, on the loopback device: kubelet takes none of 127.0.0.0/8.
const ADDRESS: &str = "192.0.2.1";
const SERVER: &str = "127.0.0.1:6443";
const FOLDER: &str = "/run/kubelet-node/api";
const TOKEN: &str = "of-the-tests";
/// kubelet makes it for its own port when it starts; here it signs service accounts' tokens as well.
const KEY: &str = "/var/lib/kubelet/pki/kubelet.key";
const UNITS: [&str; 2] = ["real-apiserver", "real-etcd"];

pub fn flags() -> String {
    format!("--kubeconfig={FOLDER}/kubeconfig --node-ip={ADDRESS}")
}

/// What kubelet reads when it starts, which it does before the server.
pub fn prepare() {
    output("ip link set lo up");
    output(&format!("ip address add {ADDRESS}/32 dev lo"));
    let cluster = json!({"server": format!("https://{SERVER}"), "insecure-skip-tls-verify": true});
    let kubeconfig = apiserver::kubeconfig(&cluster, TOKEN);
    put_new(format!("{FOLDER}/kubeconfig"), kubeconfig);
    put(
        format!("{FOLDER}/tokens"),
        format!("{TOKEN},node,node,system:masters\n"),
    );
}

pub fn start() {
    let etcd = "http://127.0.0.1:2379";
    let data = format!("--data-dir={FOLDER}/etcd");
    // Nothing has to outlive the node.
    let peers = "--listen-peer-urls=http://127.0.0.1:2380 --unsafe-no-fsync";
    let options = format!("{peers} {data} --listen-client-urls={etcd} --advertise-client-urls={etcd}");
    start_unit("real-etcd", "etcd", &options);
    // Nobody makes the account that ServiceAccount would want for each pod.
    let options = format!(
        "--etcd-servers={etcd} --cert-dir={FOLDER}/certificates --secure-port=6443 --bind-address=127.0.0.1 \
         --advertise-address={ADDRESS} --endpoint-reconciler-type=none --token-auth-file={FOLDER}/tokens \
         --authorization-mode=AlwaysAllow --service-account-issuer=https://node --service-account-key-file={KEY} \
         --service-account-signing-key-file={KEY} --service-cluster-ip-range=10.0.0.0/24 \
         --disable-admission-plugins=ServiceAccount"
    );
    start_unit("real-apiserver", "kube-apiserver", &options);
    wait_until_or("the API server is ready", journal, || {
        call("GET", "/readyz", &json!(null)).is_some_and(|(code, _)| code == 200)
    });
}

fn start_unit(unit: &str, name: &str, options: &str) {
    let program = program(name).display().to_string();
    run(&format!(
        "systemd-run --quiet --collect --unit {unit} {program} {options}"
    ));
}

pub fn stop() {
    for unit in UNITS {
        output(&["systemctl", "stop", unit]);
    }
    output(&format!("ip address delete {ADDRESS}/32 dev lo"));
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
pub fn call(method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let body = Some(body).filter(|body| !body.is_null());
    let body = body.map_or_else(String::new, Value::to_string);
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {SERVER}\r\nAuthorization: Bearer {TOKEN}");
    let address = format!("OPENSSL:{SERVER},verify=0");
    let mut socat = Command::new("socat");
    let socat = socat.args(["-", &address]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut socat = socat.stderr(Stdio::null()).spawn().expect("socat");
    // Its input stays open until the answer is there: the server drops the request of a client that closes its side.
    let mut stdin = socat.stdin.take().expect("a pipe");
    let answer = exchange(&mut stdin, socat.stdout.take().expect("a pipe"), &head, &body);
    drop(stdin);
    socat.wait().expect("socat");
    let answer = answer.ok()?;
    let json = serde_json::from_str(&answer.body);
    Some((answer.status, json.unwrap_or_else(|_| answer.body.into())))
}

/// An object; none while the server has no such.
pub fn get(path: &str) -> Option<Value> {
    let (code, answer) = call("GET", path, &json!(null))?;
    (code == 200).then_some(answer)
}
