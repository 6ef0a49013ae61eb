//! The real API server and its etcd, on loopback, with certificates and a store of their own. Both end with the value.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

pub struct RealServer {
    folder: TempDir,
    programs: PathBuf,
    ports: [u16; 3],
    etcd: Option<Child>,
    server: Option<Child>,
    config: Config,
}

impl RealServer {
    pub async fn start() -> Self {
        let programs = std::env::var_os("STELIA_API")
            .expect("STELIA_API names the folder of both programs: make api-test sets it");
        let programs = PathBuf::from(programs);
        let folder = TempDir::new().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/api/server");
        let made = Command::new(&script).arg("certificates").arg(folder.path()).status();
        let made = made.await.unwrap();
        assert!(made.success(), "{}: {made}", script.display());
        // The server asks a core API server about tokens; here only certificates are used, and that one does not exist.
        let nowhere = kubeconfig(folder.path(), "https://127.0.0.1:1");
        std::fs::write(folder.path().join("nowhere"), &nowhere).unwrap();
        let ports = free_ports();
        let own =
            Kubeconfig::from_yaml(&kubeconfig(folder.path(), &format!("https://127.0.0.1:{}", ports[2]))).unwrap();
        let mut config = Config::from_custom_kubeconfig(own, &KubeConfigOptions::default())
            .await
            .unwrap();
        config.read_timeout = Some(Duration::from_secs(60));
        // As the publisher has it: what is tried again, and when, it decides.
        config.default_retry = false;
        let mut server = Self {
            folder,
            programs,
            ports,
            etcd: None,
            server: None,
            config,
        };
        server.start_etcd();
        server.start_server();
        server.ready().await;
        server
    }

    pub fn client(&self) -> Client {
        Client::try_from(self.config.clone()).unwrap()
    }

    /// Of a client with every right.
    pub fn kubeconfig(&self) -> String {
        kubeconfig(self.folder.path(), &format!("https://127.0.0.1:{}", self.ports[2]))
    }

    pub fn start_etcd(&mut self) {
        let [client, peer, _] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new(self.programs.join("etcd"));
        command.arg("--data-dir").arg(self.folder.path().join("store"));
        for (name, value) in [
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--initial-cluster", &format!("default={peer}")),
        ] {
            command.arg(name).arg(value);
        }
        // It is killed on purpose, but never loses the machine: what it wrote is there.
        command.arg("--unsafe-no-fsync");
        self.etcd = Some(self.spawn(command, "etcd.log"));
    }

    fn is_whole(&self) -> bool {
        self.programs.join("kube-apiserver").exists()
    }

    /// kube-apiserver where it is, else its part for custom resources.
    pub fn start_server(&mut self) {
        let is_whole = self.is_whole();
        let program = if is_whole {
            "kube-apiserver"
        } else {
            "apiextensions-apiserver"
        };
        let at = |name: &str| self.folder.path().join(name);
        let [etcd, _, port] = self.ports;
        let mut command = Command::new(self.programs.join(program));
        command.args([
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={port}"),
        ]);
        for (name, file) in [
            ("--tls-cert-file", "server.crt"),
            ("--tls-private-key-file", "server.key"),
            ("--client-ca-file", "ca.crt"),
        ] {
            command.arg(name).arg(at(file));
        }
        if is_whole {
            command.args([
                "--disable-admission-plugins=NamespaceLifecycle,ServiceAccount",
                "--service-account-issuer=https://127.0.0.1",
                "--service-cluster-ip-range=10.0.0.0/24",
            ]);
            command.arg("--service-account-key-file").arg(at("server.crt"));
            command.arg("--service-account-signing-key-file").arg(at("server.key"));
        } else {
            command.args([
                "--authentication-skip-lookup",
                // Both ask the core API server for objects.
                "--enable-priority-and-fairness=false",
                "--disable-admission-plugins=NamespaceLifecycle,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,\
                     ValidatingAdmissionPolicy,MutatingAdmissionPolicy",
            ]);
            for name in [
                "--kubeconfig",
                "--authentication-kubeconfig",
                "--authorization-kubeconfig",
            ] {
                command.arg(name).arg(at("nowhere"));
            }
        }
        self.server = Some(self.spawn(command, "server.log"));
    }

    pub async fn stop_etcd(&mut self) {
        self.etcd.take().unwrap().kill().await.unwrap();
    }

    pub async fn stop_server(&mut self) {
        self.server.take().unwrap().kill().await.unwrap();
    }

    /// Its informers wait for the core API server and are never ready.
    pub async fn ready(&mut self) {
        let client = self.client();
        for _ in 0..600 {
            let request = http::Request::get("/readyz?exclude=informer-sync").body(Vec::new());
            let request = request.unwrap();
            if client.request_text(request).await.is_ok_and(|text| text == "ok") {
                return;
            }
            for (child, log) in [(&mut self.etcd, "etcd.log"), (&mut self.server, "server.log")] {
                if let Some(ended) = child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                    panic!(
                        "{ended}: {}",
                        std::fs::read_to_string(self.folder.path().join(log)).unwrap()
                    );
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!(
            "not ready: {}",
            std::fs::read_to_string(self.folder.path().join("server.log")).unwrap()
        );
    }

    /// A CustomResourceDefinition, as YAML or JSON; returns when it is established and its path is there.
    pub async fn define(&self, client: &Client, definition: &str) {
        let request = http::Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions");
        let request = request.header("content-type", "application/yaml");
        let request = request.body(definition.as_bytes().to_vec()).unwrap();
        let created: Value = client.request(request).await.unwrap();
        let name = created["metadata"]["name"].as_str().unwrap().to_owned();
        let (group, version) = (
            created["spec"]["group"].as_str().unwrap(),
            created["spec"]["versions"][0]["name"].as_str().unwrap(),
        );
        let plural = created["spec"]["names"]["plural"].as_str().unwrap();
        loop {
            let request = http::Request::get(format!(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
            ));
            let found: Value = client.request(request.body(Vec::new()).unwrap()).await.unwrap();
            let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
            let established = conditions
                .into_iter()
                .any(|one| one["type"] == "Established" && one["status"] == "True");
            let list = http::Request::get(format!("/apis/{group}/{version}/{plural}"))
                .body(Vec::new())
                .unwrap();
            if established && client.request_text(list).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn spawn(&self, mut command: Command, log: &str) -> Child {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join(log))
            .unwrap();
        command
            .current_dir(self.folder.path())
            .kill_on_drop(true)
            .stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let program = command.as_std().get_program().to_owned();
        command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
    }
}

fn kubeconfig(folder: &Path, server: &str) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    format!(
        "apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: '{server}', certificate-authority: '{}'}}}}]
users: [{{name: test, user: {{client-certificate: '{}', client-key: '{}'}}}}]
",
        file("ca.crt"),
        file("admin.crt"),
        file("admin.key")
    )
}

/// Held together, so that they differ.
fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
