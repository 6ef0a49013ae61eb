//! Whose a process is, where there are PID namespaces within a container's own.

use std::path::PathBuf;

use crate::support::*;

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
        let accel = Accel::of_node();
        let script = "/usr/libexec/virtiofsd --socket-path=/run/fs --shared-dir /usr/share --sandbox namespace & \
                      until [ -S /run/fs ]; do sleep 0.1; done; exec \"$@\"";
        let runner = words("stelia-runner run --qmp /run/qmp --");
        let vm = [runner, accel.qemu(), words("-m 64 -smp 2"), with_virtiofsd()].concat();
        let command = [&["sh", "-c", script, "sh"], &vm[..]].concat();
        // What it makes its namespaces with; with fewer privileges it makes a user namespace first.
        let options = [accel.device(), &["--cpus", "2", "--cap", "SYS_ADMIN"]].concat();
        let pod = Pod::start("virtiofsd", &options, &command).running();
        assert_isolated(&pod, 2);
        // The process that waits outside, and the one in the sandbox.
        assert_eq!(floating(&pod, "virtiofsd"), [2, 3]);
    });
}
