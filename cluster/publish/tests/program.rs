//! The program as it is started: by hand, by a script, by systemd. The API server is a socket on loopback.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, channel};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

const TOLD: &str = r#"{"version": 1, "node": "worker-1", "ready": {"status": true, "reason": "Ready", "message": ""},
    "object": {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": "worker-1"}, "zones": []},
    "pods": [], "events": []}"#;

/// One request from a connection: its first line.
fn request(stream: &mut impl Read) -> Option<String> {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let whole = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = whole.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(head.lines().next().unwrap().to_owned());
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(read) => text.extend_from_slice(&buffer[..read]),
        }
    }
}

/// An API server that answers so. Each connection has a thread: the client may open one and send nothing on it.
fn server(answer: fn(&str) -> (u16, &'static str)) -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            std::thread::spawn(move || {
                let Some(line) = request(&mut stream) else { return };
                let (code, body) = answer(&line);
                let length = body.len();
                let head = format!("HTTP/1.1 {code} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                // Before the answer, so that who has the answer finds the request.
                let _ = sender.send(line);
                stream.write_all((head + body).as_bytes()).unwrap();
            });
        }
    });
    (port, receiver)
}

fn healthy(line: &str) -> (u16, &'static str) {
    let object =
        r#"{"metadata": {"uid": "7", "resourceVersion": "1", "labels": {"app.kubernetes.io/managed-by": "steliad"}}}"#;
    (200, if line.starts_with("GET") { object } else { "{}" })
}

/// The daemon's folder and a kubeconfig; the lock is held as long as the file lives.
fn node(folder: &Path, port: u16) -> File {
    std::fs::write(folder.join("node.json"), TOLD).unwrap();
    let lock = File::create(folder.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let kubeconfig = format!(
        "current-context: c\nclusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
    );
    std::fs::write(folder.join("kubeconfig"), kubeconfig).unwrap();
    lock
}

fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stelia-publish"));
    command.arg("--directory").arg(folder);
    command.arg("--kubeconfig").arg(folder.join("kubeconfig"));
    command
}

fn standard_error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What it says when it ends with 1.
fn failed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    standard_error(&output)
}

#[test]
fn once_publishes_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (port, requests) = server(healthy);
    let _lock = node(folder.path(), port);
    let output = program(folder.path()).arg("--once").output().unwrap();
    assert!(output.status.success(), "{}", standard_error(&output));
    let requests: Vec<String> = requests.try_iter().collect();
    assert_eq!(
        requests,
        [
            "GET /api/v1/nodes/worker-1 HTTP/1.1",
            "PATCH /apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/worker-1?&fieldManager=steliad HTTP/1.1"
        ]
    );

    let error = failed(program(folder.path()).args(["--once", "--node-name=worker-2"]));
    assert!(error.contains("of node \"worker-1\""), "{error}");
}

#[test]
fn withdrawing_says_what_was_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let (port, requests) = server(healthy);
    let lock = node(folder.path(), port);
    let output = program(folder.path()).arg("--withdraw").output().unwrap();
    assert!(output.status.success(), "{}", standard_error(&output));
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(told, "taken back: the NodeResourceTopology\n");
    assert!(requests.try_iter().any(|line| line.starts_with("DELETE ")));

    // A lock is held until its file is closed.
    drop(lock);
    let (port, _requests) = server(|_| (403, r#"{"kind": "Status", "code": 403, "message": "not for you"}"#));
    let _lock = node(folder.path(), port);
    let error = failed(program(folder.path()).arg("--withdraw"));
    assert!(error.contains("not taken back") && error.contains("not for you"));
}

#[test]
fn without_credentials_or_a_file_it_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let error = failed(program(folder.path()).arg("--once"));
    assert!(error.contains("kubeconfig"), "{error}");

    let _lock = node(folder.path(), 1);
    std::fs::remove_file(folder.path().join("node.json")).unwrap();
    for argument in ["--once", "--withdraw"] {
        let error = failed(program(folder.path()).arg(argument));
        assert!(error.contains("steliad tells no"), "{error}");
    }
    let output = program(folder.path()).arg("--nonsense").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn it_runs_until_it_is_told_to_end_with_options_from_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let (port, requests) = server(healthy);
    let _lock = node(folder.path(), port);
    let mut running = program(folder.path())
        .env("STELIA_START_SPREAD", "0")
        .env("STELIA_READY_LABEL", "true")
        .env("STELIA_POD_EVENTS", "false")
        .env("STELIA_LOG_FORMAT", "json")
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let seen: Vec<String> = (0..3).map(|_| requests.recv().unwrap()).collect();
    assert!(seen[2].starts_with("PATCH /api/v1/nodes/worker-1?"), "{seen:?}");
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    assert!(running.wait().unwrap().success());
    assert!(requests.try_recv().is_err(), "no events");
    let mut error = String::new();
    running.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    let first: serde_json::Value = serde_json::from_str(error.lines().next().unwrap()).unwrap();
    assert_eq!(first["fields"]["message"], "publishes node worker-1");
}
