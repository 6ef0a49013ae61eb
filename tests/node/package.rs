//! The package on a node with a VM running. Last by name: it takes the daemon away for a while.

use crate::contained::{configure, unconfigure};
use crate::host::{CGROUP, cpus, read, run, wait_until};
use crate::pods::{Pod, on_node};
use crate::promise::{assert_isolated, state};

#[test]
fn zz_upgrade_and_removal_leave_a_running_vm_exactly_as_it_is() {
    on_node(|| {
        let pod = Pod::vm("kept", 2);
        let before = assert_isolated(&pod, 2);
        let package = std::env::var("NODE_DEB").expect("NODE_DEB");
        run(&["apt-get", "-qq", "install", "--reinstall", "-y", &package]);
        wait_until("known after the upgrade", || {
            (state(&pod).as_deref() == Some("isolated")).then_some(())
        });
        assert_eq!(assert_isolated(&pod, 2), before);
        run(&["apt-get", "-qq", "remove", "-y", "steliad"]);
        assert_eq!(pod.threads(), before);
        assert_eq!(read(pod.vcpu().join("cpuset.cpus.partition")), "isolated");
        assert_eq!(cpus(&read(format!("{CGROUP}/cpuset.cpus.isolated"))), pod.exclusive());
        run(&["apt-get", "-qq", "install", "-y", &package]);
        wait_until("known after the new installation", || {
            (state(&pod).as_deref() == Some("isolated")).then_some(())
        });
        assert_eq!(assert_isolated(&pod, 2), before);
    });
}

#[test]
fn zz_removal_gives_the_hosts_units_back_what_a_contained_vm_took() {
    on_node(|| {
        configure("partition = \"member\"\n");
        let pod = Pod::vm("left-behind", 2);
        unconfigure();
        let list = || cpus(&read(format!("{CGROUP}/system.slice/cpuset.cpus")));
        assert!(list().is_disjoint(&pod.exclusive()));
        let package = std::env::var("NODE_DEB").expect("NODE_DEB");
        run(&["apt-get", "-qq", "remove", "-y", "steliad"]);
        assert_eq!(list(), cpus("0-7"));
        run(&["apt-get", "-qq", "install", "-y", &package]);
        wait_until("contained again", || {
            (state(&pod).as_deref() == Some("contained") && list().is_disjoint(&pod.exclusive())).then_some(())
        });
    });
}
