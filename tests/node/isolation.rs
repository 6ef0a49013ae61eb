//! One instance's life: isolated, killed, deregistered.

use std::fs;
use std::io::ErrorKind;

use stelia_api::client::{Dict, ManagerProxy};

use crate::client::block_on;
use crate::support::host::{CGROUP, SLICE, cpus, partitioned, read, run, wait_until, workers};
use crate::support::pods::{Pod, on_node};
use crate::support::promise::{assert_given_back, assert_isolated, state};

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
        wait_until("scope of the killed container gone", || {
            (!pod.scope().exists()).then_some(())
        });
        wait_until("its CPUs not exclusive any more", || {
            let given = cpus(&read(format!("{SLICE}/cpuset.cpus.exclusive")));
            given.is_disjoint(&exclusive).then_some(())
        });
        assert!(partitioned().is_disjoint(&exclusive), "{}", partitioned());
        wait_until("its CPUs are the kernel's workers' again", || {
            exclusive.is_subset(&workers()).then_some(())
        });
        wait_until("not listed any more", || state(&pod).is_none().then_some(()));
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
        run(&["steliactl", "deregister", &pod.uid]);
        assert_given_back(&pod, before);
    });
}

#[test]
fn registering_again_answers_the_same_instance_and_moves_nothing() {
    on_node(|| {
        let pod = Pod::emulated_vm("twice", 2);
        let before = assert_isolated(&pod, 2);
        let again = block_on(async {
            let bus = zbus::connection::Builder::system().build().await.expect("bus");
            let manager = ManagerProxy::new(&bus).await.expect("proxy");
            let known = manager.get_instance(&pod.uid).await.expect("instance");
            let cpuset = pod.exclusive().to_string();
            let (path, cgroup) = manager
                .register_instance(&pod.uid, &cpuset, Dict::new())
                .await
                .expect("registered again");
            assert_eq!(path, known);
            cgroup
        });
        assert_eq!(format!("{CGROUP}{again}"), pod.scope().display().to_string());
        assert_eq!(assert_isolated(&pod, 2), before);
        pod.assert_alone();
    });
}
