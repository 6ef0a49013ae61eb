//! With an API server: a VM's CPUs resized in place, with and without kubelet's gate for exclusive CPUs.

mod server;

use serde_json::{Value, json};

use super::frame::{beside_kubelet_undoing, start, stop};
use super::manifest::{INSTANCE, emulated_vm, of_kubelet, pod, sleeper};
use crate::support::*;
use server::{call, get};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn path(name: &str) -> String {
    format!("{PODS}/{name}")
}

/// The pods are deleted however a test ends: no manifest's removal would end it.
struct Deleted;

impl Drop for Deleted {
    fn drop(&mut self) {
        for name in ["vm", "other"] {
            let _ = call("DELETE", &path(name), &json!(null));
        }
    }
}

/// The pod is bound when it is made: no scheduler is needed.
fn make(mut manifest: Value) {
    manifest["spec"]["nodeName"] = "node".into();
    manifest["spec"]["automountServiceAccountToken"] = false.into();
    let (code, answer) = call("POST", PODS, &manifest).expect("an answer");
    assert!((200..300).contains(&code), "{code} {answer}");
}

fn delete(name: &str) {
    call("DELETE", &path(name), &json!(null)).expect("an answer");
    wait_until(&format!("{name} is gone"), || get(&path(name)).is_none());
}

fn start_vm() -> Pod {
    let node = "/api/v1/nodes/node";
    let said = || format!("; the server says: {:?}", call("GET", node, &json!(null)));
    wait_until_or("kubelet has registered its node", said, || get(node));
    make(emulated_vm("vm", 2));
    let said = || status().to_string();
    wait_until_or("the VM's container runs", said, || {
        of_kubelet(&get(&path("vm"))?, INSTANCE)
    })
    .running()
}

/// The pod's CPUs as its specification has them, and how often that was changed.
fn asked() -> (Value, Value) {
    let pod = get(&path("vm")).unwrap_or_default();
    let requests = &pod["spec"]["containers"][0]["resources"]["requests"];
    (requests["cpu"].clone(), pod["metadata"]["generation"].clone())
}

fn status() -> Value {
    get(&path("vm")).unwrap_or_default()["status"].clone()
}

/// Waits until kubelet puts the resize off, or refuses it, for this reason.
fn until_pending(reason: &str, generation: &Value) {
    let conditions = || status()["conditions"].to_string();
    let pending = wait_until_or(&format!("kubelet says {reason}"), conditions, || {
        let conditions = status()["conditions"].as_array()?.clone();
        let pending = conditions.into_iter().find(|one| one["type"] == "PodResizePending")?;
        (pending["observedGeneration"] == *generation).then_some(pending)
    });
    assert_eq!(pending["reason"], reason, "{pending}");
}

/// Waits until kubelet has admitted a resize. The limit does not tell: kubelet sets no quota for exclusive CPUs and reports the former one.
fn until_resized(cpus: u32) {
    let seen = || status().to_string();
    let expected = cpus.to_string();
    wait_until_or("kubelet has resized", seen, || {
        status()["containerStatuses"][0]["resources"]["requests"]["cpu"] == *expected
    });
}

/// A VM with 2 CPUs, and what there is of it before any resize.
struct Started {
    vm: Pod,
    threads: Threads,
    entries: Value,
}

impl Started {
    /// Beside a kubelet with these settings more.
    fn beside(settings: &Value) -> Self {
        stop();
        start(settings, &server::flags());
        let vm = start_vm();
        let (threads, entries) = (assert_isolated(&vm, 2), kubelet_state()["entries"].clone());
        Self { vm, threads, entries }
    }

    fn assert_as_before(&self) {
        reconcile();
        let vm = &self.vm.uid;
        assert_eq!(kubelet_state()["entries"][vm], self.entries[vm]);
        assert_eq!(assert_isolated(&self.vm, 2).vcpus, self.threads.vcpus);
    }

