//! One instance's life: isolated, killed, deregistered.

use std::fs;
use std::io::ErrorKind;

use stelia_api::client::Dict;

use crate::support::*;

#[test]
fn every_vcpu_has_a_cpu_to_itself_and_everything_else_is_on_shared_cpus() {
    on_node(|| {
        // As containerd and runc make them.
        let start = |name, vcpus| Pod::start_vm(name, vcpus, &["--runtime", "runc"]);
        let (small, large) = (start("small", 2), start("large", 4));
        small.wait_running();
        large.wait_running();
        let (a, b) = (assert_isolated(&small, 2), assert_isolated(&large, 4));
        assert!(small.exclusive().is_disjoint(&large.exclusive()));
        for leaf in [small.vcpu(), small.float()] {
            let refused = fs::create_dir(leaf.join("below")).expect_err("a cgroup below");
            // cgroup.max.descendants
            assert_eq!(refused.kind(), ErrorKind::WouldBlock, "{}", leaf.display());
        }
        println!("  others on shared CPUs: {} and {}", a.others.len(), b.others.len());
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

#[test]
fn a_deregistered_container_is_as_kubelet_made_it() {
    on_node(|| {
        let pod = Pod::vm("given-back", 2);
        let before = assert_isolated(&pod, 2);
        pod.deregister();
        assert_given_back(&pod, before);
    });
}

#[test]
fn registering_again_answers_the_same_instance_and_moves_nothing() {
    on_node(|| {
        let pod = Pod::emulated_vm("twice", 2);
        let before = assert_isolated(&pod, 2);
        let bus = Bus::open();
        let again = bus.block_on(async {
            let manager = manager(&bus.connection).await;
            let known = manager.get_instance(&pod.uid).await.expect("instance");
            let cpuset = pod.exclusive().to_string();
            let registered = manager.register_instance(&pod.uid, &cpuset, Dict::new()).await;
            let (path, cgroup) = registered.expect("registered again");
            assert_eq!(path, known);
            cgroup
        });
        assert_eq!(format!("{CGROUP}{again}"), pod.scope().display().to_string());
        assert_eq!(assert_isolated(&pod, 2), before);
        pod.assert_alone();
    });
}
