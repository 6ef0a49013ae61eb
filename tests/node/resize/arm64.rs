//! QEMU's machine type `virt` plugs no vCPUs: a VM keeps those that it has, on as many CPUs as there are.

use serde_json::json;
use stelia_cpus::CpuSet;

use super::{INITRAMFS, degraded, grown, guest, identities, make_linux, resize, seen, until_counted, until_resized};
use crate::kvm::needs_kvm;
use crate::runner::{probe_state, start_on};
use crate::support::guest::Accel;
use crate::support::host::wait_until_or;
use crate::support::linux_guest::{KERNEL_WORDS, alive};
use crate::support::pods::{Pod, on_node};
use crate::support::promise::assert_isolated;

/// What the runner says once it has tried.
fn until_impossible(pod: &Pod, to: usize) {
    let wanted = json!({"from": 2, "to": to, "outcome": "impossible"});
    wait_until_or(
        &format!("{to} vCPUs are impossible"),
        || seen(pod),
        || (probe_state(pod)["resize"] == wanted).then_some(()),
    );
}

#[test]
fn a_guest_that_plugs_no_vcpus_keeps_two_with_four_cpus_and_with_one() {
    needs_kvm();
    make_linux();
    on_node(|| {
        let pod = start_on(Accel::Kvm, "virt", "2", &[], &guest("2", INITRAMFS, KERNEL_WORDS));
        pod.wait_running();
        until_counted(&pod, 2);
        let before = identities(&assert_isolated(&pod, 2).vcpus);
        let own = pod.exclusive();

        let pod = resize(&pod, &grown(&own, 4).to_string());
        until_impossible(&pod, 4);
        assert!(
            pod.logs().contains("this machine type plugs no vCPUs"),
            "{}",
            pod.logs()
        );
        until_resized(&pod, 2);
        assert_eq!(identities(&assert_isolated(&pod, 2).vcpus), before);

        let one: CpuSet = own.iter().take(1).collect();
        let pod = resize(&pod, &one.to_string());
        until_impossible(&pod, 1);
        let is_packed = || pod.threads().vcpus.iter().all(|vcpu| vcpu.allowed == one);
        wait_until_or("its vCPUs share a CPU", || seen(&pod), || is_packed().then_some(()));
        let reason = format!("2 vCPUs share the CPUs {one}");
        wait_until_or(
            "that is said",
            || degraded(&pod),
            || degraded(&pod).contains(&reason).then_some(()),
        );
        println!("  {}", degraded(&pod));

        let pod = resize(&pod, &own.to_string());
        until_resized(&pod, 2);
        assert_eq!(identities(&assert_isolated(&pod, 2).vcpus), before);
        let lived = alive(&pod);
        wait_until_or(
            "the guest works on",
            || seen(&pod),
            || (alive(&pod) > lived).then_some(()),
        );
    });
}
