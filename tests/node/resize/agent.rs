//! The same with Debian's QEMU guest agent in the guest: it takes the vCPUs offline before they are unplugged.

use super::{INITRAMFS, PATIENT, TWO, grows_and_shrinks, guest, make_linux};
use crate::support::*;

pub const RUNNER: [&str; 2] = ["--guest-agent", "/run/agent"];

pub const PORT: &str = "-chardev socket,id=agent,path=/run/agent,server=on,wait=off -device virtio-serial \
     -device virtserialport,chardev=agent,name=org.qemu.guest_agent.0";

/// How many lines of the agent's own log have the command by which vCPUs are changed, in all boots of the guest.
pub fn asked(pod: &Pod) -> usize {
    let text = serial(pod);
    let counts = text
        .lines()
        .filter_map(|line| line.strip_prefix("AGENT ")?.strip_suffix(" END")?.parse().ok());
    let sum = |(sum, last): (usize, usize), count: usize| (sum + count.checked_sub(last).unwrap_or(count), count);
    counts.fold((0, 0), sum).0
}

/// The numbers of the lines of the runner's log that have this text.
fn lines_with(pod: &Pod, text: &str) -> Vec<usize> {
    let logs = pod.logs();
    let lines = logs.lines().enumerate().filter(|(_, line)| line.contains(text));
    lines.map(|(number, _)| number).collect()
}

#[test]
fn a_guest_with_an_agent_takes_its_vcpus_offline_before_they_are_unplugged() {
    make_linux();
    configured_on_kvm(PATIENT, || {
        let kernel_words = format!("{KERNEL_WORDS} agent=1");
        let qemu = [&guest(TWO, INITRAMFS, &kernel_words)[..], &words(PORT)].concat();
        let pod = start_on(Accel::Kvm, "agent", "2", &RUNNER, &qemu);
        let pod = grows_and_shrinks(pod, |round, pod| {
            let rounds = round + 1;
            assert!(asked(pod) >= rounds, "{} {}", asked(pod), serial(pod));
            // In each round two vCPUs, before QEMU was asked to unplug them.
            let offline = lines_with(pod, "the guest took 2 of 2 vCPUs offline");
            let unplugged = lines_with(pod, "the VM is to have 2 vCPUs instead of 4");
            assert_eq!((offline.len(), unplugged.len()), (rounds, rounds), "{}", pod.logs());
            assert!(offline[round] < unplugged[round], "{}", pod.logs());
        });
        assert!(!pod.logs().contains("by ACPI alone"), "{}", pod.logs());
    });
}
