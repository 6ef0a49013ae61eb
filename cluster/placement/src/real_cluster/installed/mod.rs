//! A cluster on which everything is applied as docs/cluster/publish.md and docs/cluster/placement.md say, with kubectl, to an API server that enforces rights, Pod
//! Security, admission policies and flow control. Each program has the token of its ServiceAccount.

mod leaders;
mod publisher;
mod replacement;
mod rights;
mod service;
mod waiting;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use service::Forwarder;

use super::control_plane::{Admission, ControlPlane, free_port, is_leader, repository, wait_until};
use super::nodes::Nodes;
use crate::simulated_cluster::node_kind::Kind;

/// kube-controller-manager's part: what makes ServiceAccounts and pods, and what counts disruptions.
const CONTROLLERS: &str = "--controllers=serviceaccount-controller,root-ca-certificate-publisher-controller,deployment-controller,\
                           replicaset-controller,daemonset-controller,disruption-controller,garbage-collector-controller";
/// Names of the two instances of stelia-placement.
const INSTANCES: [&str; 2] = ["stelia-placement-a", "stelia-placement-b"];
const SYSTEM_PODS: &str = "/api/v1/namespaces/stelia-system/pods";

/// The control plane, its nodes, and the Service of stelia-placement.
struct Installed {
    plane: ControlPlane,
    nodes: Arc<Nodes>,
    service: Forwarder,
}

/// The first block of this kind (`yaml`, `sh`) after a sentence of a document.
fn block(document: &str, after: &str, kind: &str) -> String {
    let text = fs::read_to_string(repository(document)).expect("the document");
    let rest = text
        .split_once(after)
        .unwrap_or_else(|| panic!("{document} does not say: {after}"))
        .1;
    let (_, block) = rest.split_once(&format!("```{kind}\n")).expect("a block");
    block.split_once("\n```").expect("its end").0.to_owned() + "\n"
}

