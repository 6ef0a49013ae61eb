//! Floats follow kubelet's file.

use std::fs;
use std::time::Instant;

use crate::support::host::{cpus, read, run, wait_until};
use crate::support::pods::{Pod, on_node, pool};
use crate::support::promise::assert_isolated;

const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

#[test]
fn float_follows_when_another_pod_gets_cpus_and_when_it_goes() {
    on_node(|| {
        let pod = Pod::vm("floating", 2);
        let before = assert_isolated(&pod, 2);
        let ran = || run(&["systemctl", "show", "-P", "InvocationID", "steliad-kubelet.service"]);
        let first = ran();
        for (change, shared, expected) in [
            // Of its own NUMA node one CPU is left: the whole pool is better than that.
            (&["entry", "add", OTHER, "other", "3-4"][..], "2,5-7", "2,5-7"),
            (&["entry", "remove", OTHER][..], "2-7", "2-3"),
        ] {
            run(&[&["kubelet-standin"], change].concat());
            let renamed = Instant::now();
            wait_until(&format!("float of {expected}"), || {
                (read(pod.float().join("cpuset.cpus")) == expected).then_some(())
            });
            println!(
                "  rename -> cpuset written and seen: at most {} ms",
                renamed.elapsed().as_millis()
            );
            assert_eq!(pool(), cpus(shared));
            assert_isolated(&pod, 2);
        }
        assert_eq!(assert_isolated(&pod, 2).vcpus, before.vcpus);
        // The other way in: the path unit woke the daemon too.
        wait_until("steliad-kubelet.service ran", || (ran() != first).then_some(()));
        let result = run(&["systemctl", "show", "-P", "Result", "steliad-kubelet.service"]);
        assert_eq!(result, "success");
    });
}

#[test]
fn float_keeps_its_cpus_while_kubelets_file_is_corrupt() {
    on_node(|| {
        let pod = Pod::emulated_vm("steady", 2);
        let before = assert_isolated(&pod, 2);
        let path = "/var/lib/kubelet/cpu_manager_state";
        let good = fs::read(path).expect(path);
        let replace = |bytes: &[u8]| {
            let temporary = "/var/lib/kubelet/.test";
            fs::write(temporary, bytes).expect(temporary);
            fs::rename(temporary, path).expect(path);
        };
        let degraded = || {
            let list = run(&["steliactl", "--json", "show", &pod.uid]);
            list.contains("cannot be used")
        };
        replace(b"{\"policyName\":\"static\",\"defaultCpuSet\":\"0-7\",\"checksum\":1}");
        wait_until("degraded", || degraded().then_some(()));
        assert_eq!(read(pod.float().join("cpuset.cpus")), "2-3");
        replace(&good);
        wait_until("whole again", || (!degraded()).then_some(()));
        assert_eq!(assert_isolated(&pod, 2), before);
    });
}
