//! What happens to an instance in its life: resized, given away, restarted, orphaned, crowded.

use stelia_cpus::CpuSet;

use crate::support::guest::QEMU_NAME;
use crate::support::host::{CGROUP, kind, output, partitioned, read, run, scopes, thread, wait_until, workers};
use crate::support::pods::{Pod, on_node};
use crate::support::promise::{assert_isolated, describe, is_isolated, state};

const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

pub fn degraded(pod: &Pod, word: &str) -> bool {
    run(&["steliactl", "--json", "show", &pod.uid]).contains(word)
}

#[test]
fn a_resize_in_place_re_pins_the_running_vm() {
    on_node(|| {
        let mut pod = Pod::emulated_vm("resized", 2);
        let before = assert_isolated(&pod, 2);
        for set in ["2-3", "2-5", "4-5"] {
            run(&["kubelet-standin", "pod", "resize", &pod.name, "--cpuset", set]);
            pod = Pod::show(&pod.name);
            wait_until(&format!("isolated on {set}"), || is_isolated(&pod, 2).then_some(()));
            let after = assert_isolated(&pod, 2);
            let ids = |threads: &crate::support::pods::Threads| -> Vec<(u32, u64)> {
                threads.vcpus.iter().map(|vcpu| (vcpu.tid, vcpu.start)).collect()
            };
            assert_eq!(ids(&after), ids(&before));
        }
        // Two vCPUs on one CPU: nothing to pin, and a scheduler that shares it out.
        run(&["kubelet-standin", "pod", "resize", &pod.name, "--cpuset", "5"]);
        wait_until("a root partition of one CPU", || {
            let vcpu = |file: &str| read(pod.vcpu().join(file));
            (vcpu("cpuset.cpus.partition") == "root" && vcpu("cpuset.cpus.exclusive") == "5").then_some(())
        });
        assert!(degraded(&pod, "share the CPUs"));
    });
}

#[test]
fn cpus_that_kubelet_gives_to_another_pod_are_left_at_once() {
    on_node(|| {
        let pod = Pod::vm("evicted", 2);
        let before = assert_isolated(&pod, 2);
        let own = pod.exclusive().to_string();
        run(&["kubelet-standin", "entry", "remove", &pod.uid]);
        // Nobody has them yet: the VM stays, and that is said once it is sure.
        wait_until("said", || degraded(&pod, "no entry").then_some(()));
        assert_eq!(pod.threads().vcpus, before.vcpus);
        run(&["kubelet-standin", "entry", "add", OTHER, "other", &own]);
        wait_until("the vCPUs float", || {
            let threads = pod.threads().vcpus;
            let left = threads.iter().all(|vcpu| vcpu.allowed.is_disjoint(&pod.exclusive()));
            left.then_some(())
        });
        wait_until("not isolated any more", || {
            (state(&pod).as_deref() == Some("floating")).then_some(())
        });
        assert_eq!(partitioned(), CpuSet::new());
        assert!(degraded(&pod, OTHER));
        run(&["kubelet-standin", "entry", "remove", OTHER]);
        run(&["kubelet-standin", "entry", "add", &pod.uid, "instance", &own]);
        wait_until("isolated again", || is_isolated(&pod, 2).then_some(()));
        assert_eq!(assert_isolated(&pod, 2).vcpus, before.vcpus);
    });
}

#[test]
fn a_container_restarted_in_the_same_pod_is_an_instance_anew() {
    on_node(|| {
        let pod = Pod::start_vm("restarted", 2, &["--runtime", "runc"]);
        pod.wait_running();
        assert_isolated(&pod, 2);
        run(&["kubelet-standin", "pod", "restart", &pod.name]);
        let again = Pod::show(&pod.name);
        assert_ne!(again.cgroup, pod.cgroup);
        again.wait_running();
        assert_isolated(&again, 2);
        again.assert_alone();
    });
}

#[test]
fn without_its_anchor_the_vm_stays_isolated_and_the_loss_is_said() {
    on_node(|| {
        let pod = Pod::vm("orphan", 2);
        let before = assert_isolated(&pod, 2);
        run(&["kill", "-KILL", &before.anchor[0].tid.to_string()]);
        wait_until("said", || degraded(&pod, "is gone").then_some(()));
        let now = pod.threads();
        assert_eq!((now.vcpus, now.others), (before.vcpus, before.others));
        assert_eq!(read(pod.vcpu().join("cpuset.cpus.partition")), kind());
    });
}

#[test]
fn a_qemu_that_is_killed_while_it_is_attached_leaves_nothing() {
    on_node(|| {
        for delay in ["0.0", "0.05", "0.1", "0.2", "0.4"] {
            let pod = Pod::start_vm("killed-early", 2, &[]);
            wait_until("QEMU", || {
                let threads = pod.threads();
                threads
                    .others
                    .iter()
                    .find(|thread| thread.name.starts_with("qemu-system"))
                    .map(|_| ())
            });
            run(&["sleep", delay]);
            output(&["pkill", "-KILL", "-x", QEMU_NAME]);
            wait_until("the container ended", || thread(pod.pid).is_none().then_some(()));
            wait_until("scope gone", || scopes().is_empty().then_some(()));
            wait_until("CPUs given back", || partitioned().is_empty().then_some(()));
            run(&["kubelet-standin", "pod", "delete", &pod.name]);
        }
    });
}

