//! The service over sockets: what kube-scheduler sends, what others send, and clients that are slow or broken.

mod calls;
mod preempt;
mod server;
mod tls;

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
use crate::placer::{Placer, PlacerOptions};
use crate::simulated_cluster::instance;
use crate::simulated_cluster::load;
use crate::simulated_cluster::node::Machine;
use crate::simulated_cluster::node_kind::Kind;

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

async fn served(paths: Paths, tls: Option<Tls>, bounds: Bounds) -> Served {
    let server = Server::default();
    instance::release_lease(&server);
    for (name, kind) in [("steliad", Kind::Steliad), ("kubelet", Kind::Single)] {
        let object = Machine::new(name.to_owned(), kind).object();
        server.put("topology.node.k8s.io", "noderesourcetopologies", object);
    }
    let args: Value = serde_json::from_str(&text("filter-args.json")).unwrap();
    let pod = server.put("", "pods", args["Pod"].clone());
    let version = pod["metadata"]["resourceVersion"].as_str().unwrap();
    let version = format!("{version:0>width$}", width = RECORDED.len());
    let api = Api::new(Client::new(server.clone(), "default"));
    let placer = Placer::new(api, PlacerOptions::default());
    let (dead, ended) = (CancellationToken::new(), CancellationToken::new());
    instance::run(&placer, instance::lease_claim(1), &dead, None);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = Service { paths, tls, bounds };
    tokio::spawn(serve(placer.clone(), listener, service, ended.clone()));
    until(async || placer.ready().is_ok()).await;
    Served {
        version,
        address,
        server,
        placer,
        ended,
        dead,
    }
}

/// Waits for this, for a minute.
async fn until(holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
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
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
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
    let length = body.len();
    let headers = format!("Host: x\r\nContent-Type: application/json\r\nContent-Length: {length}");
    format!("{method} {path} HTTP/1.1\r\n{headers}\r\n\r\n{body}").into_bytes()
}

impl Served {
    /// A recorded call about the pod, with the version that the pod has here.
    fn recorded(&self, name: &str) -> String {
        text(name).replace(RECORDED, &self.version)
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    fn publish(&self, machine: &Machine) {
        self.server
            .put("topology.node.k8s.io", "noderesourcetopologies", machine.object());
    }

    /// The answer to a POST that succeeds.
    async fn post(&self, path: &str, body: &str) -> Value {
        let (code, answer) = self.ask("POST", path, body).await;
        assert_eq!(code, 200, "{answer} to {body:.200}");
        json(&answer)
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        exchange(&mut self.connect().await, &request(method, path, body)).await
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|cause| panic!("{cause}: {text}"))
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
    served.publish(&steliad);
    served.publish(&kubelet);
    let args = served.recorded("filter-args.json");
    until(async || served.post("/filter", &args).await["NodeNames"] == serde_json::json!([])).await;
    served
}
