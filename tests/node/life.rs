//! What happens to an instance in its life: restarted, orphaned, killed.

use crate::support::*;

#[test]
fn a_container_restarted_in_the_same_pod_is_an_instance_anew() {
    on_node(|| {
        let pod = Pod::start_vm("restarted", 2, &["--runtime", "runc"]).running();
        assert_isolated(&pod, 2);
        let again = pod.restart();
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
        kill("-KILL", before.anchor[0].tid);
        wait_until("said", || pod.shows("cgroup-gone"));
        let now = pod.threads();
        assert_eq!((now.vcpus, now.others), (before.vcpus, before.others));
        assert_eq!(pod.partition(), kind());
    });
}

#[test]
fn a_qemu_that_is_killed_while_it_is_attached_leaves_nothing() {
    on_node(|| {
        for delay in ["0.0", "0.05", "0.1", "0.2", "0.4"] {
            let pod = Pod::start_vm("killed-early", 2, &[]);
            wait_until("QEMU", || !pod.threads().named("qemu-system").is_empty());
            run(&["sleep", delay]);
            output(&["pkill", "-KILL", "-x", QEMU_NAME]);
            wait_until("the container ended", || thread(pod.pid).is_none());
            wait_until("scope gone", || scopes().is_empty());
            wait_until("CPUs given back", || partitioned().is_empty());
            run(&["kubelet-standin", "pod", "delete", &pod.name]);
        }
    });
}

/// A register or deregister costs what it costs the first time, also the fiftieth.
#[test]
fn fifty_cycles_of_register_and_deregister_leave_nothing_and_grow_nothing() {
    on_node(|| {
        let cycles: u32 = std::env::var("STELIA_CYCLES").map_or(50, |text| text.parse().expect("STELIA_CYCLES"));
        let sleeper = Sleeper::start("cycled", &["--cpus", "2"]);
        let daemon = main_pid("steliad");
        let count = |what: &str| -> usize {
            match what {
                "descriptors" => descriptors(&daemon),
                "cgroups" => run(&["find", CGROUP, "-type", "d"]).lines().count(),
                "units" => run("systemctl list-units --all --plain --no-legend").lines().count(),
                _ => kib(&daemon, "VmRSS") as usize,
            }
        };
        let mut first = Vec::new();
        let things = ["descriptors", "cgroups", "units", "KiB of memory"];
        for cycle in 0..cycles {
            let bus = Bus::open();
            bus.register(&sleeper.pod, sleeper.anchor);
            bus.deregister(&sleeper.pod);
            // The first cycles warm caches up.
            if cycle == cycles / 5 {
                first = things.map(count).to_vec();
            }
        }
        let last = things.map(count).to_vec();
        println!("  {things:?}: {first:?} -> {last:?} after {cycles} cycles");
        assert!(
            first[..3].iter().zip(&last[..3]).all(|(a, b)| b <= a),
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
