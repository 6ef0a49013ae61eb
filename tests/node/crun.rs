//! A node whose OCI runtime is crun, as CRI-O's are: the container's processes are in a cgroup of its scope.

use crate::limits::{assert_devices_are_closed, in_float, vm_with_shell};
use crate::support::*;

#[test]
fn a_container_of_crun_is_isolated_bound_and_given_back() {
    on_node(|| {
        let options = ["--runtime", "crun", "--memory", "400M", "--container-pids", "90"];
        let pod = vm_with_shell("crun", &options, "-m 64");
        assert!(pod.origin().ends_with("container"));
        assert_isolated(&pod, 2);

        // The container's limits hold where it was moved to; its weight is the scope's.
        assert_eq!(pod.scope_file("pids.max"), "90");
        assert_eq!(pod.scope_file("memory.max"), (400u64 << 20).to_string());
        assert_eq!(pod.scope_file("cpu.weight"), read(own(&pod).join("cpu.weight")));

        // crun keeps devices closed by a program of its own, of which systemd knows nothing; what was moved may open no more.
        assert_eq!(property("DevicePolicy", &pod.unit()), "strict");
        assert_devices_are_closed(&pod);

        // A resize in place arrives, and re-pins.
        let pod = pod.resize("--memory", "500M").resize("--cpuset", "4-5");
        reconcile();
        assert_eq!(pod.scope_file("memory.max"), (500u64 << 20).to_string());
        wait_until("isolated on 4-5", || is_isolated(&pod, 2));

        // An exec'd process comes to where crun puts it, and runs on shared CPUs.
        pod.exec_sleeper();
        let procs = || pod.file("cgroup.procs");
        assert_eq!(procs().lines().count(), 2, "the anchor and the exec'd process");
        let inside = procs();
        let sleep = inside.lines().find(|pid| comm(pid) == "sleep").expect("sleep");
        assert!(allowed(sleep).is_disjoint(&cpus("4-5")), "{}", allowed(sleep));
        kill("-KILL", sleep);
        wait_until("it ended", || procs().lines().count() == 1);

        // More processes than the limit allows there are not, wherever they are.
        let forks = "sh -c 'for i in $(seq 90); do sleep 60 & done'; pkill -x sleep; echo over";
        let text = in_float(&pod, forks);
        assert!(text.contains("fork"), "{text}");

        let mut before = wait_until("the sleepers ended", || {
            let threads = pod.threads();
            (threads.others.len() < 40).then_some(threads)
        });
        assert_isolated(&pod, 2);
        // The shell's own loop sleeps, each time with another process.
        before.others.retain(|thread| thread.name != "sleep");
        pod.deregister();
        assert_given_back(&pod, before);
    });
}
