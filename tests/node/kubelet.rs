//! Floats follow kubelet's file.

use crate::support::*;

#[test]
fn float_follows_when_another_pod_gets_cpus_and_when_it_goes() {
    on_node(|| {
        let pod = Pod::vm("waiting", 2);
        let before = assert_isolated(&pod, 2);
        let ran = || property("InvocationID", "steliad-kubelet.service");
        let first = ran();
        for (change, shared, expected) in [
            // Of its own NUMA node one CPU is left: the whole pool is better than that.
            (&["entry", "add", OTHER_POD, "other", "3-4"][..], "2,5-7", "2,5-7"),
            (&["entry", "remove", OTHER_POD][..], "2-7", "2-3"),
        ] {
            run(&[&["kubelet-standin"], change].concat());
            wait_until(&format!("float of {expected}"), || {
                read(pod.float().join("cpuset.cpus")) == expected
            });
            assert_eq!(pool(), cpus(shared));
            assert_isolated(&pod, 2);
        }
        assert_eq!(assert_isolated(&pod, 2).vcpus, before.vcpus);
        // The other way in: the path unit woke the daemon too.
        wait_until("steliad-kubelet.service ran", || ran() != first);
        let result = property("Result", "steliad-kubelet.service");
        assert_eq!(result, "success");
    });
}
