//! etcd, kube-apiserver and the programs beside them as processes on loopback, from the binaries in `$STELIA_REAL`.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stelia_credentials::{Files, Source};
use tempfile::TempDir;

use crate::apiserver::{Api, ServerFailure};

/// Limit of every wait. kube-scheduler tries a pod again after 300 s that nothing woke, so a wait for a pod's binding must be shorter.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Ticks of `/proc/PID/stat` in a second (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// What the API server does to objects that are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Without ServiceAccounts. The namespaces are made here.
    Bare,
    /// As an installed cluster, with NodeRestriction; kube-controller-manager is to make ServiceAccounts.
    Full,
}

/// A folder for the run, and what runs in it.
pub(super) struct ControlPlane {
    pub(super) api: Api,
    folder: TempDir,
    binaries: PathBuf,
    /// URL of the API server.
    pub(super) server: String,
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
    /// Starts etcd and the API server, and defines what nodes write.
    pub(super) async fn start(admission: Admission) -> Self {
        let binaries = PathBuf::from(std::env::var_os("STELIA_REAL").expect("STELIA_REAL: the folder of the binaries"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let certificates = repository("tests/api/server");
        let made = Command::new(certificates).args(["certificates", &path("tls")]).status();
        assert!(made.expect("tests/api/server").success(), "no certificates");
        let (etcd, peer, port) = (free_port(), free_port(), free_port());
        let server = format!("https://127.0.0.1:{port}");
        let admin = json!({"client-certificate": path("tls/admin.crt"), "client-key": path("tls/admin.key")});
        let kubeconfig = write_kubeconfig(folder.path(), "kubeconfig", &server, &admin);
        let (client, files) = Files::client(Source::Kubeconfig(kubeconfig.into())).expect("a client");
        let mut plane = Self {
            api: Api::new(client).with_credentials(files),
            folder,
            binaries,
            server,
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
        // Nothing here removes the taint of a new Node.
        let plugins = match admission {
            Admission::Bare => &["--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"][..],
            Admission::Full => &[
                "--disable-admission-plugins=TaintNodesByCondition",
                "--enable-admission-plugins=NodeRestriction",
            ],
        };
        let common: &[&str] = &[
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
            "--profiling=false",
        ];
        plane.run("kube-apiserver", &[common, plugins].concat());
        plane.wait_for_api().await;
        plane.define(admission).await;
        plane
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Writes a kubeconfig of this user, whose requests go to this URL. Returns its path.
    pub(super) fn write_kubeconfig(&self, name: &str, server: &str, user: &Value) -> String {
        write_kubeconfig(self.folder.path(), name, server, user)
    }

    /// A client with the kubeconfig of this name.
    pub(super) fn client(&self, kubeconfig: &str) -> Api {
        let (client, files) = Files::client(Source::Kubeconfig(self.path(kubeconfig).into())).expect("a client");
        Api::new(client).with_credentials(files)
    }

    /// Sends a signal to a program.
    pub(super) fn signal(&self, name: &str, signal: Signal) {
        let program = self.programs.iter().find(|program| program.name == name);
        let program = program.unwrap_or_else(|| panic!("{name} does not run"));
        kill_process(Pid::from_child(&program.child), signal).expect("a signal");
    }

    /// Kills a program.
    pub(super) fn kill(&mut self, name: &str) {
        let position = self.programs.iter().position(|program| program.name == name);
        let position = position.unwrap_or_else(|| panic!("{name} does not run"));
        let mut program = self.programs.remove(position);
        program.child.kill().expect("a signal");
        program.child.wait().expect("its end");
    }

    /// Runs a program of `$STELIA_REAL` to its end, as the administrator. Returns what it printed.
    pub(super) fn output(&self, name: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(self.binaries.join(name));
        command.args(arguments).env("KUBECONFIG", self.path("kubeconfig"));
        let output = command.output();
        let output = output.unwrap_or_else(|cause| panic!("{name}: {cause}"));
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} {arguments:?}: {text}");
        text.into_owned()
    }

    /// The folder of the programs.
    pub(super) fn binaries(&self) -> &Path {
        &self.binaries
    }

    /// Starts a program of `$STELIA_REAL`.
    pub(super) fn run(&mut self, name: &'static str, arguments: &[&str]) {
        let program = self.binaries.join(name);
        self.run_program(name, &program, arguments);
    }

    pub(super) fn run_program(&mut self, name: &'static str, program: &Path, arguments: &[&str]) {
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

    /// A program's log.
    pub(super) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    async fn wait_for_api(&self) {
        let timeout = Duration::from_secs(5);
        wait_until("the API server is ready", async || {
            self.api.text(timeout, Method::GET, "/readyz", None).await.is_ok()
        })
        .await;
    }

    /// The namespace of the pods, and nodes' objects without a schema; [`Admission::Bare`]: also the namespace that manifests define.
    async fn define(&self, admission: Admission) {
        let is_bare = admission == Admission::Bare;
        for namespace in ["vms", "stelia-system"].into_iter().take(if is_bare { 2 } else { 1 }) {
            let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            self.create("/api/v1/namespaces", &body).await;
        }
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
                "names": {"kind": "NodeResourceTopology", "plural": "noderesourcetopologies"},
                "versions": [{"name": "v1alpha2", "served": true, "storage": true, "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}],
            },
        });
        self.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &topologies)
            .await;
        let list = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";
        wait_until(list, async || self.api.call(Method::GET, list, None).await.is_ok()).await;
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
        let options = format!("--kubeconfig={kubeconfig} --listen={address} --lease-namespace=stelia-system");
        let options: Vec<&str> = options.split(' ').collect();
        self.run_program("stelia-placement", Path::new(&program), &options);
        wait_until("stelia-placement leads", async || is_leader(&address).await).await;
        format!("http://{address}")
    }

    /// CPU time of each program, and of the nodes, which this process plays, in seconds.
    pub(super) fn cpu_seconds(&self) -> Vec<(&'static str, f64)> {
        let programs = self.programs.iter().map(|program| (program.name, program.child.id()));
        let processes = programs.chain([("played nodes", std::process::id())]);
        processes.map(|(name, pid)| (name, cpu_seconds_of(pid))).collect()
    }
}

fn cpu_seconds_of(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    // utime and stime.
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS_PER_SECOND
}

fn write_kubeconfig(folder: &Path, name: &str, server: &str, user: &Value) -> String {
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "real",
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": "user"}}],
        "clusters": [{"name": "real", "cluster": {
            "server": server,
            "certificate-authority": folder.join("tls/ca.crt"),
        }}],
        "users": [{"name": "user", "user": user}],
    });
    let path = folder.join(name);
    fs::write(&path, kubeconfig.to_string()).expect("the kubeconfig");
    path.display().to_string()
}

/// Waits for something that must come.
pub(super) async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < TIMEOUT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Creates an object, whatever the API server is busy with.
pub(super) async fn create(api: &Api, list: &str, object: &Value) {
    loop {
        match api.call(Method::POST, list, Some(("application/json", object))).await {
            Ok(_) | Err(ServerFailure::Conflict(_)) => return,
            Err(ServerFailure::Busy { .. } | ServerFailure::Unknown(_)) => {
                tokio::time::sleep(Duration::from_millis(100)).await
            }
            Err(failure) => panic!("{list}: {failure}"),
        }
    }
}

pub(super) async fn is_leader(address: &str) -> bool {
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
pub(super) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// A file of this repository.
pub(super) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
