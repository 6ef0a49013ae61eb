//! A publisher with the token of its pod: what it may write, and that the API server refuses everything else.

use std::fs::{self, File};
use std::path::Path;

use http::Method;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use super::service::condition;
use super::{Installed, wait_until};
use crate::apiserver::{Api, ServerFailure};
use crate::real_cluster::nodes::{create_pods, vm};
use crate::simulated_cluster::node_kind::Kind;

const TOPOLOGIES: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/vms/events";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";

/// A request, and what it is to change.
struct Request {
    what: &'static str,
    method: Method,
    path: String,
    body: Option<(&'static str, Value)>,
}

impl Request {
    /// Of a line of [`REFUSED`].
    fn parse(line: &'static str) -> Self {
        let mut parts = line.splitn(4, " | ");
        let [what, method, path, body] = [(); 4].map(|()| parts.next().unwrap_or_default());
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let path = path.replace("TOPOLOGIES", TOPOLOGIES);
        match method {
            "apply" => apply(what, &path, body),
            "event" => event(what, &path, body),
            "patch" => patch(what, &path, body),
            method => Self {
                what,
                method: method.parse().expect("a method"),
                path,
                body: Some((JSON, body)).filter(|(_, body)| !body.is_null()),
            },
        }
    }
}

fn request(what: &'static str, method: Method, path: &str, body: (&'static str, Value)) -> Request {
    Request {
        what,
        method,
        path: path.to_owned(),
        body: Some(body),
    }
}

fn patch(what: &'static str, path: &str, change: Value) -> Request {
    request(what, Method::PATCH, path, (MERGE, change))
}

fn apply(what: &'static str, node: &str, metadata: Value) -> Request {
    let mut object =
        json!({"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": metadata});
    object["metadata"]["name"] = node.into();
    let path = format!("{TOPOLOGIES}/{node}?fieldManager=steliad&force=true");
    request(what, Method::PATCH, &path, (APPLY, object))
}

fn event(what: &'static str, instance: &str, regarding: Value) -> Request {
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "event-", "namespace": "vms"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "stelia.io/steliad",
        "reportingInstance": instance,
        "action": "Isolate",
        "reason": "Isolated",
        "type": "Normal",
        "regarding": regarding,
    });
    request(what, Method::POST, EVENTS, (JSON, event))
}

fn pod_of_vms(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "namespace": "vms", "name": name})
}

