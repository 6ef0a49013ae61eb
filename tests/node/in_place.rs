//! Instances in their container's own cgroup, and the runtimes with which that is not possible.

use std::path::Path;

use crate::contained::{configure, unconfigure};
use crate::support::host::{CGROUP, output, read, run, wait_until};
use crate::support::pods::{Pod, on_node_undoing};
use crate::support::promise::{assert_isolated, is_isolated, state};

/// With `tree = "in-place"`.
fn in_place(body: impl FnOnce()) {
    on_node_undoing(unconfigure, || {
        configure("tree = \"in-place\"\n");
        body();
    });
}

/// The lists of kubepods, the pod and the container.
fn lists(pod: &Pod) -> Vec<String> {
    let origin = pod.origin();
    let levels = origin.ancestors().take_while(|level| *level != Path::new(CGROUP));
    let mut lists: Vec<String> = levels.map(|level| read(level.join("cpuset.cpus.exclusive"))).collect();
    lists.reverse();
    lists
}

/// The container is an ordinary one, and nothing of its instance is above it.
fn assert_given_back(pod: &Pod) {
    assert_eq!(state(pod), None);
    assert_eq!(read(pod.origin().join("cgroup.type")), "domain");
    assert_eq!(read(pod.origin().join("cgroup.subtree_control")), "");
    for child in ["housekeeping", "vcpu"] {
        assert!(!pod.origin().join(child).exists(), "{child}");
    }
    assert!(lists(pod).iter().all(String::is_empty), "{:?}", lists(pod));
}

pub fn is_sid() -> bool {
    std::env::var("NODE_IMAGE").is_ok_and(|image| image == "sid")
}

#[test]
fn a_vm_of_runc_is_in_place_where_runc_copes_and_else_has_a_scope_with_the_reason_in_the_journal() {
    in_place(|| {
        let pod = Pod::start_vm("refused", 2, &["--runtime", "runc"]);
        pod.wait_running();
        // runc 1.1.15 does not, 1.3.6 does.
        assert_eq!(pod.is_in_place(), is_sid());
        assert_isolated(&pod, 2);
        let message = "MESSAGE_ID=9a4be27c51d84f0c8f6db1c3e07a5d29";
        let id = format!("STELIA_POD_UID={}", pod.uid);
        let told = run(&["journalctl", "-b", "-q", "-o", "cat", message, &id]);
        println!("  {told}");
        let refused = told.contains("does not cope") && told.contains("operation not supported");
        assert_eq!(refused, !is_sid(), "{told}");
        // A restart of containerd finds the container.
        run(&["systemctl", "restart", "containerd"]);
        wait_until("isolated still", || is_isolated(&pod, 2).then_some(()));
        let tasks = output(&["ctr", "-n", "k8s.io", "task", "ls"]);
        assert!(String::from_utf8_lossy(&tasks.stdout).contains("RUNNING"), "{tasks:?}");
    });
}

/// Where the runtime copes: on Debian unstable.
mod here {
    use super::*;

    fn vm(name: &str) -> Pod {
        let pod = Pod::start_vm(name, 2, &["--runtime", "runc", "--memory", "400M"]);
        pod.wait_running();
        pod
    }

    #[test]
    fn a_vm_is_isolated_in_its_container_through_restarts_of_everything_and_given_back() {
        in_place(|| {
            let (pod, other) = (vm("placed"), vm("beside"));
            for vm in [&pod, &other] {
                assert!(vm.is_in_place() && !vm.scope().exists());
                assert_isolated(vm, 2);
            }
            println!("  lists {:?} and {:?}", lists(&pod), lists(&other));
            // What the pod uses is the pod's.
            assert_eq!(read(pod.origin().join("memory.max")), (400u64 << 20).to_string());
            let used: u64 = read(pod.origin().join("memory.current")).parse().expect("bytes");
            assert!(used > 16 << 20, "{used} bytes");

            // An exec'd shell is in the container, and then floats.
            let shell = ["sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo started"];
            run(&[&["kubelet-standin", "pod", "exec", &pod.name, "--"], &shell[..]].concat());
            run(&["steliactl", "reconcile"]);
            assert_isolated(&pod, 2);
            let threads = || read(pod.origin().join("cgroup.threads"));
            assert_eq!(threads(), "");

            for unit in ["steliad", "containerd"] {
                let was = pod.pid;
                run(&["systemctl", "restart", unit]);
                wait_until(&format!("isolated after a restart of {unit}"), || {
                    is_isolated(&pod, 2).then_some(())
                });
                assert_eq!(Pod::show(&pod.name).pid, was, "the same container");
                assert_isolated(&pod, 2);
            }
            let tasks = run(&["ctr", "-n", "k8s.io", "task", "ls"]);
            assert_eq!(tasks.matches("RUNNING").count(), 2, "{tasks}");
            run(&["systemctl", "daemon-reload"]);
            run(&["steliactl", "verify", "--now"]);

            // CPUs by a resize in place.
            run(&["kubelet-standin", "pod", "resize", &pod.name, "--cpuset", "6-7"]);
            let pod = Pod::show(&pod.name);
            run(&["steliactl", "reconcile"]);
            wait_until("isolated on 6-7", || is_isolated(&pod, 2).then_some(()));

            // Ended by itself it leaves nothing above, and the other one is as it was.
            other.kill();
            wait_until("its CPUs are given back", || {
                (lists(&pod) == ["6-7", "6-7", "6-7"]).then_some(())
            });
            run(&["steliactl", "deregister", &pod.uid]);
            wait_until("given back", || {
                read(pod.origin().join("cgroup.subtree_control"))
                    .is_empty()
                    .then_some(())
            });
            assert_given_back(&pod);
        });
    }

    #[test]
    fn a_daemon_that_was_away_when_a_container_ended_takes_its_cpus_back() {
        in_place(|| {
            let (ends, stays) = (vm("ends"), vm("stays"));
            run(&[
                "systemctl",
                "stop",
                "steliad.service",
                "steliad-runner.socket",
                "steliad-kubelet.path",
            ]);
            ends.kill();
            wait_until("it is gone", || (!ends.origin().exists()).then_some(()));
            run(&[
                "systemctl",
                "start",
                "steliad-runner.socket",
                "steliad-kubelet.path",
                "steliad.service",
            ]);
            let own = stays.cpus.clone().expect("CPUs");
            wait_until("kubepods' list is the other one's", || {
                (lists(&stays)[0] == own).then_some(())
            });
            assert_isolated(&stays, 2);
        });
    }
}