#[test]
fn more_and_fewer_vcpus_than_cpus_both_run() {
    on_node(|| {
        let crowded = Pod::start_vm("crowded", 4, &["--cpus", "2"]);
        crowded.wait_running();
        assert_eq!(state(&crowded).as_deref(), Some("isolated"));
        assert_eq!(read(crowded.vcpu().join("cpuset.cpus.partition")), "root");
        let threads = crowded.threads().vcpus;
        assert_eq!(threads.len(), 4);
        for vcpu in &threads {
            assert_eq!((&vcpu.cgroup, &vcpu.allowed), (&crowded.vcpu(), &crowded.exclusive()));
        }
        assert!(degraded(&crowded, "share the CPUs"));
        let roomy = Pod::start_vm("roomy", 1, &["--cpus", "3"]);
        roomy.wait_running();
        assert_isolated(&roomy, 1);
        assert!(workers().is_disjoint(&crowded.exclusive().union(&roomy.exclusive())));
    });
}

#[test]
fn the_record_of_a_newer_version_is_left_alone_and_reported() {
    on_node(|| {
        let pod = Pod::emulated_vm("newer", 2);
        let before = assert_isolated(&pod, 2);
        let scope = pod.scope().display().to_string();
        let schema = run(&[
            "getfattr",
            "--absolute-names",
            "--only-values",
            "-n",
            "user.stelia.schema",
            &scope,
        ]);
        run(&["setfattr", "-n", "user.stelia.schema", "-v", "99", &scope]);
        run(&["systemctl", "restart", "steliad"]);
        assert_eq!(state(&pod), None);
        let described = describe()["node"]["unreadable"].to_string();
        assert!(described.contains("has schema"), "{described}");
        assert_eq!(pod.threads(), before);
        assert_eq!(read(pod.vcpu().join("cpuset.cpus.partition")), kind());
        run(&["setfattr", "-n", "user.stelia.schema", "-v", &schema, &scope]);
        run(&["systemctl", "restart", "steliad"]);
        assert_eq!(assert_isolated(&pod, 2), before);
    });
}

/// The daemon tells in the journal what each call took.
#[test]
fn a_registration_moves_each_process_once_and_an_attach_each_vcpu_once() {
    on_node(|| {
        let pod = Pod::vm("counted", 2);
        assert_isolated(&pod, 2);
        let journal = run(&[
            "journalctl",
            "-b",
            "-q",
            "--no-pager",
            "-o",
            "cat",
            "-u",
            "steliad",
            "-g",
            &pod.uid,
        ]);
        let counts = |word: &str| -> Vec<u32> {
            let line = journal
                .lines()
                .find(|line| line.starts_with(word))
                .unwrap_or_else(|| panic!("{journal}"));
            println!("  {line}");
            let numbers = line
                .rsplit_once(": ")
                .expect("counts")
                .1
                .split(|c: char| !c.is_ascii_digit());
            numbers.filter_map(|number| number.parse().ok()).collect()
        };
        // The holder and the runner; five files of the tree, that nothing may be below its two leaves, float's CPUs; its memory nodes are
        // the pod's.
        assert_eq!(counts("registered")[0], 2);
        assert!(counts("registered")[1] <= 11);
        // Scope, instance, vcpu's list, its CPUs, the partition. The slice's list is everybody's and not among them.
        assert_eq!(counts("isolated"), [2, 5]);
    });
}

/// A register or deregister costs what it costs the first time, also the fiftieth.
#[test]
fn fifty_cycles_of_register_and_deregister_leave_nothing_and_grow_nothing() {
    on_node(|| {
        let cycles: u32 = std::env::var("STELIA_CYCLES").map_or(50, |text| text.parse().expect("STELIA_CYCLES"));
        let script = "sleep 100000 & echo $! > /tmp/anchor; wait; true";
        let pod = Pod::start("cycled", &["--cpus", "2"], &["sh", "-c", script]);
        let anchor = wait_until("the anchor", || {
            let container = crate::support::host::container_of(pod.pid);
            container.keys().copied().find(|pid| *pid != pod.pid)
        });
        let daemon = run(&["systemctl", "show", "-P", "MainPID", "steliad"]);
        let count = |what: &str| -> usize {
            match what {
                "descriptors" => std::fs::read_dir(format!("/proc/{daemon}/fd")).expect("fd").count(),
                "cgroups" => run(&["find", CGROUP, "-type", "d"]).lines().count(),
                "units" => run(&["systemctl", "list-units", "--all", "--plain", "--no-legend"])
                    .lines()
                    .count(),
                _ => crate::client::memory_kib(&daemon),
            }
        };
        let mut first = Vec::new();
        let things = ["descriptors", "cgroups", "units", "KiB of memory"];
        for cycle in 0..cycles {
            crate::client::register_and_deregister(&pod, anchor);
            // The first cycles warm caches up.
            if cycle == cycles / 5 {
                first = things.map(count).to_vec();
            }
        }
        let last = things.map(count).to_vec();
        println!("  {things:?}: {first:?} -> {last:?} after {cycles} cycles");
        assert_eq!(
            first[..3].iter().zip(&last[..3]).filter(|(a, b)| b > a).count(),
            0,
            "{first:?} {last:?}"
        );
        assert!(
            last[3] <= first[3] + 1024,
            "memory grows: {} -> {} KiB",
            first[3],
            last[3]
        );
    });
}
