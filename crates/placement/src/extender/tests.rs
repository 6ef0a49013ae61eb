//! The service over sockets: what kube-scheduler sends, what others send, and clients that are slow or broken.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use test_apiserver::Server;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;

use super::tls::Files;
use super::*;
use crate::apiserver::Api;
use crate::apiserver::lease::LeaseClaim;
use crate::placer::{Options, Placer};
use crate::simulation::crash;
use crate::simulation::load;
use crate::simulation::machine::Kind;
use crate::simulation::node::Machine;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(data(name)).unwrap()
}

/// The version of the pod in the recorded calls.
const RECORDED: &str = "184467";

/// A service with two nodes, and its address.
struct Served {
    /// The pod's version in the API server, in as many digits as the recorded one has.
    version: String,
    address: std::net::SocketAddr,
    server: Server,
    placer: Arc<Placer>,
    ended: CancellationToken,
    dead: CancellationToken,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.ended.cancel();
        self.dead.cancel();
    }
}

fn quick() -> Bounds {
    Bounds {
        connections: 8,
        headers: Duration::from_millis(500),
        idle: Duration::from_secs(4),
        body: Duration::from_millis(600),
        body_bytes: 1 << 20,
    }
}

async fn served(paths: Paths, tls: Option<Tls>, bounds: Bounds) -> Served {
    let server = Server::with_topologies().unwrap();
    server
        .define_yaml(include_str!(
            "../../../../packaging/kubernetes/cluster/placement/base/crd.yaml"
        ))
        .unwrap();
    for (name, kind) in [("steliad", Kind::Steliad), ("kubelet", Kind::Single)] {
        let object = Machine::new(name.to_owned(), kind).object();
        server.put("topology.node.k8s.io", "noderesourcetopologies", object);
    }
    let args: Value = serde_json::from_str(&text("filter-args.json")).unwrap();
    let pod = server.put("", "pods", args["Pod"].clone());
    let version = pod["metadata"]["resourceVersion"].as_str().unwrap();
    let version = format!("{version:0>width$}", width = RECORDED.len());
    let placer = Placer::new(
        Api::new(Client::new(server.clone(), "default")),
        "one".to_owned(),
        1,
        Options::default(),
    );
    let seat = LeaseClaim {
        namespace: "stelia-system".to_owned(),
        name: "stelia-placement".to_owned(),
        identity: "one".to_owned(),
    };
    let (dead, ended) = (CancellationToken::new(), CancellationToken::new());
    crash::run(&placer, seat, &dead, None);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(
        placer.clone(),
        listener,
        Service { paths, tls, bounds },
        ended.clone(),
    ));
    while placer.ready().is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Served {
        version,
        address,
        server,
        placer,
        ended,
        dead,
    }
}

async fn plain() -> Served {
    served(Paths::All, None, Bounds::default()).await
}

/// Sends bytes, and reads one answer: its code and body.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, request: &[u8]) -> (u16, String) {
    stream.write_all(request).await.unwrap();
    let mut read = Vec::new();
    loop {
        let mut part = [0u8; 4096];
        let count = stream.read(&mut part).await.unwrap();
        read.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("content-length: ")
                    .map(str::to_owned)
            });
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                let code = head.split(' ').nth(1).unwrap().parse().unwrap();
                return (code, body.to_owned());
            }
        }
        assert_ne!(count, 0, "the answer ends early: {text:?}");
    }
}

fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl Served {
    /// A recorded call about the pod, with the version that the pod has here.
    fn recorded(&self, name: &str) -> String {
        text(name).replace(RECORDED, &self.version)
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        exchange(&mut stream, &request(method, path, body)).await
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|cause| panic!("{cause}: {text}"))
}

