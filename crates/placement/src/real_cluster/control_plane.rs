//! etcd, kube-apiserver and the programs beside them as processes on loopback, from the binaries in `$STELIA_REAL`.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use stelia_credentials::Files;
use tempfile::TempDir;

use crate::apiserver::{Api, Failure};

/// How long a program has to answer for the first time.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Ticks of `/proc/PID/stat` in a second (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// A folder for the run, and what runs in it.
pub(super) struct ControlPlane {
    pub(super) api: Api,
    folder: TempDir,
    binaries: PathBuf,
    programs: Vec<Program>,
}

struct Program {
    name: &'static str,
    child: Child,
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for program in self.programs.iter_mut().rev() {
            let _ = program.child.kill();
            let _ = program.child.wait();
        }
    }
}

impl ControlPlane {
    /// Starts etcd and the API server, and defines what nodes and claims are written to.
    pub(super) async fn start() -> Self {
        let binaries = PathBuf::from(std::env::var_os("STELIA_REAL").expect("STELIA_REAL: the folder of the binaries"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let certificates = repository("tests/api/server");
        let made = Command::new(certificates)
            .args(["certificates", &path("tls")])
            .status()
            .expect("tests/api/server");
        assert!(made.success(), "no certificates");
        let (etcd, peer, port) = (free_port(), free_port(), free_port());
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
            "clusters": [{"name": "real", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "certificate-authority": path("tls/ca.crt"),
            }}],
            "users": [{"name": "admin", "user": {
                "client-certificate": path("tls/admin.crt"),
                "client-key": path("tls/admin.key"),
            }}],
        });
        fs::write(path("kubeconfig"), kubeconfig.to_string()).expect("the kubeconfig");
        let (client, files) = Files::client(Some(path("kubeconfig").into())).expect("a client");
        let mut plane = Self {
            api: Api::new(client).with_credentials(files),
            folder,
            binaries,
            programs: Vec::new(),
        };
        let etcd = format!("http://127.0.0.1:{etcd}");
        plane.run(
            "etcd",
            &[
                &format!("--data-dir={}", plane.path("etcd")),
                "--unsafe-no-fsync",
                "--log-level=error",
                &format!("--listen-client-urls={etcd}"),
                &format!("--advertise-client-urls={etcd}"),
                &format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            ],
        );
        plane.run(
            "kube-apiserver",
            &[
                &format!("--etcd-servers={etcd}"),
                "--bind-address=127.0.0.1",
                &format!("--secure-port={port}"),
                &format!("--client-ca-file={}", plane.path("tls/ca.crt")),
                &format!("--tls-cert-file={}", plane.path("tls/server.crt")),
                &format!("--tls-private-key-file={}", plane.path("tls/server.key")),
                "--authorization-mode=Node,RBAC",
                "--service-account-issuer=https://127.0.0.1",
                &format!("--service-account-key-file={}", plane.path("tls/server.crt")),
                &format!("--service-account-signing-key-file={}", plane.path("tls/server.key")),
                "--service-cluster-ip-range=10.0.0.0/24",
                // Nothing here makes ServiceAccounts or removes the taint of a new Node.
                "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
                "--profiling=false",
            ],
        );
        plane.wait_for_api().await;
        plane.define().await;
        plane
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Starts a program of `$STELIA_REAL`.
    fn run(&mut self, name: &'static str, arguments: &[&str]) {
        let program = self.binaries.join(name);
        self.run_program(name, &program, arguments);
    }