/// What a publisher of `node-0000` must not do, with all components applied: what it is, how, where, and what is written.
const REFUSED: &str = r#"another node's object | apply | node-0001 | {}
an object of no node | apply | node-9999 | {}
a finalizer of its object | apply | node-0000 | {"finalizers": ["example.com/stays"]}
another owner of its object | apply | node-0000 | {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "node-0000", "uid": "7"}]}
another node as owner of its object | apply | node-0000 | {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-0001", "uid": "7"}]}
delete another node's object | DELETE | TOPOLOGIES/node-0001
list objects | GET | TOPOLOGIES
another Node's label | patch | /api/v1/nodes/node-0001 | {"metadata": {"labels": {"stelia.io/ready": "true"}}}
another label of its Node | patch | /api/v1/nodes/node-0000 | {"metadata": {"labels": {"example.com/zone": "a"}}}
its Node's name of the host | patch | /api/v1/nodes/node-0000 | {"metadata": {"labels": {"kubernetes.io/hostname": "other"}}}
another annotation of its Node | patch | /api/v1/nodes/node-0000 | {"metadata": {"annotations": {"example.com/a": "b"}}}
a finalizer of its Node | patch | /api/v1/nodes/node-0000 | {"metadata": {"finalizers": ["example.com/stays"]}}
another taint of its Node | patch | /api/v1/nodes/node-0000 | {"spec": {"taints": [{"key": "example.com/t", "effect": "NoExecute"}]}}
its Node unschedulable | patch | /api/v1/nodes/node-0000 | {"spec": {"unschedulable": true}}
its Node's capacity | patch | /api/v1/nodes/node-0000/status | {"status": {"capacity": {"stelia.io/vm": "99"}}}
delete its Node | DELETE | /api/v1/nodes/node-0000
list Nodes | GET | /api/v1/nodes
the condition of a pod of another node | patch | /api/v1/namespaces/vms/pods/other/status | {"status": {"conditions": [{"type": "stelia.io/isolated", "status": "True"}]}}
another condition of its pod | patch | /api/v1/namespaces/vms/pods/own/status | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
the phase of its pod | patch | /api/v1/namespaces/vms/pods/own/status | {"status": {"phase": "Failed"}}
a label of its pod through the status | patch | /api/v1/namespaces/vms/pods/own/status | {"metadata": {"labels": {"a": "b"}}}
an annotation of its pod through the status | patch | /api/v1/namespaces/vms/pods/own/status | {"metadata": {"annotations": {"a": "b"}}}
the image of its pod | patch | /api/v1/namespaces/vms/pods/own | {"spec": {"containers": [{"name": "vm", "image": "other"}]}}
delete its pod | DELETE | /api/v1/namespaces/vms/pods/own
list pods | GET | /api/v1/pods
an event in another node's name | event | node-0001 | {"apiVersion": "v1", "kind": "Pod", "namespace": "vms", "name": "own"}
an event about a Node | event | node-0000 | {"apiVersion": "v1", "kind": "Node", "namespace": "vms", "name": "node-0000"}
list events | GET | /apis/events.k8s.io/v1/namespaces/vms/events
read a Secret | GET | /api/v1/namespaces/stelia-system/secrets/stelia-placement-tls
a token of another account | POST | /api/v1/namespaces/stelia-system/serviceaccounts/stelia-placement/token | {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
bind a pod | POST | /api/v1/namespaces/vms/pods/own/binding | {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "own"}, "target": {"kind": "Node", "name": "node-0000"}}"#;

async fn answer(api: &Api, request: &Request) -> Result<Value, ServerFailure> {
    let body = request.body.as_ref().map(|(kind, value)| (*kind, value));
    api.call(request.method.clone(), &request.path, body).await
}

async fn assert_refused(api: &Api, requests: &[Request], who: &str) {
    let mut allowed = Vec::new();
    for request in requests {
        match answer(api, request).await {
            Err(ServerFailure::Refused(403 | 422, text)) => println!("  {who}: {}: {text}", request.what),
            other => allowed.push(format!("{}: {other:?}", request.what)),
        }
    }
    assert_eq!(allowed, Vec::<String>::new(), "{who}");
}

/// The report of `node-0000`, as its daemon writes it; the lock says that the daemon lives.
fn report(folder: &str, object: &Value, pod: &Value) -> File {
    fs::create_dir(folder).expect("a folder");
    let metadata = &pod["metadata"];
    let publication = json!({
        "version": 1,
        "node": "node-0000",
        "ready": {"status": true, "reason": "Ready", "message": ""},
        "object": object,
        "pods": [{
            "uid": metadata["uid"], "namespace": "vms", "name": "own", "container": "vm", "state": "isolated", "isolated": true,
            "reason": "Isolated", "message": "no other task runs on this VM's CPUs", "since_us": 1_790_000_000_000_000_u64,
        }],
        "events": [],
    });
    fs::write(format!("{folder}/node.json"), publication.to_string()).expect("the report");
    let lock = File::create(format!("{folder}/lock")).expect("the lock");
    flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    lock
}

impl Installed {
    /// Binds the DaemonSet's pods to their nodes. Returns that of `node-0000`.
    async fn bind_publishers(&self, nodes: usize) -> Value {
        wait_until("the publishers' pods", async || {
            self.pods_of("stelia-publish").await.len() == nodes
        })
        .await;
        let node = |pod: &Value| {
            let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
            let field = &required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0];
            field.as_str().expect("the DaemonSet's node").to_owned()
        };
        let pods = self.pods_of("stelia-publish").await;
        for pod in &pods {
            self.bind(pod, &node(pod)).await;
        }
        let own = pods.into_iter().find(|pod| node(pod) == "node-0000");
        own.expect("a publisher of node-0000")
    }

    async fn create_vm_on(&self, name: &str, node: &str) -> Value {
        let mut pod = vm(name, "nobody", 2);
        pod["spec"]["readinessGates"] = json!([{"conditionType": "stelia.io/isolated"}]);
        create_pods(&self.plane.api, vec![pod]).await;
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target});
        let path = format!("/api/v1/namespaces/vms/pods/{name}");
        self.plane.create(&format!("{path}/binding"), &binding).await;
        self.read(&path).await.expect("the pod")
    }

    async fn read(&self, path: &str) -> Option<Value> {
        self.plane.api.call(Method::GET, path, None).await.ok()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_writes_what_its_node_is_and_nothing_else() {
    let mut cluster = Installed::start(2, &[Kind::Single]).await;
    let full = cluster.plane.path("stelia/overlays/full");
    cluster.kubectl(&["apply", "--warnings-as-errors", "-k", &full]);
    let taint = json!({"spec": {"taints": [{"key": "stelia.io/not-ready", "effect": "NoSchedule"}]}});
    let body = Some((MERGE, &taint));
    let api = cluster.plane.api.clone();
    let tainted = api.call(Method::PATCH, "/api/v1/nodes/node-0000", body).await;
    tainted.expect("the taint");
    let daemon = cluster.bind_publishers(2).await;
    let zones = cluster.nodes.forget("node-0000");
    let own = cluster.create_vm_on("own", "node-0000").await;
    cluster.create_vm_on("other", "node-0001").await;
    let server = cluster.plane.server.clone();
    let kubeconfig = cluster
        .account("publisher", "stelia-publish", Some(&daemon), &server)
        .await;
    cluster.account("unbound", "stelia-publish", None, &server).await;

    let path = format!("{TOPOLOGIES}/node-0000");
    api.call(Method::DELETE, &path, None).await.expect("the deletion");
    let folder = cluster.plane.path("publish");
    let _daemon_lives = report(&folder, &zones, &own);
    let program = std::env::var_os("STELIA_PUBLISH").expect("STELIA_PUBLISH: the program");
    let files = format!("--kubeconfig={kubeconfig} --directory={folder} --start-spread=0");
    let options = "--ready-label --remove-taint=stelia.io/not-ready --pod-conditions=gated --pod-events";
    let options: Vec<&str> = files.split(' ').chain(options.split(' ')).collect();
    cluster
        .plane
        .run_program("stelia-publish", Path::new(&program), &options);
    wait_until("the object, with its Node as owner", async || {
        let object = cluster.read(&path).await.unwrap_or_default();
        object["metadata"]["ownerReferences"][0]["name"] == "node-0000"
    })
    .await;
    wait_until("the Node's label, and no taint", async || {
        let node = cluster.read("/api/v1/nodes/node-0000").await.unwrap_or_default();
        node["metadata"]["labels"]["stelia.io/ready"] == "true"
            && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
    })
    .await;
    wait_until("the pod's condition", async || {
        let pod = cluster
            .read("/api/v1/namespaces/vms/pods/own")
            .await
            .unwrap_or_default();
        condition(&pod, "stelia.io/isolated") == Some("True")
    })
    .await;
    println!("  object, label, taint and condition are written");

    let publisher = cluster.plane.client("publisher");
    let requests: Vec<Request> = REFUSED.lines().map(Request::parse).collect();
    assert_refused(&publisher, &requests, "the publisher of node-0000").await;
    // The API server passes over the status in a request for the Node itself.
    let change = json!({"status": {"allocatable": {"cpu": "99"}}});
    let status = patch("its Node's status", "/api/v1/nodes/node-0000", change);
    let node = answer(&publisher, &status).await.expect("the Node");
    assert_eq!(node["status"]["allocatable"]["cpu"], "28");
    let allowed = event("an event of its own", "node-0000", pod_of_vms("own"));
    answer(&publisher, &allowed).await.expect("an event");
    let unbound = cluster.plane.client("unbound");
    let of_no_pod = [
        apply("the object of node-0000", "node-0000", json!({})),
        Request::parse(
            r#"the label of node-0000 | patch | /api/v1/nodes/node-0000 | {"metadata": {"labels": {"stelia.io/ready": "false"}}}"#,
        ),
        event("an event of node-0000", "node-0000", pod_of_vms("own")),
    ];
    assert_refused(&unbound, &of_no_pod, "a token of no pod").await;

    // The token ends with its pod.
    let name = daemon["metadata"]["name"].as_str().expect("a name");
    cluster.kubectl(&["-n", "stelia-system", "delete", "pod", name, "--wait=false"]);
    wait_until("the token of a deleted pod is refused", async || {
        matches!(answer(&publisher, &allowed).await, Err(ServerFailure::Refused(401, _)))
    })
    .await;
    let denied = cluster.plane.log("stelia-publish");
    assert!(!denied.contains("ValidatingAdmissionPolicy"), "{denied}");
}