#[tokio::test]
async fn kube_schedulers_calls_are_answered_as_it_expects() {
    let served = plain().await;
    // One connection for all, as Go's client keeps it.
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let (code, body) = exchange(&mut stream, served.recorded("filter.http").as_bytes()).await;
    assert_eq!((code, json(&body)), (200, json(&text("filter-result.json"))));
    let (code, body) = exchange(
        &mut stream,
        &request("POST", "/prioritize", &served.recorded("filter-args.json")),
    )
    .await;
    assert_eq!(code, 200, "{body}");
    let hosts: Vec<String> = json(&body)
        .as_array()
        .unwrap()
        .iter()
        .map(|host| host["Host"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(hosts, ["steliad", "kubelet", "worker-without-object"]);
    let scores: Vec<i64> = json(&body)
        .as_array()
        .unwrap()
        .iter()
        .map(|host| host["Score"].as_i64().unwrap())
        .collect();
    assert!(
        scores[..2].iter().all(|score| (1..=10).contains(score)) && scores[2] == 0,
        "{scores:?}"
    );
    let (code, body) = exchange(&mut stream, &request("POST", "/bind", &text("binding-args.json"))).await;
    assert_eq!((code, json(&body)), (200, json(&text("binding-result.json"))));
    // To another node: it is bound.
    let again = text("binding-args.json").replace("steliad", "kubelet");
    let (code, body) = exchange(&mut stream, &request("POST", "/bind", &again)).await;
    assert_eq!((code, json(&body)), (200, json(&text("binding-refused.json"))));
    let pod = served.server.object("", "pods", "tenant-a", "vm-1").unwrap();
    assert_eq!(pod["spec"]["nodeName"], "steliad");
}

/// UIDs of pods in the recorded calls: on the node `steliad`, on no node, on the node `kubelet`.
const VICTIM: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
const UNKNOWN: &str = "16fd2706-8baf-433b-82eb-8c7fada847da";
const KUBELETS: &str = "550e8400-e29b-41d4-a716-446655440000";

/// Two CPUs are left on each NUMA node of both nodes.
async fn full() -> Served {
    let served = plain().await;
    let other = "9b2c3d4e-0000-4000-8000-000000000001";
    let mut steliad = Machine::new("steliad".to_owned(), Kind::Steliad);
    let mut kubelet = Machine::new("kubelet".to_owned(), Kind::Single);
    for (ours, kubelets) in [(VICTIM, KUBELETS), (other, other)] {
        steliad.register(ours, 12, None).unwrap();
        kubelet.admit(kubelets, &load::pod("low", kubelets, 12, true)).unwrap();
    }
    for machine in [steliad, kubelet] {
        let object = machine.object();
        served
            .server
            .put("topology.node.k8s.io", "noderesourcetopologies", object);
    }
    let args = served.recorded("filter-args.json");
    while json(&served.ask("POST", "/filter", &args).await.1)["NodeNames"] != serde_json::json!([]) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    served
}

/// kube-scheduler would look for victims on a node of `FailedNodes`, find none, and take that for an error.
#[tokio::test]
async fn no_refusal_is_one_that_preemption_could_resolve() {
    let served = full().await;
    let (_, body) = served
        .ask("POST", "/filter", &served.recorded("filter-args.json"))
        .await;
    let result = json(&body);
    let refused = result["FailedAndUnresolvableNodes"].as_object().unwrap();
    assert_eq!(
        (refused.len(), &result["FailedNodes"]),
        (3, &serde_json::json!({})),
        "{body}"
    );
    assert_eq!((&result["Error"], served.placer.waiting()), (&"".into(), 1));
}

/// It is refused by every node, with the whole reason: an error would be retried for ever.
#[tokio::test]
async fn a_pod_that_no_node_could_take_is_refused_by_each_with_the_whole_reason() {
    let served = plain().await;
    let mut args = json(&served.recorded("filter-args.json"));
    let containers = args["Pod"]["spec"]["containers"].as_array_mut().unwrap();
    let name = "a-container-with-a-name-as-long-as-the-api-server-lets-it-be-63";
    let mut second = containers
        .iter()
        .find(|one| one.to_string().contains("stelia.io/vm"))
        .unwrap()
        .clone();
    second["name"] = name.into();
    containers.push(second);
    let (code, body) = served.ask("POST", "/filter", &args.to_string()).await;
    let result = json(&body);
    assert_eq!(
        (code, &result["Error"], &result["NodeNames"]),
        (200, &"".into(), &serde_json::json!([])),
        "{body}"
    );
    let refused = result["FailedAndUnresolvableNodes"].as_object().unwrap();
    assert_eq!(refused.len(), args["NodeNames"].as_array().unwrap().len());
    for why in refused.values() {
        let why = why.as_str().unwrap();
        assert!(
            why.contains(name) && why.ends_with("ask for stelia.io/vm: a pod has one VM"),
            "{why}"
        );
    }
}

/// Until the connection ends: what was answered, headers and all.
async fn whole(stream: &mut TcpStream, request: &[u8]) -> String {
    stream.write_all(request).await.unwrap();
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn an_instance_that_does_not_lead_closes_its_connections_and_stays_ready() {
    let served = plain().await;
    let mut kept = TcpStream::connect(served.address).await.unwrap();
    let (code, _) = exchange(
        &mut kept,
        &request("POST", "/filter", &served.recorded("filter-args.json")),
    )
    .await;
    assert_eq!(code, 200);
    // Another instance takes the Lease.
    let mut lease = served
        .server
        .object("coordination.k8s.io", "leases", "stelia-system", "stelia-placement")
        .unwrap();
    lease["spec"]["holderIdentity"] = "another".into();
    served.server.put("coordination.k8s.io", "leases", lease);
    while served.placer.ready().is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // What stands is closed, without another call on it.
    assert_eq!(kept.read(&mut [0u8; 1]).await.unwrap(), 0);
    for (verb, code) in [("filter", "200"), ("prioritize", "503"), ("bind", "200")] {
        let body = match verb {
            "bind" => text("binding-args.json"),
            _ => served.recorded("filter-args.json"),
        };
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        let answer = whole(&mut stream, &request("POST", &format!("/{verb}"), &body)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{answer}");
        assert!(
            answer.to_ascii_lowercase().contains("connection: close\r\n"),
            "{answer}"
        );
        assert!(answer.contains("another instance places pods"), "{answer}");
    }
    let asked = |path: &'static str| async {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        whole(&mut stream, &request("GET", path, "")).await
    };
    assert!(asked("/readyz").await.starts_with("HTTP/1.1 200"));
    assert!(asked("/leader").await.starts_with("HTTP/1.1 503"));
}

#[tokio::test]
async fn victims_are_kept_where_their_end_makes_room() {
    let served = full().await;
    let result = text("preempt-result.json");
    for args in ["preempt-args.json", "preempt-args-victims.json"] {
        let (code, body) = served.ask("POST", "/preempt", &served.recorded(args)).await;
        assert_eq!((code, json(&body)), (200, json(&result)), "{args}");
    }
    // A pod that kubelet gave its CPUs gives them back too.
    let args = served.recorded("preempt-args.json").replace(UNKNOWN, KUBELETS);
    let (_, body) = served.ask("POST", "/preempt", &args).await;
    let victims = &json(&body)["NodeNameToMetaVictims"];
    let names: Vec<&String> = victims.as_object().unwrap().keys().collect();
    assert_eq!(names, ["kubelet", "steliad"]);
    assert_eq!(
        victims["kubelet"],
        serde_json::json!({"Pods": [{"UID": KUBELETS}], "NumPDBViolations": 0})
    );
    // A pod without CPUs of its own goes wherever counting says.
    let shared = args
        .replace("\"4\"", "\"1500m\"")
        .replace("stelia.io/vm", "example.com/other");
    let (_, body) = served.ask("POST", "/preempt", &shared).await;
    assert_eq!(
        json(&body)["NodeNameToMetaVictims"].as_object().unwrap().len(),
        3,
        "{body}"
    );
}

#[tokio::test]
async fn nonsense_about_victims_is_an_error_and_nothing_else() {
    let served = full().await;
    let args = served.recorded("preempt-args.json");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        String::new(),
        "null".to_owned(),
        "{}".to_owned(),
        format!("{{\"Pod\":{deep}}}"),
        args[..args.len() - 2].to_owned(),
        args.replace("NodeNameToMetaVictims", "Other"),
        args.replace("\"4\"", "-1"),
        args.replace("\"NumPDBViolations\":1", "\"NumPDBViolations\":\"1\""),
        args.replace("{\"UID\"", "{\"Name\""),
        served.recorded("filter-args.json"),
    ] {
        let (code, answer) = served.ask("POST", "/preempt", &body).await;
        assert_eq!(code, 400, "{answer} to {body:.200}");
    }
    // What names nobody frees nothing.
    for (from, to) in [
        (format!("{{\"UID\":\"{VICTIM}\"}}"), String::new()),
        (VICTIM.to_owned(), "nobody".to_owned()),
        (VICTIM.to_owned(), String::new()),
        (format!("[{{\"UID\":\"{VICTIM}\"}}]"), "null".to_owned()),
        (
            format!("{{\"Pods\":[{{\"UID\":\"{VICTIM}\"}}],\"NumPDBViolations\":1}}"),
            "null".to_owned(),
        ),
    ] {
        let (code, answer) = served.ask("POST", "/preempt", &args.replace(&from, &to)).await;
        assert_eq!(
            (code, json(&answer)),
            (200, json(r#"{"NodeNameToMetaVictims":{}}"#)),
            "{to}"
        );
    }
    // The same pod a thousand times leaves once.
    let often = vec![format!("{{\"UID\":\"{VICTIM}\"}}"); 1000].join(",");
    let args = args.replace(&format!("{{\"UID\":\"{VICTIM}\"}}"), &often);
    let (code, answer) = served.ask("POST", "/preempt", &args).await;
    let pods = &json(&answer)["NodeNameToMetaVictims"]["steliad"]["Pods"];
    assert_eq!((code, pods.as_array().unwrap().len()), (200, 1000));
    assert_eq!(served.ask("GET", "/preempt", "").await.0, 405);
    assert_eq!(served.placer.reservation_counts(), Default::default());
}

#[tokio::test]
async fn it_tells_of_itself() {
    let served = plain().await;
    assert_eq!(served.ask("GET", "/healthz", "").await, (200, "ok\n".to_owned()));
    assert_eq!(served.ask("GET", "/readyz", "").await, (200, "ok\n".to_owned()));
    assert_eq!(served.ask("GET", "/leader", "").await, (200, "ok\n".to_owned()));
    served
        .ask("POST", "/filter", &served.recorded("filter-args.json"))
        .await;
    let (code, body) = served.ask("GET", "/explain?pod=tenant-a%2Fvm-1", "").await;
    let explained = json(&body);
    assert_eq!((code, &explained["fit"]), (200, &Value::from(2)), "{body}");
    assert_eq!(
        explained["best"][0]["placement"]["score"]["total"],
        explained["best"][0]["score"]
    );
    served.ask("POST", "/bind", &text("binding-args.json")).await;
    let (_, body) = served.ask("GET", "/explain?pod=tenant-a/vm-1", "").await;
    let claim = &json(&body)["claims"][0];
    assert_eq!(
        (claim["state"].as_str(), claim["cpus"].as_str()),
        (Some("unseen"), Some("2-5")),
        "{body}"
    );
    let (code, metrics) = served.ask("GET", "/metrics", "").await;
    assert_eq!(code, 200);
    for line in [
        "stelia_placement_binds_total 1",
        "stelia_placement_ready 1",
        "stelia_placement_nodes 2",
        "stelia_placement_claims{state=\"unseen\"} 1",
        "# EOF",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    assert_eq!(served.ask("GET", "/explain?pod=tenant-a/none", "").await.0, 404);
    assert_eq!(served.ask("GET", "/explain", "").await.0, 400);
    assert_eq!(served.ask("GET", "/filter", "").await.0, 405);
    assert_eq!(served.ask("GET", "/else", "").await.0, 404);
}

#[tokio::test]
async fn probes_are_answered_on_an_address_of_their_own() {
    let served = served(Paths::Probes, None, Bounds::default()).await;
    assert_eq!(served.ask("GET", "/readyz", "").await.0, 200);
    assert_eq!(served.ask("GET", "/leader", "").await.0, 200);
    assert_eq!(served.ask("GET", "/metrics", "").await.0, 200);
    assert_eq!(served.ask("POST", "/bind", &text("binding-args.json")).await.0, 404);
    assert_eq!(served.ask("GET", "/explain?pod=tenant-a/vm-1", "").await.0, 404);
}

#[tokio::test]
async fn nonsense_is_an_error_and_nothing_else() {
    let served = plain().await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let args = text("filter-args.json");
    let hostile = [
        String::new(),
        "null".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        deep.clone(),
        format!("{{\"Pod\":{deep},\"NodeNames\":[]}}"),
        args[..args.len() / 2].to_owned(),
        args.replace("\"4\"", "\"99999999999999999999999999\""),
        args.replace("\"4\"", "-1"),
        args.replace("\"containers\"", "\"container\""),
        text("filter-args-nodes.json"),
        "\u{0}\u{1}".to_owned(),
    ];
    for body in &hostile {
        let (code, answer) = served.ask("POST", "/filter", body).await;
        let result = json(&answer);
        let refused = result["Error"] != ""
            || result["NodeNames"]
                .as_array()
                .is_some_and(|names| !names.contains(&"steliad".into()));
        assert!(
            code == 200 && (refused || body.contains("\"container\"")),
            "{code} {answer} to {:.200}",
            body
        );
        assert_eq!(served.ask("POST", "/bind", body).await.0, 200);
        served.ask("POST", "/prioritize", body).await;
    }
    let (_, answer) = served.ask("POST", "/filter", &text("filter-args-nodes.json")).await;
    assert!(answer.contains("nodeCacheCapable must be true"), "{answer}");
    // Nothing was bound by it, and the next one is answered.
    assert_eq!(served.placer.reservation_counts(), Default::default());
    assert_eq!(
        json(&served.ask("POST", "/filter", &args).await.1),
        json(&text("filter-result.json"))
    );
}

#[tokio::test]
async fn slow_and_broken_clients_cost_themselves_alone() {
    let served = served(Paths::All, None, quick()).await;
    // As many as there are places for: they say nothing, a part of a header, a part of a body.
    let mut slow = Vec::new();
    for begin in [
        "",
        "POST /fil",
        "POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"Pod\"",
    ] {
        for _ in 0..3 {
            let mut stream = TcpStream::connect(served.address).await.unwrap();
            stream.write_all(begin.as_bytes()).await.unwrap();
            slow.push(stream);
        }
    }
    // Who comes next waits until they are thrown out, and is answered.
    assert_eq!(served.ask("GET", "/healthz", "").await.0, 200);
    for mut stream in slow {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        let rest = String::from_utf8_lossy(&rest).into_owned();
        assert!(rest.is_empty() || rest.contains(" 408 "), "{rest}");
    }
    // One that asks now and then is kept; one that says nothing after its first request is not.
    let mut kept = TcpStream::connect(served.address).await.unwrap();
    for _ in 0..3 {
        assert_eq!(exchange(&mut kept, &request("GET", "/healthz", "")).await.0, 200);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    assert_eq!(kept.read(&mut [0u8; 1]).await.unwrap_or(0), 0);
    // One that closes in the midst of it.
    let mut gone = TcpStream::connect(served.address).await.unwrap();
    gone.write_all(b"POST /bind HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        .await
        .unwrap();
    drop(gone);
    let (code, _) = served.ask("POST", "/filter", &" ".repeat((1 << 20) + 1)).await;
    assert_eq!(code, 413);
    let many: String = (0..200).map(|number| format!("X-{number}: y\r\n")).collect();
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let (code, _) = exchange(&mut stream, format!("GET /healthz HTTP/1.1\r\n{many}\r\n").as_bytes()).await;
    assert!(code == 431 || code == 400, "{code}");
    assert_eq!(served.ask("GET", "/healthz", "").await.0, 200);
}

#[tokio::test]
async fn at_the_end_what_was_begun_is_finished() {
    let served = plain().await;
    served.server.fail(test_apiserver::Fault::of(
        "create",
        "pods/binding",
        1,
        test_apiserver::Answer::delay(Duration::from_millis(300)),
    ));
    let address = served.address;
    let bind = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        exchange(&mut stream, &request("POST", "/bind", &text("binding-args.json"))).await
    });
    while served.placer.reservation_counts().binding == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    served.ended.cancel();
    let (code, body) = bind.await.unwrap();
    assert_eq!((code, json(&body)), (200, json(&text("binding-result.json"))));
}

fn files(clients: bool) -> Files {
    Files {
        certificate: data("tls/server.crt"),
        key: data("tls/server.key"),
        clients: clients.then(|| data("tls/ca.crt")),
    }
}

fn connector(with_certificate: bool) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let ca: Vec<_> = CertificateDer::pem_file_iter(data("tls/ca.crt"))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    roots.add_parsable_certificates(ca);
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match with_certificate {
        false => builder.with_no_client_auth(),
        true => {
            let own = CertificateDer::pem_file_iter(data("tls/client.crt"))
                .unwrap()
                .map(Result::unwrap)
                .collect();
            builder
                .with_client_auth_cert(own, PrivateKeyDer::from_pem_file(data("tls/client.key")).unwrap())
                .unwrap()
        }
    };
    TlsConnector::from(Arc::new(config))
}

async fn over_tls(served: &Served, with_certificate: bool) -> std::io::Result<()> {
    let stream = TcpStream::connect(served.address).await?;
    let name = ServerName::try_from("stelia-placement.stelia-system.svc").unwrap();
    let mut stream = connector(with_certificate).connect(name, stream).await?;
    // In TLS 1.3 the client's certificate is refused after the client's handshake is done.
    stream.write_all(&request("GET", "/healthz", "")).await?;
    let mut first = [0u8; 1];
    match stream.read(&mut first).await? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

#[tokio::test]
async fn over_tls_the_same() {
    let served = served(Paths::All, Some(Tls::new(files(false)).unwrap()), Bounds::default()).await;
    let mut stream = {
        let stream = TcpStream::connect(served.address).await.unwrap();
        let name = ServerName::try_from("stelia-placement.stelia-system.svc").unwrap();
        connector(false).connect(name, stream).await.unwrap()
    };
    let (code, body) = exchange(&mut stream, &request("POST", "/filter", &text("filter-args.json"))).await;
    assert_eq!((code, json(&body)), (200, json(&text("filter-result.json"))));
    // What does not speak TLS is closed, and costs the others nothing.
    let mut broken = TcpStream::connect(served.address).await.unwrap();
    broken.write_all(&request("GET", "/healthz", "")).await.unwrap();
    let mut rest = Vec::new();
    let _ = broken.read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("200"), "{rest:?}");
    let (code, _) = exchange(&mut stream, &request("GET", "/healthz", "")).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn who_has_no_certificate_of_the_authority_is_not_answered() {
    let served = served(Paths::All, Some(Tls::new(files(true)).unwrap()), Bounds::default()).await;
    assert!(over_tls(&served, false).await.is_err());
    assert!(over_tls(&served, true).await.is_ok());
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let wrong = |change: fn(&mut Files)| {
        let mut files = files(true);
        change(&mut files);
        Tls::new(files).map(drop).unwrap_err().to_string()
    };
    let error = wrong(|files| files.certificate = "/nonexistent".into());
    assert!(error.contains("/nonexistent"), "{error}");
    let error = wrong(|files| files.key = data("tls/client.key"));
    assert!(error.contains("client.key"), "{error}");
    let error = wrong(|files| files.clients = Some(data("README.md")));
    assert!(error.contains("README.md"), "{error}");
}
