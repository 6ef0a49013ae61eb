//! The package of the publisher beside the daemon: its unit, in its sandbox, against an API server on the node.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use stelia_koordinator::report::compact;

use crate::support::apiserver::{TOPOLOGIES, get, order};
use crate::support::*;

fn written(resource: &str) -> u64 {
    let told = get("/control").expect("counts");
    let counts = told["counts"].as_array().expect("counts").iter();
    let of = counts.filter(|count| count["verb"] == "patch" && count["resource"] == resource);
    of.filter_map(|count| count["succeeded"].as_u64()).sum()
}

fn attribute(object: &Value, name: &str) -> Option<String> {
    let attributes = object["attributes"].as_array()?;
    let found = attributes.iter().find(|attribute| attribute["name"] == name)?;
    found["value"].as_str().map(str::to_owned)
}

/// How many pods of the node have CPUs of their own.
pub fn pods(object: &Value) -> usize {
    let node = attribute(object, compact::ATTRIBUTE).expect("the compact attribute");
    let node = compact::Compact::parse(&node).expect("what NodeTopology wrote");
    node.pods.len()
}

fn condition(pod: &Pod) -> Option<Value> {
    let told = get(&format!("/api/v1/namespaces/default/pods/{}", pod.name))?;
    let mut conditions = told["status"]["conditions"].as_array()?.iter();
    conditions.find(|one| one["type"] == "stelia.io/isolated").cloned()
}

fn is_posted(pod: &Pod, reason: &str) -> bool {
    let told = get("/apis/events.k8s.io/v1/namespaces/default/events").expect("events");
    let mut all = told["items"].as_array().expect("items").iter();
    all.any(|event| event["regarding"]["uid"] == pod.uid && event["reason"] == reason)
}

fn undo() {
    output("dpkg --purge stelia-publish");
    apiserver::stop();
}

/// Name and UID of each VM.
const PODS: [(&str, &str); 2] = [
    ("told", "00000000-0000-4000-8000-000000000701"),
    ("other", "00000000-0000-4000-8000-000000000702"),
];

/// The pods in the API server, where they are before kubelet starts them.
fn known((name, uid): (&str, &str)) -> Value {
    json!(["", "pods", {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": name, "uid": uid},
        "spec": {"readinessGates": [{"conditionType": "stelia.io/isolated"}]}, "status": {},
    }])
}

#[test]
fn a_vm_and_its_end_are_in_the_api_server_and_an_outage_costs_one_write() {
    on_node_undoing(undo, || {
        apiserver::start();

        // The package, then what an administrator adds: the kubeconfig, what more is published.
        run("dpkg -i /job/stelia-publish.deb");
        apiserver::configure_package("stelia-publish");
        let options = "STELIA_START_SPREAD=0\nSTELIA_READY_LABEL=true\n\
                       STELIA_POD_CONDITIONS=gated\nSTELIA_POD_EVENTS=true\n";
        put("/etc/stelia/publish/environment", options);
        let node = apiserver::publish();
        let [first, second] = PODS;
        let the_node = json!(["", "nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}]);
        order(&json!({"put": [the_node, known(first), known(second)]}));
        restart("stelia-publish");
        let object = || get(&format!("{TOPOLOGIES}/{node}"));
        let empty = wait_until("the node's object is there", object);
        assert_eq!(pods(&empty), 0);
        assert_eq!(attribute(&empty, "isolation.stelia.io/state"), None);
        assert_eq!(empty["metadata"]["ownerReferences"][0]["kind"], "Node");
        let is_labelled = || {
            let node = get(&format!("/api/v1/nodes/{node}"))?;
            (node["metadata"]["labels"]["stelia.io/ready"] == "true").then_some(())
        };
        wait_until("the Node says that it is ready", is_labelled);

        // A VM: in the object when its CPUs are its own, with its condition and its event.
        let start = |(name, uid): (&str, &str)| Pod::start_vm(name, 2, &["--uid", uid]);
        let pod = start(first).running();
        wait_until("the object has its CPUs", || {
            object().filter(|object| pods(object) == 1)
        });
        let threads = assert_isolated(&pod, 2);
        let isolated = |status: &'static str| move |condition: &Value| condition["status"] == status;
        let seen = || format!("{:?}", condition(&pod));
        wait_until_or("its condition is True", seen, || {
            condition(&pod).filter(isolated("True"))
        });
        wait_until("its event is posted", || is_posted(&pod, "Isolated"));

        // The daemon restarts and nothing changes, so nothing is written. What the VM's start changed is written within 2 s.
        let before = wait_until("all that the VM changed is written", || {
            let now = written("noderesourcetopologies");
            sleep(Duration::from_secs(3));
            (written("noderesourcetopologies") == now).then_some(now)
        });
        restart("steliad");
        assert_eq!(assert_isolated(&pod, 2), threads);

        // The API server away while a VM comes and another goes: one write of the object afterwards, and no event is lost.
        order(&json!({"down": 3600}));
        pod.delete(0);
        let other = start(second).running();
        assert_isolated(&other, 2);
        // Neither by the restart nor by the outage.
        assert_eq!(written("noderesourcetopologies"), before);
        order(&json!({"down": 0}));
        let told = || run("journalctl -u stelia-publish -n 20 --no-pager");
        wait_until_or("its event is posted after the outage", told, || {
            is_posted(&other, "Isolated")
        });
        wait_until("so is the other's end", || is_posted(&pod, "Released"));
        wait_until("and its condition", || condition(&other).filter(isolated("True")));
        let after = written("noderesourcetopologies");
        assert!(after - before <= 1, "{before} {after}");

        // kubelet's file cannot be used: the object stands, and says so.
        let good = fs::read(STATE).expect(STATE);
        replace_state(b"{}");
        let state = || attribute(&object()?, "isolation.stelia.io/state");
        wait_until("the object says that it is not to be used", state);
        replace_state(&good);
        wait_until("it is to be used again", || state().is_none());

        // The package removed: the node takes back what it told.
        run("dpkg --purge stelia-publish");
        assert!(object().is_none(), "the object is still there");
        let left = get(&format!("/api/v1/nodes/{node}")).expect("the Node");
        assert!(left["metadata"]["labels"]["stelia.io/ready"].is_null(), "{left}");
        assert_isolated(&other, 2);
    });
}
