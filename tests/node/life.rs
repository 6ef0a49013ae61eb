//! What happens to an instance in its life: orphaned, registered and deregistered again and again.

use crate::support::*;

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
        let last = || things.map(count).to_vec();
        // What is open only at this moment is closed again.
        let grown = || first[..3].iter().zip(&last()[..3]).any(|(before, now)| now > before);
        wait_until_or("nothing has grown", || format!(": {first:?} {:?}", last()), || !grown());
        println!("  {things:?}: {first:?} -> {:?} after {cycles} cycles", last());
        assert!(last()[3] <= first[3] + 1024, "memory grows");
    });
}
