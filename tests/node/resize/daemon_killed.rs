//! The daemon is killed while a VM shrinks and while it grows. systemd starts it again.

use stelia_cpus::CpuSet;

use super::trace::Trace;
use super::{
    INITRAMFS, PATIENT, TWO, assert_alone, assert_topology, degraded, grown, guest, make_linux, resize, seen, shown,
    until_resized,
};
use crate::contained::{configure, unconfigure};
use crate::crash::kill_daemon;
use crate::kvm::needs_kvm;
use crate::runner::{OTHER, probe_state, qmp, start_on};
use crate::support::guest::Accel;
use crate::support::host::{cpus, read, run, wait_until_or};
use crate::support::linux_guest::KERNEL_WORDS;
use crate::support::pods::{Pod, on_node};
use crate::support::promise::{assert_isolated, state};

/// The VM has so many vCPUs in the end, and everything is as if nothing had happened.
fn until_well(pod: &Pod, vcpus: usize) {
    until_resized(pod, vcpus);
    assert_isolated(pod, vcpus);
    assert_topology(pod, vcpus);
    assert_alone(pod);
    wait_until_or(
        "nothing is wrong",
        || degraded(pod),
        || (degraded(pod) == "[]").then_some(()),
    );
}

/// The daemon is killed; systemd starts it again.
fn kill() {
    let invocation = || run(&["systemctl", "show", "--value", "-p", "InvocationID", "steliad.service"]);
    let before = invocation();
    kill_daemon();
    wait_until_or("another daemon is started", invocation, || {
        (invocation() != before).then_some(())
    });
}

fn is_pending(pod: &Pod) -> bool {
    shown(pod)["pending_resize"][0].as_u64().expect("a number") > 0
}

#[test]
fn a_daemon_killed_while_a_vm_shrinks_or_grows_ends_it_well() {
    needs_kvm();
    make_linux();
    on_node(|| {
        configure(PATIENT);
        let qemu = [&guest(TWO, INITRAMFS, KERNEL_WORDS)[..], &OTHER].concat();
        let pod = start_on(Accel::Kvm, "killed", "2", &[], &qemu);
        pod.wait_running();
        until_resized(&pod, 2);
        let small = pod.exclusive().to_string();
        let large = grown(&pod.exclusive(), 4).to_string();

        // Before the daemon has seen kubelet's file, or just after.
        let pod = resize(&pod, &large);
        kill();
        until_well(&pod, 4);

        // A guest that is stopped answers nothing: the daemon waits for certain.
        qmp(&pod, r#"{"execute":"stop"}"#);
        let pod = resize(&pod, &small);
        wait_until_or("the daemon waits", || seen(&pod), || is_pending(&pod).then_some(()));
        assert_eq!(pod.threads().vcpus.len(), 4);
        kill();
        // The next one waits no longer: the VM leaves the CPUs at once, with all its vCPUs.
        let is_left = || cpus(&read(pod.vcpu().join("cpuset.cpus.effective"))) == cpus(&small);
        wait_until_or("the CPUs are left", || seen(&pod), || is_left().then_some(()));
        let reason = format!("4 vCPUs share the CPUs {small}");
        wait_until_or(
            "which is said",
            || degraded(&pod),
            || degraded(&pod).contains(&reason).then_some(()),
        );
        println!("  {}", degraded(&pod));
        assert_eq!((state(&pod).as_deref(), is_pending(&pod)), (Some("isolated"), false));
        let is_packed = || pod.threads().vcpus.iter().all(|thread| thread.allowed == cpus(&small));
        wait_until_or("its vCPUs share them", || seen(&pod), || is_packed().then_some(()));
        qmp(&pod, r#"{"execute":"cont"}"#);
        until_well(&pod, 2);

        // While the guest is paused for the vCPUs that are plugged. The next daemon pins them before they run, if it is there within 5 s.
        let lines = pod.logs().lines().count();
        let entries = Trace::entries("plugged", &cpus("0-7"), "vcpu_id >= 2");
        let pod = resize(&pod, &large);
        let is_begun = || {
            pod.logs()
                .lines()
                .skip(lines)
                .any(|line| line.contains("the VM is to have 4 vCPUs instead of 2"))
        };
        wait_until_or("the runner plugs vCPUs", || seen(&pod), || is_begun().then_some(()));
        kill();
        until_resized(&pod, 4);
        let entered: CpuSet = entries.end().iter().map(|entry| entry.cpu).collect();
        let is_late = pod.logs().contains("the new vCPUs are not pinned yet");
        println!(
            "  they entered the guest on {entered}{}",
            if is_late { ", late" } else { "" }
        );
        assert!(
            is_late || entered.is_subset(&pod.exclusive()),
            "{entered} {}",
            pod.logs()
        );
        until_well(&pod, 4);

        // While the guest is asked for its vCPUs.
        let pod = resize(&pod, &small);
        let is_asked =
            || probe_state(&pod)["resize"] == serde_json::json!({"from": 4, "to": 2, "outcome": "requested"});
        wait_until_or("the runner asks the guest", || seen(&pod), || is_asked().then_some(()));
        kill();
        until_well(&pod, 2);
        assert_eq!(probe_state(&pod)["resize"]["outcome"], "done");
        unconfigure();
    });
}
