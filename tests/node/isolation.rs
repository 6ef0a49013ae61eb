//! One instance's life: isolated, killed.

use std::fs;
use std::io::ErrorKind;

use crate::support::*;

#[test]
fn every_vcpu_has_a_cpu_to_itself_and_everything_else_is_on_shared_cpus() {
    on_node(|| {
        // As containerd and runc make them.
        let start = |name, vcpus| Pod::start_vm(name, vcpus, &["--runtime", "runc"]);
        let (small, large) = (start("small", 2), start("large", 4));
        small.wait_running();
        large.wait_running();
        assert_isolated(&small, 2);
        assert_isolated(&large, 4);
        assert!(small.exclusive().is_disjoint(&large.exclusive()));
        for leaf in [small.vcpu(), small.float()] {
            let refused = fs::create_dir(leaf.join("below")).expect_err("a cgroup below");
            // cgroup.max.descendants
            assert_eq!(refused.kind(), ErrorKind::WouldBlock, "{}", leaf.display());
        }
    });
}

#[test]
fn a_killed_container_gives_its_cpus_back() {
    on_node(|| {
        let survivor = Pod::vm("survivor", 2);
        let pod = Pod::vm("killed", 2);
        let threads = assert_isolated(&survivor, 2);
        let exclusive = pod.exclusive();
        pod.kill();
        wait_until("scope of the killed container gone", || !pod.scope().exists());
        wait_until("its CPUs not exclusive any more", || {
            let given = cpus(&read(format!("{SLICE}/cpuset.cpus.exclusive")));
            given.is_disjoint(&exclusive)
        });
        assert!(partitioned().is_disjoint(&exclusive), "{}", partitioned());
        wait_until("its CPUs are the kernel's workers' again", || {
            exclusive.is_subset(&workers())
        });
        pod.wait_released();
        // The other instance noticed nothing. kubelet's entry of the killed one is still there, so its float is the same.
        survivor.assert_alone();
        let now = assert_isolated(&survivor, 2);
        assert_eq!((now.vcpus, now.others), (threads.vcpus, threads.others));
    });
}
