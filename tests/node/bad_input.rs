//! Bad input: a named error whose text alone tells what was wrong, and nothing changed.

use std::fs;

use stelia_api::client::ManagerProxy;
use stelia_cpus::CpuSet;

use crate::client::{Refusal, ask_from, attach, block_on, pidfd, register};
use crate::support::host::{SLICE, partitioned, read, scopes};
use crate::support::pods::{Pod, on_node};
use crate::support::promise::assert_isolated;

const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

pub fn assert_refused(refusal: &Refusal, name: &str, mentions: &str) {
    assert_eq!(refusal.0, name, "{}", refusal.1);
    assert!(
        refusal.1.contains(mentions),
        "{:?} does not say {mentions:?}",
        refusal.1
    );
    assert!(refusal.1.len() < 1000, "{} bytes", refusal.1.len());
}

/// A guaranteed pod that has not registered.
fn sleeping(name: &str, options: &[&str]) -> Pod {
    Pod::start(name, options, &["sh", "-c", "sleep 10000; true"])
}

#[test]
fn words_of_a_pod_are_held_against_what_kubelet_and_the_kernel_say() {
    on_node(|| {
        let pod = sleeping("talker", &["--cpus", "2"]);
        let before = read(pod.origin().join("cgroup.procs"));
        for (case, name, mentions) in [
            ("no-anchor", "NoAnchor", "anchor"),
            ("|6-7", "CpusetMismatch", "6-7"),
            ("|2-", "InvalidArgument", "2-"),
            ("|0-99999999999", "InvalidArgument", "99999999999"),
            ("a/b|", "InvalidArgument", "a/b"),
            ("..|", "InvalidArgument", ".."),
            ("pod-of-10-kb", "InvalidArgument", "aaaa"),
            (&format!("{NOBODY}|"), "NoSuchPod", "pod_uid"),
        ] {
            assert_refused(&ask_from(&pod, case), name, mentions);
            assert!(scopes().is_empty());
        }
        assert_eq!(read(pod.origin().join("cgroup.procs")), before);
        assert_eq!(read(format!("{SLICE}/cpuset.cpus.exclusive")), "");
        assert_eq!(partitioned(), CpuSet::new());
    });
}

#[test]
fn containers_that_cannot_be_isolated_are_refused() {
    on_node(|| {
        let burstable = sleeping("burstable", &["--qos", "burstable"]);
        assert_refused(&ask_from(&burstable, "|"), "NotGuaranteed", &burstable.uid);
        let host = sleeping("hostpid", &["--cpus", "2", "--host-pid"]);
        assert_refused(&ask_from(&host, "|"), "SharedPidNamespace", &host.uid);
        assert!(scopes().is_empty());
    });
}

#[test]
fn a_kubelet_file_that_is_corrupt_or_absent_admits_nobody() {
    on_node(|| {
        let pod = sleeping("waiting", &["--cpus", "2"]);
        let path = "/var/lib/kubelet/cpu_manager_state";
        let good = fs::read(path).expect(path);
        fs::write(path, b"{\"policyName\":\"stat").expect(path);
        let corrupt = ask_from(&pod, "|");
        fs::remove_file(path).expect(path);
        let absent = ask_from(&pod, "|");
        fs::write(path, good).expect(path);
        // A pod is told so much; what is wrong with the node's file, the journal says.
        for refusal in [&corrupt, &absent] {
            assert_refused(refusal, "KubeletStateUnusable", "absent or not understood");
            let text = format!("{refusal:?}");
            assert!(!text.contains("schema") && !text.contains("No such file"), "{text}");
        }
        assert!(scopes().is_empty());
    });
}

#[test]
fn threads_and_processes_of_others_are_not_attached() {
    on_node(|| {
        let (one, two) = (Pod::vm("one", 2), Pod::vm("two", 2));
        let before = (assert_isolated(&one, 2), assert_isolated(&two, 2));
        assert_refused(&ask_from(&one, "foreign-thread"), "ForeignProcess", "thread");
        assert_refused(&ask_from(&one, "foreign-process"), "ForeignProcess", &one.uid);
        // Even root hands no process of one pod to another.
        let thread = before.1.vcpus[0].tid;
        let refusal = block_on(async {
            let bus = zbus::connection::Builder::system().build().await.expect("bus");
            let path = ManagerProxy::new(&bus)
                .await
                .expect("proxy")
                .get_instance(&one.uid)
                .await
                .expect("path");
            attach(&bus, path.as_str(), &pidfd(two_qemu(&before.1)), thread.cast_signed()).await
        });
        assert_refused(&refusal, "ForeignProcess", &one.uid);
        let after = (assert_isolated(&one, 2), assert_isolated(&two, 2));
        assert_eq!((after.0.vcpus, after.1.vcpus), (before.0.vcpus, before.1.vcpus));
    });
}

/// QEMU's process, by one of its other threads.
fn two_qemu(threads: &crate::support::pods::Threads) -> u32 {
    let qemu = threads
        .others
        .iter()
        .find(|thread| thread.name.starts_with("qemu-system"));
    qemu.expect("QEMU's first thread").tid
}

#[test]
fn root_on_the_system_bus_must_name_a_pod_that_exists() {
    on_node(|| {
        let refusal = |pod: &str, cpuset: &str| {
            block_on(async {
                let bus = zbus::connection::Builder::system().build().await.expect("bus");
                register(&bus, pod, cpuset, None).await
            })
        };
        assert_refused(&refusal(NOBODY, ""), "NoSuchPod", NOBODY);
        assert_refused(&refusal("", ""), "InvalidArgument", "pod_uid");
        let pod = sleeping("named", &["--cpus", "2"]);
        assert_refused(&refusal(&pod.uid, "5-6"), "CpusetMismatch", "5-6");
        assert_refused(&refusal(&pod.uid, "0-1"), "NoAnchor", "anchor");
        assert!(scopes().is_empty());
    });
}
