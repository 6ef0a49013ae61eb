//! What a process in a pod is refused over the socket: a named error whose text tells what was wrong, and nothing changed.

use stelia_cpus::CpuSet;

use crate::support::*;

const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

#[test]
fn words_of_a_pod_are_held_against_what_kubelet_and_the_kernel_say() {
    on_node(|| {
        let pod = Pod::idle("talker", &["--cpus", "2"]);
        let before = pod.file("cgroup.procs");
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
        assert_eq!(pod.file("cgroup.procs"), before);
        assert_eq!(read(format!("{SLICE}/cpuset.cpus.exclusive")), "");
        assert_eq!(partitioned(), CpuSet::new());
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
        let bus = Bus::open();
        let path = bus.block_on(async { manager(&bus.connection).await.get_instance(&one.uid).await });
        let (qemu, thread) = (before.1.one("qemu-system").tid, before.1.vcpus[0].tid.cast_signed());
        let attached = bus.try_attach(&path.expect("path"), qemu, &[thread]);
        assert_refused(&refusal(attached), "ForeignProcess", &one.uid);
        let after = (assert_isolated(&one, 2), assert_isolated(&two, 2));
        assert_eq!((after.0.vcpus, after.1.vcpus), (before.0.vcpus, before.1.vcpus));
    });
}
