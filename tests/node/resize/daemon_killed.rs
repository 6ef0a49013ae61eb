//! The daemon is killed while a VM shrinks and while it grows. systemd starts it again.

use serde_json::json;

use super::{
    INITRAMFS, PATIENT, TWO, assert_alone, assert_topology, grown, guest, make_linux, until, until_degraded,
    until_resized,
};
use crate::support::*;

/// The VM has so many vCPUs in the end, and everything is as if nothing had happened.
fn until_well(pod: &Pod, vcpus: usize) {
    until_resized(pod, vcpus);
    assert_isolated(pod, vcpus);
    assert_topology(pod, vcpus);
    assert_alone(pod);
    until_degraded(pod, "nothing is wrong", |told| told == "[]");
}

/// The daemon is killed; systemd starts it again.
fn kill() {
    let invocation = || property("InvocationID", "steliad.service");
    let before = invocation();
    kill_daemon();
    wait_until_or("another daemon is started", invocation, || invocation() != before);
}

fn is_pending(pod: &Pod) -> bool {
    !pod.described()["pending_resize"].is_null()
}

#[test]
fn a_daemon_killed_while_a_vm_shrinks_or_grows_ends_it_well() {
    needs_kvm();
    make_linux();
    configured(PATIENT, || {
        let qemu = [&guest(TWO, INITRAMFS, KERNEL_WORDS)[..], &OTHER].concat();
        let pod = start_on(Accel::Kvm, "killed", "2", &[], &qemu).running();
        until_resized(&pod, 2);
        let small = pod.exclusive().to_string();
        let large = grown(&pod.exclusive(), 4).to_string();

        // Before the daemon has seen kubelet's file, or just after.
        let pod = pod.resize("--cpuset", &large);
        kill();
        until_well(&pod, 4);

        // A guest that is stopped answers nothing: the daemon waits for certain.
        qmp(&pod, r#"{"execute":"stop"}"#);
        let pod = pod.resize("--cpuset", &small);
        until(&pod, "the daemon waits", || is_pending(&pod));
        assert_eq!(pod.threads().vcpus.len(), 4);
        kill();
        // The next one waits no longer: the VM leaves the CPUs at once, with all its vCPUs.
        let is_left = || pod.effective() == cpus(&small);
        until(&pod, "the CPUs are left", is_left);
        let reason = format!("4 vCPUs share the CPUs {small}");
        until_degraded(&pod, "which is said", |told| told.contains(&reason));
        assert_eq!((pod.state().as_deref(), is_pending(&pod)), (Some("isolated"), false));
        let is_packed = || pod.threads().vcpus.iter().all(|thread| thread.allowed == cpus(&small));
        until(&pod, "its vCPUs share them", is_packed);
        qmp(&pod, r#"{"execute":"cont"}"#);
        until_well(&pod, 2);

        // While the guest is paused for the vCPUs that are plugged. The next daemon pins them before they run, if it is there within 5 s.
        let lines = pod.logs().lines().count();
        let entries = Trace::entries("plugged", &cpus("0-7"), "vcpu_id >= 2");
        let pod = pod.resize("--cpuset", &large);
        let is_begun = || {
            let logs = pod.logs();
            logs.lines()
                .skip(lines)
                .any(|line| line.contains("the VM is to have 4 vCPUs instead of 2"))
        };
        until(&pod, "the runner plugs vCPUs", is_begun);
        kill();
        until_resized(&pod, 4);
        let entered = entries.entered();
        let is_late = pod.logs().contains("the new vCPUs are not pinned yet");
        assert!(
            is_late || entered.is_subset(&pod.exclusive()),
            "{entered} {}",
            pod.logs()
        );
        until_well(&pod, 4);

        // While the guest is asked for its vCPUs.
        let pod = pod.resize("--cpuset", &small);
        let wanted = json!({"from": 4, "to": 2, "outcome": "requested"});
        let is_asked = || probe_state(&pod)["resize"] == wanted;
        until(&pod, "the runner asks the guest", is_asked);
        kill();
        until_well(&pod, 2);
        assert_eq!(probe_state(&pod)["resize"]["outcome"], "done");
    });
}