impl Installed {
    /// Starts the control plane, makes this many nodes, and applies what the documents say.
    async fn start(nodes: usize, kinds: &[Kind]) -> Self {
        let mut plane = ControlPlane::start(Admission::Full).await;
        let options = [
            CONTROLLERS.to_owned(),
            format!("--kubeconfig={}", plane.path("kubeconfig")),
            format!("--service-account-private-key-file={}", plane.path("tls/server.key")),
            format!("--root-ca-file={}", plane.path("tls/ca.crt")),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        plane.run("kube-controller-manager", &options.each_ref().map(String::as_str));
        let nodes = Nodes::create(&plane.api, nodes, kinds).await;
        let service = Forwarder::to_service(plane.api.clone()).await;
        let installed = Self { plane, nodes, service };
        installed.apply_manifests();
        for namespace in ["vms", "stelia-system"] {
            let account = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
            wait_until(&account, async || {
                installed.plane.api.call(Method::GET, &account, None).await.is_ok()
            })
            .await;
        }
        installed.nodes.start();
        installed
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.plane.output("kubectl", arguments)
    }

    /// The steps of both documents. A warning of the API server is an error.
    fn apply_manifests(&self) {
        let manifests = self.plane.path("stelia");
        let copied = Command::new("cp")
            .arg("-r")
            .arg(repository("packaging/cluster/kubernetes"))
            .arg(&manifests)
            .status();
        assert!(copied.expect("cp").success());
        let overlay = |name: &str, text: String| {
            let folder = format!("{manifests}/overlays/{name}");
            fs::create_dir_all(&folder).expect("the overlay");
            fs::write(format!("{folder}/kustomization.yaml"), text).expect("the overlay");
            self.kubectl(&["apply", "--warnings-as-errors", "-k", &folder]);
        };
        self.kubectl(&["label", "node", "--all", "stelia.io/steliad=true"]);
        overlay("mine", block("docs/cluster/publish.md", "Make the folder", "yaml"));
        self.make_secrets();
        overlay(
            "vms",
            block("docs/cluster/placement.md", "Save the following as", "yaml"),
        );
    }

    /// Runs the document's commands for the certificates and Secrets.
    fn make_secrets(&self) {
        let folder = self.plane.path("certificates");
        fs::create_dir(&folder).expect("a folder");
        let script = block("docs/cluster/placement.md", "Create two Secrets", "sh");
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("sh")
            .args(["-ec", &script])
            .current_dir(&folder)
            .env("KUBECONFIG", self.plane.path("kubeconfig"))
            .env("PATH", format!("{}:{path}", self.plane.binaries().display()))
            .output()
            .expect("sh");
        assert!(
            output.status.success(),
            "{script}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// A file that the document's commands made.
    fn certificate(&self, name: &str) -> String {
        self.plane.path(&format!("certificates/{name}"))
    }

    /// The pods of a Deployment or DaemonSet, by the label of its name.
    async fn pods_of(&self, name: &str) -> Vec<Value> {
        let path = format!("{SYSTEM_PODS}?labelSelector=app.kubernetes.io%2Fname%3D{name}");
        let pods = self.plane.api.call(Method::GET, &path, None).await.expect("pods");
        pods["items"].as_array().cloned().unwrap_or_default()
    }

    /// Binds a pod to a node.
    async fn bind(&self, pod: &Value, node: &str) {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let path = format!("{SYSTEM_PODS}/{name}/binding");
        self.plane.create(&path, &binding).await;
    }

    /// Writes a kubeconfig with a token of the account of this name, bound to this pod where one is given, for requests to this URL. Returns its path.
    async fn account(&self, name: &str, account: &str, pod: Option<&Value>, server: &str) -> String {
        let mut request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        });
        if let Some(pod) = pod {
            let metadata = &pod["metadata"];
            request["spec"]["boundObjectRef"] =
                json!({"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]});
        }
        let path = format!("/api/v1/namespaces/stelia-system/serviceaccounts/{account}/token");
        let body = Some(("application/json", &request));
        let answer = self.plane.api.call(Method::POST, &path, body).await.expect("a token");
        let token = answer["status"]["token"].as_str().expect("a token");
        let file = self.plane.path(&format!("{name}.token"));
        fs::write(&file, token).expect("the token");
        self.plane.write_kubeconfig(name, server, &json!({"tokenFile": file}))
    }

    /// Starts an instance of stelia-placement, whose requests go to this URL, as its Deployment does.
    async fn run_placement(&mut self, instance: usize, server: &str) {
        let name = INSTANCES[instance];
        let program = std::env::var_os("STELIA_PLACEMENT").expect("STELIA_PLACEMENT: the program");
        let kubeconfig = self.account(name, "stelia-placement", None, server).await;
        let (listen, probes) = (free_port(), free_port());
        // The API server takes no address of the loopback network for an endpoint.
        let address = format!("10.1.0.{}", instance + 1);
        self.service.add(&address, listen, probes);
        let options = [
            format!("--kubeconfig={kubeconfig}"),
            format!("--listen=127.0.0.1:{listen}"),
            format!("--probes=127.0.0.1:{probes}"),
            format!("--tls-cert={}", self.certificate("placement.crt")),
            format!("--tls-key={}", self.certificate("placement.key")),
            format!("--tls-client-ca={}", self.certificate("ca.crt")),
            "--lease-namespace=stelia-system".to_owned(),
            format!("--identity={name}"),
            "--service=stelia-placement".to_owned(),
            format!("--address={address}"),
        ];
        let options = options.each_ref().map(String::as_str);
        self.plane.run_program(name, Path::new(&program), &options);
    }

    /// Starts kube-scheduler with `vms.yaml` as it is, but for the Service's address.
    async fn run_scheduler(&mut self) {
        let kubeconfig = self
            .account("stelia-scheduler", "stelia-scheduler", None, &self.plane.server)
            .await;
        let file = repository("packaging/cluster/kubernetes/placement/scheduler/vms.yaml");
        let mut configuration: Value =
            serde_saphyr::from_str(&fs::read_to_string(file).expect("vms.yaml")).expect("YAML");
        configuration["clientConnection"]["kubeconfig"] = kubeconfig.into();
        let extender = &mut configuration["extenders"][0];
        extender["urlPrefix"] = format!("https://127.0.0.1:{}", self.service.port).into();
        extender["tlsConfig"] = json!({
            "serverName": "stelia-placement.stelia-system.svc",
            "caFile": self.certificate("ca.crt"),
            "certFile": self.certificate("scheduler.crt"),
            "keyFile": self.certificate("scheduler.key"),
        });
        let file = self.plane.path("scheduler.json");
        fs::write(&file, configuration.to_string()).expect("the configuration");
        self.plane
            .run("kube-scheduler", &[&format!("--config={file}"), "--secure-port=0"]);
    }

    /// Starts one instance of stelia-placement and the scheduler, and waits for the first to lead.
    async fn run_scheduling(&mut self) {
        let server = self.plane.server.clone();
        self.run_placement(0, &server).await;
        self.wait_for_leader().await;
        self.run_scheduler().await;
    }

    async fn wait_for_leader(&self) {
        let probes = self.service.probes();
        wait_until("an instance leads", async || {
            for address in &probes {
                if is_leader(address).await {
                    return true;
                }
            }
            false
        })
        .await;
    }

    /// Waits until this many pods have been bound since the start.
    async fn wait_for_bound(&self, count: usize) {
        let what = format!("{count} pods are bound");
        wait_until(&what, async || self.nodes.outcome().bound.len() >= count).await;
    }

    /// Asserts that no node refused a pod, and that no CPU was given twice.
    fn assert_whole(&self) {
        let outcome = self.nodes.outcome();
        assert_eq!((outcome.refused, outcome.twice), (Vec::new(), 0));
    }
}
