//! What somebody changes behind the daemon's back is put right, counted and told.

use std::fs;

use crate::host::{CGROUP, read, run, threads_of, wait_until};
use crate::life::degraded;
use crate::pods::{Pod, on_node};
use crate::promise::{assert_isolated, counters, is_isolated};

/// `MESSAGE_ID` of the journal entries that tell of it.
const DRIFT: &str = "MESSAGE_ID=8e5be1c0b4a84b3f9d2a6f0c7d1e4a52";

fn put(path: std::path::PathBuf, text: &str) {
    fs::write(&path, text).unwrap_or_else(|e| panic!("{text:?} to {}: {e}", path.display()));
}

fn told() -> usize {
    run(&["journalctl", "-b", "-q", "--no-pager", "-o", "cat", DRIFT])
        .lines()
        .count()
}

#[test]
fn every_kind_of_drift_is_repaired_at_once_and_told() {
    on_node(|| {
        let pod = Pod::vm("drifting", 2);
        let before = assert_isolated(&pod, 2);
        let qemu = before
            .others
            .iter()
            .find(|thread| thread.name.starts_with("qemu-system"))
            .expect("QEMU")
            .tid;
        let (first, second) = (before.vcpus[0].tid.to_string(), before.vcpus[1].tid.to_string());
        let drifts: [(&str, &dyn Fn()); 7] = [
            ("float's CPUs", &|| put(pod.float().join("cpuset.cpus"), "0-7")),
            ("the partition", &|| {
                put(pod.vcpu().join("cpuset.cpus.partition"), "member")
            }),
            ("the exclusive list", &|| {
                put(pod.vcpu().join("cpuset.cpus.partition"), "member");
                put(pod.vcpu().join("cpuset.cpus.exclusive"), "\n");
            }),
            ("a vCPU thread in float", &|| {
                put(pod.float().join("cgroup.threads"), &first)
            }),
            ("a thread that is no vCPU", &|| {
                put(pod.vcpu().join("cgroup.threads"), &qemu.to_string())
            }),
            ("QEMU in another cgroup", &|| {
                let elsewhere = format!("{CGROUP}/system.slice/steliad.service/cgroup.procs");
                put(elsewhere.into(), &qemu.to_string());
            }),
            ("slice's list", &|| {
                run(&["systemctl", "daemon-reload"]);
                run(&["systemctl", "daemon-reexec"]);
                put(pod.vcpu().join("cpuset.cpus.partition"), "root");
            }),
        ];
        for (what, drift) in drifts {
            let (counted, lines) = (counters(), told());
            drift();
            wait_until(&format!("{what}: repaired"), || is_isolated(&pod, 2).then_some(()));
            let after = assert_isolated(&pod, 2);
            assert_eq!(after.vcpus, before.vcpus, "{what}");
            wait_until("counted", || (counters().1 > counted.1).then_some(()));
            wait_until("told", || (told() > lines).then_some(()));
        }
        // No event tells of an affinity: the audit finds it. One is asked for here.
        let counted = counters();
        run(&["taskset", "-pc", "0-1", &second]);
        let report = run(&["steliactl", "reconcile"]);
        println!("  {}", report.replace('\n', "; "));
        assert_eq!(assert_isolated(&pod, 2).vcpus, before.vcpus);
        assert!(counters().1 > counted.1);
        // What is right is left alone.
        let report = run(&["steliactl", "--json", "reconcile"]);
        assert!(
            report.contains("\"writes\":0") || report.contains("\"writes\": 0"),
            "{report}"
        );
        assert!(threads_of(qemu).len() >= 4);
        let _ = read(pod.float().join("cpuset.cpus"));
    });
}

#[test]
fn a_cpu_that_goes_offline_and_comes_back_is_the_vms_again() {
    on_node(|| {
        let pod = Pod::emulated_vm("hotplug", 2);
        let before = assert_isolated(&pod, 2);
        let online = |cpu: u32, value: &str| put(format!("/sys/devices/system/cpu/cpu{cpu}/online").into(), value);
        let cpus: Vec<u32> = pod.exclusive().iter().filter(|cpu| *cpu != 0).collect();
        for cpu in &cpus {
            online(*cpu, "0");
        }
        run(&["steliactl", "reconcile"]);
        let list = run(&["steliactl", "--json", "show", &pod.uid]);
        assert!(list.contains("offline"), "{list}");
        for cpu in &cpus {
            online(*cpu, "1");
        }
        wait_until("isolated again", || {
            run(&["steliactl", "reconcile"]);
            is_isolated(&pod, 2).then_some(())
        });
        assert_eq!(assert_isolated(&pod, 2).vcpus, before.vcpus);
    });
}

/// The kernel's limit of watches, as it is and again when the test ends.
struct Watches(String);

impl Watches {
    const LIMIT: &str = "/proc/sys/fs/inotify/max_user_watches";

    fn none() -> Self {
        let before = read(Self::LIMIT);
        put(Self::LIMIT.into(), "1");
        Self(before)
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        put(Self::LIMIT.into(), &self.0);
    }
}

#[test]
fn an_instance_that_the_kernel_watches_for_nobody_says_so() {
    on_node(|| {
        let none = Watches::none();
        let pod = Pod::vm("unwatched", 2);
        wait_until("said", || degraded(&pod, "is not watched").then_some(()));
        drop(none);
        run(&["steliactl", "reconcile"]);
        wait_until("no longer said", || (!degraded(&pod, "watched")).then_some(()));
        assert_isolated(&pod, 2);
    });
}
