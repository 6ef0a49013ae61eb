//! Two processes, of which the one that leads is stopped (SIGSTOP) in the midst of a bind, past its Lease. Takes a minute, so it is built with
//! the feature `stopped` alone: `make long-placement`.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use test_apiserver::{Answer, Fault, Server};

/// A process, killed at the end, stopped or not.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(kubeconfig: &std::path::Path) -> Self {
        // Free a moment ago; nobody else here asks for ports.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_stelia-placement"))
            .args([
                "--listen",
                &address.to_string(),
                "--lease-namespace",
                "stelia-system",
                "--kubeconfig",
            ])
            .arg(kubeconfig)
            .spawn()
            .unwrap();
        Self { child, address }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn becomes_ready(&self) {
        until("it is ready", || {
            self.ask("GET", "/leader", "")
                .is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        });
    }

    fn bind(&self, name: &str, uid: &str) -> Option<String> {
        let args = json!({"PodName": name, "PodNamespace": "vms", "PodUID": uid, "Node": "worker-1"});
        self.ask("POST", "/bind", &args.to_string())
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(300), "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn pod(name: &str, uid: &str) -> Value {
    let limits = json!({"cpu": "4", "memory": "1Gi", "stelia.io/vm": "1"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "vms", "name": name, "uid": uid},
        "spec": {"containers": [{"name": "vm", "image": "vm", "command": ["stelia-runner", "run", "--resource-status", "/podinfo/status"],
                                 "resources": {"limits": limits, "requests": limits}}]},
        "status": {"phase": "Pending"},
    })
}

/// Two CPUs reserved, four free.
fn node() -> Value {
    let attribute = r#"{"v":1,"topology":"0x6:0:0:0/2","reserved":"0-1","free":"2-5","policy":"none","allocator":{"policies":["LSE","FullPCPUs","None","None","MostAllocated","BestEffort"]}}"#;
    let cpu = json!({"name": "cpu", "capacity": "6", "allocatable": "4", "available": "4"});
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": "worker-1"},
        "attributes": [{"name": "isolation.stelia.io/node", "value": attribute}],
        "zones": [{"name": "node-0", "type": "Node", "resources": [cpu]}],
    })
}

/// As `test_apiserver::serve`, but what has arrived is carried out, also where nobody waits for the answer any more.
async fn serve(server: Server, listener: tokio::net::TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let server = server.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let server = server.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let request = Request::from_parts(head, Full::new(body));
                    tokio::spawn(async move { server.answer(request).await }).await.unwrap()
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

#[test]
fn what_a_leader_sent_before_it_was_stopped_counts_and_it_binds_nothing_when_it_wakes_up() {
    let server = Server::default();
    server.put("topology.node.k8s.io", "noderesourcetopologies", node());
    let (one, other) = (
        "00000000-0000-0000-0000-000000000001",
        "00000000-0000-0000-0000-000000000002",
    );
    server.put("", "pods", pod("one", one));
    server.put("", "pods", pod("other", other));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let api = listener.local_addr().unwrap();
    runtime.spawn(serve(server.clone(), listener));
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let cluster = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{api}")}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    std::fs::write(&kubeconfig, cluster.to_string()).unwrap();

    let first = Process::start(&kubeconfig);
    first.becomes_ready();
    let second = Process::start(&kubeconfig);
    // The first one's binding is on its way for so long: longer than the Lease lasts, and not for as long as the second one waits.
    server.fail(Fault::of(
        "create",
        "pods/binding",
        1,
        Answer::Delay(Duration::from_secs(25)),
    ));
    let bindings = || {
        let counts = server.counts();
        let of = |((verb, resource), count): (&(&str, String), &test_apiserver::Count)| {
            (*verb == "create" && resource == "pods/binding").then_some(count.requests)
        };
        counts.iter().find_map(of).unwrap_or(0)
    };
    let node_of = |name: &str| server.object("", "pods", "vms", name).unwrap()["spec"]["nodeName"].clone();
    std::thread::scope(|scope| {
        let bind = scope.spawn(|| first.bind("one", one));
        until("the binding is sent", || bindings() > 0);
        first.signal(Signal::STOP);
        second.becomes_ready();
        // There is room for one of the two only.
        let refused = second.bind("other", other).unwrap();
        assert!(!refused.ends_with("{\"Error\":\"\"}"), "{refused}");
        first.signal(Signal::CONT);
        let _any = bind.join().unwrap();
    });
    let refused = first.bind("other", other).unwrap();
    assert!(refused.contains("Lease"), "{refused}");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((node_of("one"), node_of("other")), ("worker-1".into(), Value::Null));
}
