//! A VM whose number of vCPUs follows the number of its container's CPUs while its guest runs (`docs/resize.md`).

use std::collections::BTreeSet;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use stelia_cpus::CpuSet;

use crate::contained::{configure, unconfigure};
use crate::container::foreign;
use crate::kvm::needs_kvm;
use crate::noise::{recorded, start, stop};
use crate::runner::{probe_state, start_on};
use crate::support::guest::Accel;
use crate::support::host::{Thread, cpus, output, read, run, wait_until_or};
use crate::support::linux_guest::{KERNEL, KERNEL_WORDS, make_initramfs, serial};
use crate::support::pods::{Pod, on_node};
use crate::support::promise::{assert_isolated, is_isolated};

/// The Linux guest that says which CPUs it has: [`make_linux`].
pub const INITRAMFS: &str = "/job/guest-resized";
const FAULTY_INITRAMFS: &str = "/job/guest-faulty";
pub const ROUNDS: usize = 3;

/// It brings plugged CPUs online, works on each, and says which it has, with package, core and siblings of each.
const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t sysfs sys /sys
for n in 1 2 3 4; do
  while :; do echo x | $b md5sum > /dev/null; done &
done
n=0
while :; do
  n=$((n + 1))
  for cpu in /sys/devices/system/cpu/cpu[1-9]; do
    [ -e $cpu/online ] && read -r is < $cpu/online && [ "$is" = 0 ] && echo 1 > $cpu/online
  done
  read -r online < /sys/devices/system/cpu/online
  places=
  for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
    t=$cpu/topology
    # A read of one byte at a time, as the shell's, does not read the list of siblings.
    [ -e $t ] && places="$places $($b cat $t/physical_package_id)/$($b cat $t/core_id)/$($b cat $t/thread_siblings_list)"
  done
  echo "ALIVE $n $online$places END" > /dev/ttyS0
  $b usleep 300000
done
"#;

/// It lives for a moment, and then its kernel panics: it hears nothing any more.
const FAULTY_INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t sysfs sys /sys
read -r online < /sys/devices/system/cpu/online
echo "ALIVE 1 $online END" > /dev/ttyS0
$b sleep 1
"#;

pub fn make_linux() {
    make_initramfs(INITRAMFS, INIT, &[]);
}

/// QEMU's words for it: 2 vCPUs of 4.
pub fn linux() -> Vec<&'static str> {
    guest("2,sockets=1,cores=2,threads=2,maxcpus=4", INITRAMFS, KERNEL_WORDS)
}