    /// `steliactl resize` changes nothing, with or without `--dry-run`, and says what to do instead; then the pod is resized in place by kubectl, whose
    /// words are the error where the API server refuses.
    fn try_to_resize(&self, cpus: u32) -> Result<(), String> {
        let (uid, cpus) = (&self.vm.uid, cpus.to_string());
        let planned = format!("steliactl -o json resize default/vm --cpus {cpus} --dry-run");
        let plan = json(&run(&planned));
        let expected = (&"planned".into(), &uid.as_str().into());
        assert_eq!((&plan["outcome"], &plan["pod_uid"]), expected, "{plan}");
        assert_eq!(plan["to"], self.vm.exclusive().to_string(), "{plan}");
        let fix = plan["fix"].as_str();
        assert!(fix.is_some_and(|fix| fix.contains("kubectl")), "{plan}");
        let before = asked();
        let out = output(&["steliactl", "resize", uid, "--cpus", &cpus]);
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert_eq!(asked(), before);

        let amounts = json!({ "cpu": cpus });
        let container = json!({"name": INSTANCE, "resources": {"requests": amounts, "limits": amounts}});
        let patch = json!({"spec": {"containers": [container]}});
        let out = server::in_shell(&format!(
            "kubectl patch pod vm -n default --subresource resize --patch '{patch}'"
        ));
        let told = said(&out).trim().to_owned();
        out.status.success().then_some(()).ok_or(told)
    }

    /// kubelet refuses it or puts it off, for this reason.
    fn resize_in_vain(&self, cpus: u32, reason: &str) {
        self.try_to_resize(cpus).expect("kubectl");
        until_pending(reason, &asked().1);
        self.assert_as_before();
    }

    /// kubelet 1.36 admits it and leaves the container on the CPUs that it had.
    fn resize(&self, cpus: u32) {
        self.try_to_resize(cpus).expect("kubectl");
        until_resized(cpus);
        self.assert_as_before();
    }

    /// More than the node has, and more than are free.
    fn resize_to_too_many(&self) {
        make(pod("other", &[sleeper("other", "4", "64Mi")]));
        let has_entry = || kubelet_state()["entries"].as_object().is_some_and(|all| all.len() == 2);
        wait_until_or("the other pod has its CPUs", || kubelet_state().to_string(), has_entry);
        let refused = self.try_to_resize(7).expect_err("the API server refuses");
        assert!(refused.contains("enough allocatable resources"), "{refused}");
        self.assert_as_before();
        self.resize_in_vain(4, "Deferred");
        delete("other");
    }

    fn end(&self) {
        delete("vm");
        self.vm.wait_released();
    }
}

/// What `steliactl resize` says of it, and what becomes of it when the pod is resized.
#[test]
fn a_resize_in_place_is_refused_without_the_gate_and_moves_no_cpu_with_it() {
    server::prepare();
    beside_kubelet_undoing(&json!({}), server::stop, || {
        server::start();
        let _deleted = Deleted;
        let changes_nothing = |settings: &Value, more: u32, reason: &str| {
            let started = Started::beside(settings);
            started.resize_in_vain(more, reason);
            started.resize_in_vain(1, reason);
            started.end();
        };
        changes_nothing(&json!({}), 3, "Infeasible");

        let mut gate = json!({"featureGates": {"InPlacePodVerticalScalingExclusiveCPUs": true}});
        let started = Started::beside(&gate);
        started.resize(3);
        started.resize(1);
        started.resize_to_too_many();
        started.end();

        // kubelet 1.36 has no hint for a container that has another number of CPUs than it asks for.
        gate["topologyManagerPolicy"] = "restricted".into();
        changes_nothing(&gate, 4, "Deferred");

        gate["topologyManagerPolicy"] = "none".into();
        gate["cpuManagerPolicyOptions"] = json!({"full-pcpus-only": "true"});
        changes_nothing(&gate, 3, "Deferred");
    });
}
