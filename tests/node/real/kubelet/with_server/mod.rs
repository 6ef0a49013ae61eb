//! With an API server: a VM's CPUs resized in place, with and without kubelet's gate for exclusive CPUs.

mod server;

use std::fs;

use serde_json::{Value, json};

use super::frame::{beside_kubelet_undoing, change, state};
use super::manifest::{INSTANCE, emulated_vm, of_kubelet};
use crate::support::host::{run, wait_until, wait_until_or};
use crate::support::pods::Pod;
use crate::support::promise::{assert_isolated, state as state_of};
use server::{ask, call, get};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn path() -> String {
    format!("{PODS}/vm")
}

/// The pod is deleted however a test ends: no manifest's removal would end it.
struct Deleted;

impl Drop for Deleted {
    fn drop(&mut self) {
        let _ = call("DELETE", &path(), "application/json", &json!(null));
    }
}

/// The pod is bound when it is made: no scheduler is needed.
fn start_vm() -> Pod {
    let said = || {
        format!(
            "; the server says: {:?}",
            call("GET", "/api/v1/nodes/node", "application/json", &json!(null))
        )
    };
    wait_until_or("kubelet has registered its node", said, || get("/api/v1/nodes/node"));
    let mut manifest = emulated_vm("vm", 2);
    manifest["spec"]["nodeName"] = "node".into();
    manifest["spec"]["automountServiceAccountToken"] = false.into();
    ask("POST", PODS, "application/json", &manifest);
    let said = || format!("{}", get(&path()).unwrap_or_default()["status"]);
    let pod = wait_until_or("the VM's container runs", said, || of_kubelet(&get(&path())?, INSTANCE));
    pod.wait_running();
    pod
}

/// Asks for so many CPUs; the API server takes it, whatever kubelet does.
fn resize(count: &str) {
    let amounts = json!({"cpu": count});
    let containers = json!([{"name": INSTANCE, "resources": {"requests": amounts, "limits": amounts}}]);
    let patch = json!({"spec": {"containers": containers}});
    ask(
        "PATCH",
        &format!("{}/resize", path()),
        "application/strategic-merge-patch+json",
        &patch,
    );
}

/// A condition of the pod.
fn condition(kind: &str) -> Option<Value> {
    let conditions = get(&path())?["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|condition| condition["type"] == kind)
}

fn delete_vm(pod: &Pod) {
    call("DELETE", &path(), "application/json", &json!(null)).expect("an answer");
    wait_until("the pod is gone", || get(&path()).is_none().then_some(()));
    wait_until("no instance", || state_of(pod).is_none().then_some(()));
}

#[test]
fn a_resize_in_place_is_refused_without_the_gate_and_moves_no_cpu_with_it() {
    server::prepare();
    beside_kubelet_undoing(&json!({}), "", server::stop, || {
        server::start();
        let _deleted = Deleted;
        change(&json!({}), &server::flags());
        let vm = start_vm();
        let before = assert_isolated(&vm, 2);
        let entries = state()["entries"].clone();
        resize("3");
        let refused = wait_until("kubelet refuses", || condition("PodResizePending"));
        println!("  without the gate: {refused}");
        assert_eq!(refused["reason"], "Infeasible", "{refused}");
        run(&["steliactl", "reconcile"]);
        assert_eq!(state()["entries"], entries);
        assert_eq!(assert_isolated(&vm, 2).vcpus, before.vcpus);
        delete_vm(&vm);

        let gate = json!({"featureGates": {"InPlacePodVerticalScalingExclusiveCPUs": true}});
        change(&gate, &server::flags());
        let vm = start_vm();
        let before = assert_isolated(&vm, 2);
        let entries = state()["entries"].clone();
        resize("3");
        let status = || get(&path()).unwrap_or_default()["status"].clone();
        // Not the limit: kubelet sets no quota where CPUs are exclusive, and goes on to report the former one.
        let requested = || status()["containerStatuses"][0]["resources"]["requests"]["cpu"] == "3";
        wait_until_or(
            "kubelet has resized",
            || status().to_string(),
            || requested().then_some(()),
        );
        let said = status();
        println!("  with the gate: {}", said["containerStatuses"][0]["resources"]);
        println!("  conditions: {}", said["conditions"]);
        println!("  entries: {entries} before, {} after", state()["entries"]);
        for folder in [vm.origin(), vm.scope()] {
            let weight = fs::read_to_string(folder.join("cpu.weight"));
            println!("  {}: {weight:?}", folder.display());
        }
        // kubelet 1.36 admits it and leaves the container on the CPUs that it had.
        assert_eq!(state()["entries"], entries);
        run(&["steliactl", "reconcile"]);
        assert_eq!(assert_isolated(&vm, 2).vcpus, before.vcpus);
        println!("{}", run(&["steliactl", "verify"]));
        delete_vm(&vm);
    });
}
