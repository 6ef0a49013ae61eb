//! The package of the placement beside the publisher's: its unit, in its sandbox, asked as kube-scheduler asks it, about the node as it is.

use std::fs;

use serde_json::{Value, json};

use crate::publisher_package::pods;
use crate::support::apiserver::{TOPOLOGIES, ask, get, order};
use crate::support::*;

/// Where its unit listens.
const EXTENDER: &str = "127.0.0.1:8890";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/stelia-placement";
const UID: &str = "00000000-0000-4000-8000-000000000711";

/// What is found as kubelet: who answers on its socket, with its configuration. It decides nothing; the stand-in does.
const LISTENER: &str = "kubelet-listener";
const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
const CONFIG: &str = "/run/kubelet-listener.yaml";

fn kubelet_listens() {
    let config = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncpuManagerPolicy: static\n\
                  reservedSystemCPUs: \"7\"\ntopologyManagerPolicy: none\n";
    put(CONFIG, config);
    fs::create_dir_all("/var/lib/kubelet/pod-resources").expect("a directory");
    let listen = format!(
        "import socket,signal; s = socket.socket(socket.AF_UNIX); s.bind('{SOCKET}'); s.listen(); signal.pause()"
    );
    let config = format!("--config={CONFIG}");
    let unit = format!("--unit={LISTENER}");
    run(&["systemd-run", "--quiet", &unit, "python3", "-c", &listen, &config]);
    wait_until("something listens as kubelet", || fs::metadata(SOCKET).ok());
}

fn undo() {
    output(&["systemctl", "stop", LISTENER]);
    let _ = fs::remove_dir_all("/var/lib/kubelet/pod-resources");
    let _ = fs::remove_file(CONFIG);
    output("dpkg --purge stelia-placement stelia-publish");
    apiserver::stop();
}

/// As it waits in the API server for a scheduler.
fn pending(name: &str, uid: &str, cpus: u32) -> Value {
    let resources = json!({"cpu": cpus.to_string(), "memory": "256Mi", "stelia.io/vm": "1"});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": name, "uid": uid},
        "spec": {
            "schedulerName": "stelia-scheduler",
            "containers": [{"name": "vm", "resources": {"limits": resources, "requests": resources}}],
        },
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    })
}

/// Whether this pod may go to this node, or the reason why not.
fn filter(pod: &Value, node: &str) -> Result<(), String> {
    let args = json!({"Pod": pod, "Nodes": null, "NodeNames": [node]});
    let answer = ask(EXTENDER, "POST", "/filter", &args.to_string()).expect("an answer");
    let failed = answer["FailedNodes"][node].as_str();
    let failed = failed.or(answer["FailedAndUnresolvableNodes"][node].as_str());
    match failed {
        Some(reason) => Err(reason.to_owned()),
        None => {
            assert_eq!(answer["NodeNames"], json!([node]), "{answer}");
            Ok(())
        }
    }
}

fn metric(name: &str) -> Option<u64> {
    let text = apiserver::text(EXTENDER, "GET", "/metrics", "")?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn a_vm_is_claimed_bound_and_its_claim_ends_when_the_node_shows_it() {
    on_node_undoing(undo, || {
        apiserver::start();
        run("dpkg -i /job/stelia-publish.deb /job/stelia-placement.deb");
        let is_active = |unit: &str| activity(unit) == "active";
        // Without a kubeconfig there is nothing to place.
        assert!(!is_active("stelia-placement"));
        apiserver::configure_package("stelia-publish");
        apiserver::configure_package("stelia-placement");
        put("/etc/stelia/publish/environment", "STELIA_START_SPREAD=0\n");
        kubelet_listens();
        let node = apiserver::publish();
        let the_node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        let vm = pending("placed", UID, 2);
        order(&json!({"put": [["", "nodes", the_node], ["", "pods", vm]]}));
        run("systemctl restart stelia-publish stelia-placement");
        let told = || run("journalctl -u stelia-placement -n 20 --no-pager");
        wait_until_or("it has read the cluster and leads", told, || {
            apiserver::text(EXTENDER, "GET", "/leader", "").map(drop)
        });
        let why = || format!(": {:?}; {}", filter(&vm, &node), told());
        wait_until_or("the node would take the VM", why, || filter(&vm, &node).ok());
        // The largest VM that it would take now; a larger one it would not, and says why.
        let sized = |cpus: u32| pending("sized", "00000000-0000-4000-8000-000000000712", cpus);
        let most = (2..=8).rev().find(|cpus| filter(&sized(*cpus), &node).is_ok());
        let most = most.expect("a size");
        filter(&sized(most + 1), &node).expect_err("more than the node has");

        let bind = json!({"PodName": "placed", "PodNamespace": "default", "PodUID": UID, "Node": node});
        let bound = ask(EXTENDER, "POST", "/bind", &bind.to_string()).expect("an answer");
        assert_eq!(bound["Error"], "", "{bound}");
        let pod = get("/api/v1/namespaces/default/pods/placed").expect("the pod");
        assert_eq!(pod["spec"]["nodeName"], json!(node));
        // Its CPUs are spoken for, although the node knows nothing of it yet.
        assert_eq!(metric("stelia_placement_claims{state=\"unseen\"}"), Some(1));
        filter(&sized(most), &node).expect_err("CPUs that are claimed");
        assert_eq!(filter(&sized(most - 2), &node), Ok(()), "what is left");

        // kubelet's turn, and then the node's own word.
        let vm = Pod::start_vm("placed", 2, &["--uid", UID]).running();
        let threads = assert_isolated(&vm, 2);
        let object = || get(&format!("{TOPOLOGIES}/{node}"));
        wait_until("the object has its CPUs", || {
            object().filter(|object| pods(object) == 1)
        });
        wait_until_or("the claim has ended", told, || {
            metric("stelia_placement_claims{state=\"unseen\"}") == Some(0)
        });
        assert_eq!(metric("stelia_placement_refused_total"), Some(0));
        assert!(filter(&sized(most), &node).is_err(), "the VM's CPUs are given away");

        // Removed: the Lease is given back, and no VM notices.
        let holder = || get(LEASE).expect("the Lease")["spec"]["holderIdentity"].clone();
        assert!(holder().as_str().is_some_and(|holder| !holder.is_empty()));
        run("dpkg --purge stelia-placement");
        assert!(holder().as_str().is_none_or(str::is_empty), "{}", holder());
        assert!(!is_active("stelia-placement"));
        assert_eq!(assert_isolated(&vm, 2), threads);
    });
}
