//! QEMU's machine type `virt` plugs no vCPUs: a VM keeps those that it has, on as many CPUs as there are.

use serde_json::json;
use stelia_cpus::CpuSet;

use super::{INITRAMFS, grown, guest, make_linux, seen, until, until_counted, until_degraded, until_resized};
use crate::support::*;

/// What the runner says once it has tried.
fn until_impossible(pod: &Pod, to: usize) {
    let wanted = json!({"from": 2, "to": to, "outcome": "impossible"});
    until(pod, &format!("{to} vCPUs are impossible"), || {
        probe_state(pod)["resize"] == wanted
    });
}

#[test]
fn a_guest_that_plugs_no_vcpus_keeps_two_with_four_cpus_and_with_one() {
    needs_kvm();
    make_linux();
    on_node(|| {
        let pod = start_on(Accel::Kvm, "virt", "2", &[], &guest("2", INITRAMFS, KERNEL_WORDS)).running();
        until_counted(&pod, 2);
        let before = assert_isolated(&pod, 2).identities();
        let own = pod.exclusive();

        let pod = pod.resize("--cpuset", &grown(&own, 4).to_string());
        until_impossible(&pod, 4);
        assert_says(&pod.logs(), &["this machine type plugs no vCPUs"]);
        until_resized(&pod, 2);
        assert_eq!(assert_isolated(&pod, 2).identities(), before);

        let one: CpuSet = own.iter().take(1).collect();
        let pod = pod.resize("--cpuset", &one.to_string());
        until_impossible(&pod, 1);
        let is_packed = || pod.threads().vcpus.iter().all(|vcpu| vcpu.allowed == one);
        until(&pod, "its vCPUs share a CPU", is_packed);
        let reason = format!("2 vCPUs share the CPUs {one}");
        until_degraded(&pod, "that is said", |told| told.contains(&reason));

        let pod = pod.resize("--cpuset", &own.to_string());
        until_resized(&pod, 2);
        assert_eq!(assert_isolated(&pod, 2).identities(), before);
        let lived = alive(&pod);
        wait_until_or("the guest works on", || seen(&pod), || alive(&pod) > lived);
    });
}
