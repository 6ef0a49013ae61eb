//! The package on a node with a VM running. Last by name: it takes the daemon away for a while.

use std::fs;
use std::os::unix::fs::MetadataExt;

use stelia_cpus::CpuSet;

use crate::ledger::{difference, more, settled, wait_booked};
use crate::quiet::interrupts::changed;
use crate::support::*;

/// The package as an older build of it: all that differs is the version.
fn older(package: &str) -> String {
    let (folder, file) = ("/tmp/steliad-older", "/tmp/steliad-older.deb");
    let _ = fs::remove_dir_all(folder);
    run(&["dpkg-deb", "-R", package, folder]);
    let control = format!("{folder}/DEBIAN/control");
    let text = read(&control);
    let version = format!("Version: {}", field(&text, "Version: "));
    put(
        &control,
        format!("{}\n", text.replace(&version, &format!("Version: {OLDER}"))),
    );
    // Not compressed: that takes minutes on an emulated node.
    run(&["dpkg-deb", "-Znone", "-b", folder, file]);
    fs::remove_dir_all(folder).expect(folder);
    file.to_owned()
}

const OLDER: &str = "0.0.1-1";

fn installed() -> String {
    run(&["dpkg-query", "-W", "-f", "${Version}", "steliad"])
}

/// Since when the slice and the VMs' scopes are active, and the directory and the socket that the pods have mounted.
fn kept(pods: &[&Pod]) -> Vec<String> {
    let units = ["stelia.slice", "steliad-runner.socket"].map(str::to_owned);
    let since = |unit: String| {
        let since = property("ActiveEnterTimestampMonotonic", &unit);
        assert_ne!(since, "0", "{unit} is not active");
        format!("{unit} since {since}")
    };
    let inode = |path: &str| format!("{path} {}", fs::metadata(path).expect(path).ino());
    let files = ["/run/stelia/runner", "/run/stelia/runner/socket"].map(inode);
    let units = units.into_iter().chain(pods.iter().map(|pod| pod.unit()));
    units.map(since).chain(files).collect()
}

#[test]
fn zz_upgrade_and_removal_leave_running_vms_exactly_as_they_are() {
    on_node(|| {
        let package = std::env::var("NODE_DEB").expect("NODE_DEB");
        let newer = installed();
        let older = older(&package);
        run(&["apt-get", "-qq", "install", "--allow-downgrades", "-y", &older]);
        fs::remove_file(&older).expect("the older package");
        assert_eq!(installed(), OLDER);
        begin_ledger();

        let pods = [Pod::vm("kept", 2), Pod::vm("kept-too", 2)];
        let isolated = || pods.each_ref().map(|pod| assert_isolated(pod, 2));
        wait_until("both float beside each other", || {
            pods.iter().all(|pod| is_isolated(pod, 2))
        });
        let (before, units, pid) = (isolated(), kept(&pods.each_ref()), main_pid("steliad"));
        assert_ne!(changed(), Vec::<String>::new(), "no interrupt was moved");
        pods.iter().for_each(wait_booked);
        let booked = pods.each_ref().map(settled);
        // The kernel's counters go on, whichever daemon reads them. `allowed`: the most switch-ins of other tasks.
        let nobody_ran = |when: &str, allowed: u64| {
            for (pod, before) in pods.iter().zip(&booked) {
                let now = settled(pod);
                let others = difference(now.totals.other_tasks, before.totals.other_tasks);
                // The time until a new VM's counters are read is a gap.
                assert!(others.least <= allowed && now.gaps == before.gaps, "{when}: {now:#?}");
                // What a bound kernel thread that ended meanwhile ran last may be anybody's; who came in would be hundreds.
                let more = more(now.totals.other_tasks, before.totals.other_tasks);
                let within = more.map_or(others.most <= allowed.max(8), |more| more <= allowed);
                assert!(within, "{when}: {now:#?}");
                assert!(now.covered_us > before.covered_us && now.totals.own.ns >= before.totals.own.ns);
            }
        };
        run(&["apt-get", "-qq", "install", "-y", &package]);
        assert_eq!(installed(), newer);
        known(&pods, "after the upgrade");
        assert_ne!(main_pid("steliad"), pid, "the daemon is still the old one");
        assert_eq!(isolated(), before);
        assert_eq!(kept(&pods.each_ref()), units);
        println!("  {}", run("steliactl verify"));
        nobody_ran("after the upgrade", 0);

        run("apt-get -qq remove -y steliad");
        assert_eq!(changed(), Vec::<String>::new());
        let mut exclusive = CpuSet::new();
        for (pod, before) in pods.iter().zip(&before) {
            assert_eq!(pod.threads(), *before);
            assert_eq!(pod.partition(), kind());
            exclusive = exclusive.union(&pod.exclusive());
        }
        assert_eq!(partitioned(), exclusive);
        run(&["apt-get", "-qq", "install", "-y", &package]);
        known(&pods, "after the new installation");
        assert_eq!(isolated(), before);
        // The removal gave the kernel its unbound workers' mask back: while no package was installed, they could run on these CPUs where
        // the partition is of kind `root`.
        nobody_ran("after the new installation", 8);
    });
}

fn known(pods: &[Pod], when: &str) {
    wait_until(&format!("known {when}"), || pods.iter().all(|pod| pod.is("isolated")));
}

#[test]
fn zz_removal_gives_the_hosts_units_back_what_a_contained_vm_took() {
    configured("partition = \"member\"\n", || {
        let pod = Pod::vm("left-behind", 2);
        unconfigure();
        let list = || cpus(&read(format!("{CGROUP}/system.slice/cpuset.cpus")));
        assert!(list().is_disjoint(&pod.exclusive()));
        let package = std::env::var("NODE_DEB").expect("NODE_DEB");
        run("apt-get -qq remove -y steliad");
        assert_eq!(list(), cpus("0-7"));
        run(&["apt-get", "-qq", "install", "-y", &package]);
        wait_until("pinned again", || {
            pod.is("pinned") && list().is_disjoint(&pod.exclusive())
        });
    });
}
