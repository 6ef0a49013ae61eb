//! Whose a process is, where there are PID namespaces within a container's own, and cgroups below it.

use std::fs;
use std::path::PathBuf;

use crate::support::*;

/// Makes a PID namespace and sleeps as its first process, as passt's sandbox does: with a user namespace, because it is no root.
const NESTED: &str = "unshare -Upf tail -f /dev/null &";

/// The first process of a namespace within the container's, once it is there: how many namespaces it is in.
fn wait_nested(pod: &Pod) -> usize {
    wait_until("a namespace within", || {
        let procs = read_if_there(pod.origin().join("cgroup.procs"));
        let outer = numbers(pod.pid).len();
        let mut all = procs.lines().map(numbers).filter(|numbers| numbers.len() > outer);
        all.find(|numbers| numbers.last() == Some(&1))
            .map(|numbers| numbers.len())
    })
}

/// A pod whose container starts `before`, waits until `there` is true, and becomes a VM's.
fn vm_beside(name: &str, options: &[&str], before: &str, there: &str, qemu: &[&str]) -> Pod {
    let accel = Accel::of_node();
    let vm = [
        words("stelia-runner run --qmp /run/qmp --"),
        accel.qemu(),
        qemu.to_vec(),
    ]
    .concat();
    let script = format!("{before} until {there}; do sleep 0.1; done; exec \"$@\"");
    let command = [&["sh", "-c", &script, "sh"][..], &vm].concat();
    let options = [accel.device(), &["--cpus", "2"][..], options].concat();
    Pod::start(name, &options, &command).running()
}

/// In how many PID namespaces the threads of this name are that float with the pod's VM; none runs where its vCPUs do.
fn floating(pod: &Pod, name: &str) -> Vec<usize> {
    let named = |leaf: PathBuf| {
        let tids = read(leaf.join("cgroup.threads"));
        let is_so = |tid: &&str| comm(tid).starts_with(name);
        let mut depths: Vec<usize> = tids.lines().filter(is_so).map(|tid| numbers(tid).len()).collect();
        depths.sort_unstable();
        depths.dedup();
        depths
    };
    assert!(named(pod.vcpu()).is_empty());
    named(pod.float())
}

#[test]
fn virtiofsd_in_its_sandbox_before_the_vm_registers_is_no_reason_to_refuse_it() {
    on_node(|| {
        let virtiofsd = "/usr/libexec/virtiofsd --socket-path=/run/fs --shared-dir /usr/share --sandbox namespace &";
        let qemu = [words("-m 64 -smp 2"), with_virtiofsd()].concat();
        // What it makes its namespaces with; with fewer privileges it makes a user namespace first.
        let pod = vm_beside("virtiofsd", &["--cap", "SYS_ADMIN"], virtiofsd, "[ -S /run/fs ]", &qemu);
        assert_isolated(&pod, 2);
        // The process that waits outside, and the one in the sandbox.
        assert_eq!(floating(&pod, "virtiofsd"), [2, 3]);
    });
}

#[test]
fn a_namespace_within_does_not_make_up_for_one_of_the_containers_own() {
    on_node(|| {
        let sleeper = format!("{NESTED} sleep 10000; true");
        let host = Pod::start("host", &["--cpus", "2", "--host-pid"], &["sh", "-c", &sleeper]);
        assert_eq!(wait_nested(&host), 2);
        assert_refused(&ask_from(&host, "|"), "SharedPidNamespace", &host.uid);

        let first = Pod::idle("first", &["--cpus", "2"]);
        let options = ["--in", "first", "--container", "second", "--cpus", "2", "--share-pid"];
        let second = Pod::start("second", &options, &["sh", "-c", &sleeper]);
        assert_eq!(wait_nested(&second), 3);
        assert_refused(&ask_from(&second, "|"), "SharedPidNamespace", &second.uid);
        assert!(scopes().is_empty());
        drop(first);
    });
}

#[test]
fn what_is_in_a_cgroup_below_the_containers_is_neither_its_anchor_nor_overlooked() {
    // Until the container ends nobody but us would remove it.
    let below = || {
        let found = output("find /sys/fs/cgroup/kubepods.slice -type d -name stelia-test");
        utf8(&found.stdout).lines().for_each(|path| drop(fs::remove_dir(path)));
    };
    on_node_undoing(below, || {
        let shell = "sleep 10000 & sleep 20000 & wait";
        let pod = Pod::start("below", &["--cpus", "2"], &["sh", "-c", shell]);
        let sleepers = wait_until("two sleepers", || {
            let procs = pod.file("cgroup.procs");
            let pids: Vec<u32> = procs.lines().map(number).filter(|pid| *pid != pod.pid).collect();
            (pids.len() == 2).then_some(pids)
        });
        let child = pod.origin().join("stelia-test");
        fs::create_dir(&child).expect("a cgroup below the container's");
        put(child.join("cgroup.procs"), sleepers[0].to_string());
        // The anchor's own place is wrong; and the others are not all where they would be moved from.
        let bus = Bus::open();
        let refusal = |anchor: u32| refusal(bus.try_register(&pod.uid, "", options(Some(&pidfd(anchor)), "")));
        assert_refused(&refusal(sleepers[0]), "NoAnchor", ".scope/stelia-test");
        assert_refused(&refusal(sleepers[1]), "InvalidArgument", "/stelia-test too");
        assert!(scopes().is_empty());
        put(pod.origin().join("cgroup.procs"), sleepers[0].to_string());
        fs::remove_dir(&child).expect("removed");
        bus.register(&pod, sleepers[0]);
        bus.deregister(&pod);
    });
}
