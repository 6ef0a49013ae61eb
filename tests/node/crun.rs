//! A node whose OCI runtime is crun, as CRI-O's are: the container's processes are in a cgroup of its scope.

use std::path::{Path, PathBuf};

use crate::limits::{in_float, scope_file, vm_with_shell};
use crate::support::host::{leftovers, read, run, wait_until};
use crate::support::pods::{Pod, on_node};
use crate::support::promise::{assert_given_back, assert_isolated, is_isolated};

/// The container's scope, which systemd knows.
fn unit(pod: &Pod) -> (PathBuf, String) {
    let origin = pod.origin();
    assert_eq!(origin.file_name().and_then(|name| name.to_str()), Some("container"));
    let scope = origin.parent().expect("a scope");
    let name = scope.file_name().and_then(|name| name.to_str()).expect("its name");
    (scope.to_owned(), name.to_owned())
}

fn property(name: &str, unit: &str) -> String {
    run(&["systemctl", "show", "-P", name, unit])
}

#[test]
fn a_container_of_crun_is_isolated_bound_and_given_back() {
    on_node(|| {
        let options = ["--runtime", "crun", "--memory", "400M", "--container-pids", "90"];
        let pod = vm_with_shell("crun", &options, "-m 64");
        let (scope, name) = unit(&pod);
        assert_isolated(&pod, 2);

        // The container's limits hold where it was moved to; its weight is the scope's.
        let both = |file: &str| (read(scope.join(file)), read(pod.origin().join(file)));
        println!("  pids.max of scope and subgroup: {:?}", both("pids.max"));
        assert_eq!(scope_file(&pod, "pids.max"), "90");
        assert_eq!(scope_file(&pod, "memory.max"), (400u64 << 20).to_string());
        assert_eq!(scope_file(&pod, "cpu.weight"), read(scope.join("cpu.weight")));

        // systemd was told nothing of devices: a program of crun's own keeps them closed where it put the processes. What
        // was moved may open no more.
        let policies =
            [&name, &format!("stelia-instance-{}.scope", pod.uid)].map(|unit| property("DevicePolicy", unit));
        println!("  DevicePolicy of crun's scope and of the instance's: {policies:?}");
        assert_eq!(policies[1], "strict");
        let open = "mknod /dev/mymem c 1 1; mknod /dev/mynull c 1 3; head -c1 /dev/mymem; echo x > /dev/mynull && echo null-ok";
        let text = in_float(&pod, open);
        assert!(
            text.contains("Operation not permitted") && text.contains("null-ok"),
            "{text}"
        );

        // A resize in place arrives, and re-pins.
        run(&[
            "kubelet-standin",
            "pod",
            "resize",
            &pod.name,
            "--memory",
            "500M",
            "--cpuset",
            "4-5",
        ]);
        println!("  memory.max of scope and subgroup: {:?}", both("memory.max"));
        let pod = Pod::show(&pod.name);
        run(&["steliactl", "reconcile"]);
        assert_eq!(scope_file(&pod, "memory.max"), (500u64 << 20).to_string());
        wait_until("isolated on 4-5", || is_isolated(&pod, 2).then_some(()));

        // An exec'd process comes to where crun puts it, and runs on shared CPUs.
        let shell = ["sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo started"];
        run(&[&["kubelet-standin", "pod", "exec", &pod.name, "--"], &shell[..]].concat());
        let procs = || read(pod.origin().join("cgroup.procs"));
        assert_eq!(procs().lines().count(), 2, "the anchor and the exec'd process");
        let sleep = procs()
            .lines()
            .find(|pid| comm(pid) == "sleep")
            .expect("sleep")
            .to_owned();
        let status = read(format!("/proc/{sleep}/status"));
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert!(!allowed.expect("a list").contains("4-5"), "{allowed:?}");
        run(&["kill", "-KILL", &sleep]);
        wait_until("it ended", || (procs().lines().count() == 1).then_some(()));

        // More processes than the limit allows there are not, wherever they are.
        let text = in_float(
            &pod,
            "sh -c 'for i in $(seq 90); do sleep 60 & done'; pkill -x sleep; echo over",
        );
        assert!(text.contains("fork"), "{text}");

        let mut before = wait_until("the sleepers ended", || {
            let threads = pod.threads();
            (threads.others.len() < 40).then_some(threads)
        });
        assert_isolated(&pod, 2);
        // The shell's own loop sleeps, each time with another process.
        before.others.retain(|thread| thread.name != "sleep");
        run(&["steliactl", "deregister", &pod.uid]);
        assert_given_back(&pod, before);
    });
}

fn comm(pid: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[test]
fn a_container_of_crun_that_is_restarted_is_an_instance_anew_and_killed_leaves_nothing() {
    on_node(|| {
        let first = Pod::start_vm("crun-again", 2, &["--runtime", "crun"]);
        first.wait_running();
        run(&["kubelet-standin", "pod", "restart", &first.name]);
        let second = Pod::show(&first.name);
        assert_ne!(second.origin(), first.origin());
        second.wait_running();
        assert_isolated(&second, 2);
        second.assert_alone();
        assert!(!unit(&first).0.exists());
        second.kill();
        wait_until("nothing is left", || leftovers().is_empty().then_some(()));
        let scope: &Path = &unit(&second).0;
        wait_until("nor of the container", || (!scope.exists()).then_some(()));
    });
}
