//! Guests that keep their vCPUs: they share the CPUs that are left, and the reason is said everywhere.

use stelia_cpus::CpuSet;

use super::agent::{PORT, RUNNER, asked};
use super::{FOUR, INITRAMFS, assert_topology, degraded, guest, identities, make_linux, resize, said, until_counted};
use crate::contained::{configure, unconfigure};
use crate::kvm::needs_kvm;
use crate::publisher_file::{told, wait_told};
use crate::runner::{probe_state, start_on};
use crate::support::guest::Accel;
use crate::support::host::{cpus, output, read, wait_until_or};
use crate::support::linux_guest::{KERNEL_WORDS, make_initramfs, serial};
use crate::support::pods::{Pod, on_node};
use crate::support::promise::{assert_isolated, is_isolated};

const FAULTY_INITRAMFS: &str = "/job/guest-faulty";

/// It lives for a moment, and then its kernel panics: it hears nothing any more.
const FAULTY_INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t sysfs sys /sys
read -r online < /sys/devices/system/cpu/online
echo "ALIVE 1 $online END" > /dev/console
$b sleep 1
"#;

/// Why the VM is degraded.
const REASON: &str = "none has one of its own; the guest did not give up vCPUs in time";
/// The cluster is told, and the guest has as much time as it has by default.
const SETTINGS: &str = "publish = \"stelia\"\nunplug-timeout-s = 10\n";

/// It has 4 vCPUs, is to have 2 CPUs, and gives up none: its vCPUs share 2 CPUs until it has 4 again.
fn keeps(pod: &Pod) -> Pod {
    let before = identities(&pod.threads().vcpus);
    let all = pod.exclusive().to_string();
    let set: CpuSet = pod.exclusive().iter().take(2).collect();
    let pod = resize(pod, &set.to_string());
    let seen = || format!(": {}\n{}", probe_state(&pod), pod.logs());
    wait_until_or("the refusal is said", seen, || {
        (probe_state(&pod)["resize"]["outcome"] == "refused").then_some(())
    });
    let refused = "the guest gave up 0 of the 2 vCPUs that it was asked for";
    assert!(pod.logs().contains(refused), "{}", pod.logs());
    assert_eq!(identities(&pod.threads().vcpus), before);
    let vcpu = |file: &str| read(pod.vcpu().join(file));
    wait_until_or("the CPUs are left", seen, || {
        (cpus(&vcpu("cpuset.cpus.effective")) == set).then_some(())
    });
    let is_packed = || pod.threads().vcpus.iter().all(|thread| thread.allowed == set);
    wait_until_or("its vCPUs share the others", seen, || is_packed().then_some(()));
    assert_reason_is_said(&pod, &set);
    // Given back, each has its own again.
    let pod = resize(&pod, &all);
    wait_until_or("isolated again", || pod.logs(), || is_isolated(&pod, 4).then_some(()));
    assert_eq!(identities(&pod.threads().vcpus), before);
    wait_until_or(
        "nothing is wrong any more",
        || degraded(&pod),
        || (!degraded(&pod).contains("share")).then_some(()),
    );
    pod
}

/// The reason is in `steliactl show`, the journal, the pod's condition and an event.
fn assert_reason_is_said(pod: &Pod, set: &CpuSet) {
    let reason = format!("4 vCPUs share the CPUs {set}: {REASON}");
    wait_until_or(
        "steliactl show has the reason",
        || degraded(pod),
        || degraded(pod).contains(&reason).then_some(()),
    );
    let journal = || {
        let out = output(&["journalctl", "-b", "--no-pager", "-o", "cat", "-u", "steliad"]);
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    wait_until_or("the journal has it", journal, || {
        journal().contains(&reason).then_some(())
    });
    let own = wait_told("the pod's condition has it", |told| {
        let own = told.pods.iter().find(|own| own.uid == pod.uid)?;
        own.message.contains(&reason).then(|| own.clone())
    });
    assert!(own.isolated, "nobody else runs on its CPUs: {own:?}");
    wait_told("an event has it", |told| {
        let mut own = told.events.iter().filter(|event| event.uid == pod.uid);
        own.find(|event| format!("{event:?}").contains(&reason)).map(|_| ())
    });
    println!("  {:?}", told().map(|told| told.events));
}

#[test]
fn a_guest_that_keeps_its_vcpus_shares_the_cpus_that_are_left() {
    needs_kvm();
    make_initramfs(FAULTY_INITRAMFS, FAULTY_INIT, &[]);
    on_node(|| {
        configure(SETTINGS);
        // Its agent's port is opened by nobody.
        let words = format!("{KERNEL_WORDS} panic=0");
        let qemu = [&guest("4,maxcpus=4", FAULTY_INITRAMFS, &words)[..], &PORT].concat();
        let pod = start_on(Accel::Kvm, "keeps", "4", &RUNNER, &qemu);
        pod.wait_running();
        assert_isolated(&pod, 4);
        let text = || serial(&pod);
        wait_until_or("the guest panics", text, || {
            text().contains("Kernel panic").then_some(())
        });
        assert_eq!(said(&pod).map(|(online, _)| online.len()), Some(4));
        let pod = keeps(&pod);
        let logs = pod.logs();
        // Half of the time until the deadline is for the agent.
        let is_silent = |line: &str| line.contains("no answer within ") && line.contains("is asked by ACPI alone");
        assert!(logs.lines().any(is_silent), "{logs}");
        unconfigure();
    });
}

/// A guest that lives and whose kernel refuses unplugs, with an agent.
fn stubborn(name: &str, words: &str) -> Pod {
    make_linux();
    let words = format!("{KERNEL_WORDS} keeps_cpus=1 agent=1 {words}");
    let qemu = [&guest(FOUR, INITRAMFS, &words)[..], &PORT].concat();
    let pod = start_on(Accel::Kvm, name, "4", &RUNNER, &qemu);
    pod.wait_running();
    until_counted(&pod, 4);
    wait_until_or(
        "its agent runs",
        || serial(&pod),
        || serial(&pod).contains("AGENT ").then_some(()),
    );
    assert_isolated(&pod, 4);
    pod
}

#[test]
fn a_guest_whose_agent_and_kernel_refuse_keeps_its_vcpus() {
    needs_kvm();
    on_node(|| {
        configure(SETTINGS);
        let pod = stubborn("refuses", "agent_blocks=guest-set-vcpus");
        let before = asked(&pod);
        let pod = keeps(&pod);
        assert!(asked(&pod) > before, "{}", serial(&pod));
        let lines = pod.logs();
        let refused = lines
            .lines()
            .find(|line| line.contains("the guest is asked by ACPI alone"));
        println!("  {refused:?}");
        assert!(refused.is_some_and(|line| line.contains("guest-set-vcpus")), "{lines}");
        until_counted(&pod, 4);
        unconfigure();
    });
}

#[test]
fn vcpus_that_an_agent_took_offline_and_the_kernel_keeps_are_online_again() {
    needs_kvm();
    on_node(|| {
        configure(SETTINGS);
        let pod = keeps(&stubborn("keeps-offline", ""));
        for line in [
            "the guest took 2 of 2 vCPUs offline",
            "the guest brought 2 vCPUs online again",
        ] {
            assert!(pod.logs().contains(line), "{}", pod.logs());
        }
        until_counted(&pod, 4);
        assert_topology(&pod, 4);
        unconfigure();
    });
}