    fn run_program(&mut self, name: &'static str, program: &Path, arguments: &[&str]) {
        let log = fs::File::create(self.path(&format!("{name}.log"))).expect("a log");
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|cause| panic!("{}: {cause}", program.display()));
        self.programs.push(Program { name, child });
    }

    /// The last lines of a program's log.
    fn log(&self, name: &str) -> String {
        let log = fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    async fn wait_for_api(&self) {
        let started = Instant::now();
        while let Err(failure) = self
            .api
            .text(Duration::from_secs(5), Method::GET, "/readyz", None)
            .await
        {
            let log = self.log("kube-apiserver");
            assert!(started.elapsed() < START_TIMEOUT, "the API server: {failure}\n{log}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The namespaces, the CRD of NodeClaims as the documents say, and nodes' objects without a schema.
    async fn define(&self) {
        for namespace in ["stelia-system", "vms"] {
            let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            self.create("/api/v1/namespaces", &body).await;
        }
        let claims = repository("packaging/kubernetes/cluster/placement/base/crd.yaml");
        let claims: Value = serde_saphyr::from_str(&fs::read_to_string(claims).expect("the CRD")).expect("YAML");
        let topologies = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": "noderesourcetopologies.topology.node.k8s.io",
                "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
            },
            "spec": {
                "group": "topology.node.k8s.io",
                "scope": "Cluster",
                "names": {
                    "kind": "NodeResourceTopology",
                    "listKind": "NodeResourceTopologyList",
                    "plural": "noderesourcetopologies",
                    "singular": "noderesourcetopology",
                },
                "versions": [{"name": "v1alpha2", "served": true, "storage": true, "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}],
            },
        });
        for definition in [claims, topologies] {
            self.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition)
                .await;
        }
        for list in [
            "/apis/stelia.io/v1alpha1/nodeclaims",
            "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
        ] {
            let started = Instant::now();
            while let Err(failure) = self.api.call(Method::GET, list, None).await {
                assert!(started.elapsed() < START_TIMEOUT, "{list}: {failure}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    pub(super) async fn create(&self, list: &str, object: &Value) {
        create(&self.api, list, object).await;
    }

    /// Starts kube-scheduler with this configuration, which lacks the kubeconfig.
    pub(super) fn run_scheduler(&mut self, mut configuration: Value) {
        configuration["clientConnection"]["kubeconfig"] = self.path("kubeconfig").into();
        configuration["leaderElection"] = json!({"leaderElect": false});
        let file = self.path("scheduler.json");
        fs::write(&file, configuration.to_string()).expect("the configuration");
        self.run("kube-scheduler", &[&format!("--config={file}"), "--secure-port=0"]);
    }

    /// Starts stelia-placement, and waits until it leads. Returns its URL.
    pub(super) async fn run_placement(&mut self) -> String {
        let program = std::env::var_os("STELIA_PLACEMENT").expect("STELIA_PLACEMENT: the program");
        let address = format!("127.0.0.1:{}", free_port());
        let kubeconfig = self.path("kubeconfig");
        self.run_program(
            "stelia-placement",
            Path::new(&program),
            &[
                "--kubeconfig",
                &kubeconfig,
                "--listen",
                &address,
                "--lease-namespace",
                "stelia-system",
            ],
        );
        let started = Instant::now();
        while !is_leader(&address).await {
            let log = self.log("stelia-placement");
            assert!(
                started.elapsed() < START_TIMEOUT,
                "stelia-placement does not lead\n{log}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        format!("http://{address}")
    }

    /// CPU time of each program, in seconds.
    pub(super) fn cpu_seconds(&self) -> Vec<(&'static str, f64)> {
        let of = |program: &Program| -> f64 {
            let stat = fs::read_to_string(format!("/proc/{}/stat", program.child.id())).unwrap_or_default();
            let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
            // utime and stime.
            let ticks: u64 = fields
                .split_whitespace()
                .skip(11)
                .take(2)
                .filter_map(|ticks| ticks.parse::<u64>().ok())
                .sum();
            ticks as f64 / TICKS_PER_SECOND
        };
        self.programs
            .iter()
            .map(|program| (program.name, of(program)))
            .collect()
    }
}

/// Creates an object, whatever the API server is busy with.
pub(super) async fn create(api: &Api, list: &str, object: &Value) {
    loop {
        match api.call(Method::POST, list, Some(("application/json", object))).await {
            Ok(_) | Err(Failure::Conflict(_)) => return,
            Err(Failure::Busy { .. } | Failure::Unknown(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(failure) => panic!("{list}: {failure}"),
        }
    }
}

async fn is_leader(address: &str) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let Ok(mut stream) = tokio::net::TcpStream::connect(address).await else {
        return false;
    };
    let request = format!("GET /leader HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).await.is_ok()
        && stream.read_to_string(&mut answer).await.is_ok()
        && answer.starts_with("HTTP/1.1 200")
}

/// A port that was free a moment ago; nothing else here asks for one.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// A file of this repository.
pub(super) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
