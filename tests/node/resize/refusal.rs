//! Guests that keep their vCPUs: they share the CPUs that are left, and the reason is said.

use stelia_cpus::CpuSet;

use super::agent::{PORT, RUNNER};
use super::{FOUR, INITRAMFS, PATIENT, assert_topology, guest, make_linux, said, until_counted, until_degraded};
use crate::support::*;

const FAULTY_INITRAMFS: &str = "/job/guest-faulty";

/// It lives for a moment, and then its kernel panics: it hears nothing any more.
const FAULTY_INIT: &str = r#"read -r online < /sys/devices/system/cpu/online
echo "ALIVE 1 $online END" > /dev/console
$b sleep 1
"#;

const REASON: &str = "the guest did not give up vCPUs in time";
/// The guest has as much time as it has by default: a refusal waits for its end.
const SETTINGS: &str = "unplug-timeout-s = 10\n";

/// It has 4 vCPUs, is to have 2 CPUs, and gives up none: its vCPUs share 2 CPUs until it has 4 again.
fn keeps(pod: &Pod) -> Pod {
    let before = pod.threads().identities();
    let all = pod.exclusive().to_string();
    let set: CpuSet = pod.exclusive().iter().take(2).collect();
    let pod = pod.resize("--cpuset", &set.to_string());
    let seen = || format!(": {}\n{}", probe_state(&pod), pod.logs());
    wait_until_or("the refusal is said", seen, || {
        probe_state(&pod)["resize"]["outcome"] == "refused"
    });
    let refused = "the guest gave up 0 of the 2 vCPUs that it was asked for";
    assert_says(&pod.logs(), &[refused]);
    assert_eq!(pod.threads().identities(), before);
    wait_until_or("the CPUs are left", seen, || pod.effective() == set);
    let is_packed = || pod.threads().vcpus.iter().all(|thread| thread.allowed == set);
    wait_until_or("its vCPUs share the others", seen, is_packed);
    let reason = format!("4 vCPUs share the CPUs {set}; {REASON}");
    until_degraded(&pod, "steliactl show has the reason", |told| told.contains(&reason));
    // Given back, each has its own again.
    let pod = pod.resize("--cpuset", &all);
    wait_until_or("isolated again", || pod.logs(), || is_isolated(&pod, 4));
    assert_eq!(pod.threads().identities(), before);
    until_degraded(&pod, "nothing is wrong any more", |told| !told.contains("share"));
    pod
}

#[test]
fn a_guest_that_keeps_its_vcpus_shares_the_cpus_that_are_left() {
    make_initramfs(FAULTY_INITRAMFS, FAULTY_INIT, &[]);
    configured_on_kvm(SETTINGS, || {
        // Its agent's port is opened by nobody.
        let kernel_words = format!("{KERNEL_WORDS} panic=0");
        let qemu = [&guest("4,maxcpus=4", FAULTY_INITRAMFS, &kernel_words)[..], &words(PORT)].concat();
        let pod = start_on(Accel::Kvm, "keeps", "4", &RUNNER, &qemu).running();
        assert_isolated(&pod, 4);
        let text = || serial(&pod);
        wait_until_or("the guest panics", text, || text().contains("Kernel panic"));
        assert_eq!(said(&pod).map(|(online, _)| online.len()), Some(4));
        let pod = keeps(&pod);
        let logs = pod.logs();
        // Half of the time until the deadline is for the agent.
        let is_silent = |line: &str| line.contains("no answer within ") && line.contains("is asked by ACPI alone");
        assert!(logs.lines().any(is_silent), "{logs}");
    });
}

/// The guest lives, its kernel refuses unplugs, and it has an agent.
#[test]
fn vcpus_that_an_agent_took_offline_and_the_kernel_keeps_are_online_again() {
    make_linux();
    configured_on_kvm(PATIENT, || {
        let kernel_words = format!("{KERNEL_WORDS} keeps_cpus=1 agent=1");
        let qemu = [&guest(FOUR, INITRAMFS, &kernel_words)[..], &words(PORT)].concat();
        let pod = start_on(Accel::Kvm, "keeps-offline", "4", &RUNNER, &qemu).running();
        until_counted(&pod, 4);
        wait_until_or("its agent runs", || serial(&pod), || serial(&pod).contains("AGENT "));
        assert_isolated(&pod, 4);
        let pod = keeps(&pod);
        let (took, brought) = (
            "the guest took 2 of 2 vCPUs offline",
            "the guest brought 2 vCPUs online again",
        );
        assert_says(&pod.logs(), &[took, brought]);
        until_counted(&pod, 4);
        assert_topology(&pod, 4);
    });
}
