//! Instances in their container's own cgroup, and the runtimes with which that is not possible.

use crate::support::*;

/// The container is an ordinary one, and nothing of its instance is above it.
fn assert_given_back(pod: &Pod) {
    assert_eq!(pod.state(), None);
    assert_eq!(pod.file("cgroup.type"), "domain");
    assert_eq!(pod.file("cgroup.subtree_control"), "");
    for child in ["housekeeping", "vcpu"] {
        assert!(!pod.origin().join(child).exists(), "{child}");
    }
    assert_eq!(lists_above(&pod.origin()), ["", "", ""]);
}

#[test]
fn a_vm_of_runc_is_in_place_where_runc_copes_and_else_has_a_scope_with_the_reason_in_the_journal() {
    configured("tree = \"in-place\"\n", || {
        let pod = Pod::start_vm("refused", 2, &["--runtime", "runc"]).running();
        // runc 1.1.15 does not, 1.3.6 does.
        assert_eq!(pod.is_in_place(), is_sid());
        assert_isolated(&pod, 2);
        let told = told_of("9a4be27c51d84f0c8f6db1c3e07a5d29", &pod).join("\n");
        let refused = told.contains("does not cope") && told.contains("operation not supported");
        assert_eq!(refused, !is_sid(), "{told}");
        // A restart of containerd finds the container.
        restart("containerd");
        wait_until("isolated still", || is_isolated(&pod, 2));
        let tasks = output("ctr -n k8s.io task ls");
        assert!(utf8(&tasks.stdout).contains("RUNNING"), "{tasks:?}");
    });
}

/// Where the runtime copes: on Debian unstable.
mod here {
    use super::*;

    fn vm(name: &str) -> Pod {
        Pod::start_vm(name, 2, &["--runtime", "runc", "--memory", "400M"]).running()
    }

    #[test]
    fn a_vm_is_isolated_in_its_container_through_restarts_of_everything_and_given_back() {
        configured("tree = \"in-place\"\n", || {
            let (pod, other) = (vm("placed"), vm("beside"));
            for vm in [&pod, &other] {
                assert!(vm.is_in_place() && !vm.scope().exists());
                assert_isolated(vm, 2);
            }
            // What the pod uses is the pod's.
            assert_eq!(pod.file("memory.max"), (400u64 << 20).to_string());
            let used: u64 = pod.file("memory.current").parse().expect("bytes");
            assert!(used > 16 << 20, "{used} bytes");

            // An exec'd shell is in the container, and then floats.
            pod.exec_sleeper();
            reconcile();
            assert_isolated(&pod, 2);
            let threads = || pod.file("cgroup.threads");
            assert_eq!(threads(), "");

            for unit in ["steliad", "containerd"] {
                let was = pod.pid;
                restart(unit);
                wait_until(&format!("isolated after a restart of {unit}"), || is_isolated(&pod, 2));
                assert_eq!(pod.now().pid, was, "the same container");
                assert_isolated(&pod, 2);
            }
            let tasks = run("ctr -n k8s.io task ls");
            assert_eq!(tasks.matches("RUNNING").count(), 2, "{tasks}");
            run("systemctl daemon-reload");
            run("steliactl verify --now");

            // CPUs by a resize in place.
            let pod = pod.resize("--cpuset", "6-7");
            reconcile();
            wait_until("isolated on 6-7", || is_isolated(&pod, 2));

            // Ended by itself it leaves nothing above, and the other one is as it was.
            other.kill();
            wait_until("its CPUs are given back", || {
                lists_above(&pod.origin()) == ["6-7", "6-7", "6-7"]
            });
            pod.deregister();
            wait_until("given back", || pod.file("cgroup.subtree_control").is_empty());
            assert_given_back(&pod);
        });
    }
}