/// QEMU's words for this guest.
fn guest(smp: &'static str, initramfs: &'static str, words: &'static str) -> Vec<&'static str> {
    let machine = ["-machine", "q35", "-smp", smp, "-m", "128"];
    let boot = ["-kernel", KERNEL, "-initrd", initramfs, "-append", words];
    [&machine[..], &boot, &["-serial", "file:/run/serial"]].concat()
}

/// The guest's newest words: its online CPUs, and the package, the core and the siblings of each.
pub fn said(pod: &Pod) -> Option<(CpuSet, Vec<String>)> {
    let text = serial(pod);
    let mut lines = text
        .lines()
        .rev()
        .filter_map(|line| line.strip_prefix("ALIVE ")?.strip_suffix(" END"));
    let mut words = lines.next()?.split(' ').skip(1);
    let online = words.next()?.parse().ok()?;
    Some((online, words.map(str::to_owned).collect()))
}

/// kubelet gives the container these CPUs.
pub fn resize(pod: &Pod, set: &str) -> Pod {
    run(&["kubelet-standin", "pod", "resize", &pod.name, "--cpuset", set]);
    Pod::show(&pod.name)
}

pub fn until_resized(pod: &Pod, vcpus: usize) {
    let seen = || {
        let serial = serial(pod);
        let start = serial.len().saturating_sub(3000);
        let serial = String::from_utf8_lossy(serial.as_bytes().get(start..).unwrap_or_default()).into_owned();
        format!(": {:#?}\n{}\n{serial}", pod.threads().vcpus, pod.logs())
    };
    wait_until_or(&format!("{vcpus} vCPUs on {}", pod.exclusive()), seen, || {
        is_isolated(pod, vcpus).then_some(())
    });
    until_guest_has(pod, vcpus);
}

/// Waits until so many CPUs are online in the guest, and it shows no others.
pub fn until_guest_has(pod: &Pod, vcpus: usize) {
    let seen = || format!(": {:?}\n{}", said(pod), pod.logs());
    wait_until_or(&format!("the guest has {vcpus} CPUs"), seen, || {
        said(pod).filter(|(online, places)| online.len() == vcpus && places.len() == vcpus)
    });
}

/// Two CPUs more than these.
pub fn with_two_more(small: &CpuSet) -> CpuSet {
    let others = cpus("0-7").difference(small);
    let more = others.iter().filter(|cpu| *cpu > 1).take(2).collect();
    small.union(&more)
}

/// What the guest says of its topology: how many packages and cores it has, and the siblings of each CPU.
pub fn topology(pod: &Pod) -> (usize, usize, Vec<String>) {
    let (_, places) = said(pod).expect("the guest");
    let places: Vec<[&str; 3]> = places
        .iter()
        .map(|place| {
            let parts: Vec<&str> = place.split('/').collect();
            parts.try_into().unwrap_or_else(|_| panic!("a place: {place}"))
        })
        .collect();
    let packages: BTreeSet<&str> = places.iter().map(|[package, ..]| *package).collect();
    let cores: BTreeSet<(&str, &str)> = places.iter().map(|[package, core, _]| (*package, *core)).collect();
    let siblings = places.iter().map(|[.., siblings]| (*siblings).to_owned());
    (packages.len(), cores.len(), siblings.collect())
}

/// Which threads they are, whatever CPUs they have.
pub fn identities(threads: &[Thread]) -> BTreeSet<(u32, u64)> {
    threads.iter().map(|thread| (thread.tid, thread.start)).collect()
}

const TRACING: &str = "/sys/kernel/tracing";

/// Lets the kernel record from now on where vCPUs from this number on enter the guest.
pub fn record_entries(from: u32) {
    let online = cpus(&read("/sys/devices/system/cpu/online"));
    let mask: u64 = online.iter().fold(0, |mask, cpu| mask | 1 << cpu);
    for (file, text) in [
        ("tracing_on", "0"),
        ("buffer_size_kb", "16384"),
        ("tracing_cpumask", &format!("{mask:x}")),
        ("events/kvm/kvm_entry/filter", &format!("vcpu_id >= {from}")),
        ("events/kvm/kvm_entry/enable", "1"),
        ("trace", ""),
        ("tracing_on", "1"),
    ] {
        fs::write(format!("{TRACING}/{file}"), text).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
}

/// The CPUs on which they did so.
pub fn entered() -> CpuSet {
    for (file, text) in [
        ("tracing_on", "0"),
        ("events/kvm/kvm_entry/enable", "0"),
        ("events/kvm/kvm_entry/filter", "0"),
    ] {
        fs::write(format!("{TRACING}/{file}"), text).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
    let text = fs::read(format!("{TRACING}/trace")).expect("trace");
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().filter(|line| line.contains("kvm_entry:"));
    let cpu = |line: &str| line.split_once('[')?.1.split_once(']')?.0.parse::<u32>().ok();
    let cpus: Vec<u32> = lines
        .map(|line| cpu(line).unwrap_or_else(|| panic!("no CPU: {line}")))
        .collect();
    println!("  {} entries", cpus.len());
    cpus.into_iter().collect()
}

#[test]
fn a_guest_grows_and_shrinks_with_its_container() {
    needs_kvm();
    make_linux();
    on_node(|| {
        // On an emulated node a guest under load takes up to some ten seconds to give up a CPU.
        configure("unplug-timeout-s = 60\n");
        let mut pod = start_on(Accel::Kvm, "grows", "2", &[], &linux());
        pod.wait_running();
        let small = pod.exclusive();
        until_resized(&pod, 2);
        let first = assert_isolated(&pod, 2);
        let large = with_two_more(&small).to_string();
        for round in 0..ROUNDS {
            println!("  round {round}: {small} to {large}");
            record_entries(2);
            pod = resize(&pod, &large);
            until_resized(&pod, 4);
            // The new ones did not run guest code anywhere else, not even before they were pinned.
            let entered = entered();
            assert!(
                !entered.is_empty() && entered.is_subset(&pod.exclusive()),
                "{entered}\n{}",
                pod.logs()
            );
            let now = assert_isolated(&pod, 4);
            assert!(
                identities(&first.vcpus).is_subset(&identities(&now.vcpus)),
                "a vCPU that was there is another thread: {first:#?} {now:#?}"
            );
            let siblings = ["0-1", "0-1", "2-3", "2-3"].map(str::to_owned).to_vec();
            assert_eq!(topology(&pod), (1, 2, siblings), "the guest's topology");
            start(&pod.exclusive());
            sleep(Duration::from_secs(2));
            stop();
            let switches = recorded(&pod.exclusive());
            assert!(!switches.is_empty());
            assert_eq!(foreign(&pod, &switches), [], "{switches:#?}");
            let verify = || output(&["steliactl", "verify", &pod.uid]);
            let seen = || String::from_utf8_lossy(&verify().stdout).into_owned();
            wait_until_or("verify finds nothing", seen, || verify().status.success().then_some(()));
            pod = resize(&pod, &small.to_string());
            until_resized(&pod, 2);
            let now = assert_isolated(&pod, 2);
            assert_eq!(identities(&now.vcpus), identities(&first.vcpus));
            let siblings = ["0-1", "0-1"].map(str::to_owned).to_vec();
            assert_eq!(topology(&pod), (1, 1, siblings), "the guest's topology");
        }
        println!("  {}", probe_state(&pod));
        println!(
            "  the guest booted {} times",
            pod.logs().matches("QEMU: RESET").count() + 1
        );
        for line in pod.logs().lines().filter(|line| line.contains("was paused for")) {
            println!("  {line}");
        }
        unconfigure();
    });
}

#[test]
fn a_guest_that_keeps_its_vcpus_shares_the_cpus_that_are_left() {
    needs_kvm();
    make_initramfs(FAULTY_INITRAMFS, FAULTY_INIT, &[]);
    on_node(|| {
        let words = "console=ttyS0 quiet panic=0 mitigations=off tsc=reliable";
        let qemu = guest("4,maxcpus=4", FAULTY_INITRAMFS, words);
        let pod = start_on(Accel::Kvm, "keeps", "4", &[], &qemu);
        pod.wait_running();
        assert_isolated(&pod, 4);
        let text = || serial(&pod);
        wait_until_or("the guest panics", text, || {
            text().contains("Kernel panic").then_some(())
        });
        assert_eq!(said(&pod).map(|(online, _)| online.len()), Some(4));
        let before = identities(&pod.threads().vcpus);
        let all = pod.exclusive().to_string();
        let set: CpuSet = pod.exclusive().iter().take(2).collect();
        let pod = resize(&pod, &set.to_string());
        let seen = || format!(": {}\n{}", probe_state(&pod), pod.logs());
        wait_until_or("the refusal is said", seen, || {
            (probe_state(&pod)["resize"]["outcome"] == "refused").then_some(())
        });
        assert_eq!(identities(&pod.threads().vcpus), before);
        let vcpu = |file: &str| read(pod.vcpu().join(file));
        wait_until_or("the CPUs are left", seen, || {
            (cpus(&vcpu("cpuset.cpus.effective")) == set).then_some(())
        });
        for thread in pod.threads().vcpus {
            assert!(thread.allowed.is_subset(&set), "{thread:?}");
        }
        // Given back, each has its own again.
        let pod = resize(&pod, &all);
        wait_until_or("isolated again", || pod.logs(), || is_isolated(&pod, 4).then_some(()));
        assert_eq!(identities(&pod.threads().vcpus), before);
    });
}
