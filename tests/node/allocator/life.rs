//! Allocations outlive the daemon, and nothing else.

use super::{Sleeper, all_but, given, moved, on_allocator, pool_of, vm, wait_pool};
use crate::support::*;

#[test]
fn the_daemon_killed_keeps_every_allocation() {
    on_allocator("", || {
        let machine = vm("machine", 2, &[], &["--cpu-bind-policy", "FullPCPUs"]);
        let lsr = Sleeper::start("lsr", &[]);
        let burst = Sleeper::start("burst", &[]);
        lsr.get("qos=LSR cpus=1 cpu-exclusive-policy=PCPULevel");
        burst.get("qos=LS cpu-bind-policy=ConstrainedBurst cpu-limit=2000");
        let pods = [&machine, &lsr.pod, &burst.pod];
        let seen = || {
            let of =
                |pod: &Pod| ["state", "exclusive", "float", "allocation"].map(|what| pod.described()[what].clone());
            pods.map(of)
        };
        let before = seen();
        assert!(before.iter().flatten().all(|value| !value.is_null()), "{before:?}");
        let threads = assert_isolated(&machine, 2);
        let others = Sleeper::start("others", &[]);
        for _ in 0..3 {
            kill_daemon();
            machine.wait_state("isolated");
            wait_until("all known again", || seen() == before);
            assert_eq!(assert_isolated(&machine, 2), threads);
        }
        let taken = all_but(&[&pool_of("shared")]);
        assert_eq!(taken.len(), 3, "{taken}");
        // What is known is also what is not given out again.
        let new = others.get("cpus=2");
        assert!(new.is_disjoint(&taken), "{new} of {taken}");
        others.give_back();
        // Freed and asked for again: the same.
        let own = lsr.get("");
        lsr.give_back();
        assert_eq!(lsr.get("qos=LSR cpus=1 cpu-exclusive-policy=PCPULevel"), own);
    });
}

#[test]
fn a_container_that_dies_frees_its_cpus_for_the_next() {
    on_allocator("", || {
        let machine = vm("machine", 2, &[], &[]);
        assert_isolated(&machine, 2);
        let sleeper = Sleeper::start("sleeper", &[]);
        let other = sleeper.get("cpus=2");
        assert!(other.is_disjoint(&machine.exclusive()));
        machine.kill();
        wait_pool("exclusive", &other.to_string());
        let again = given(machine.restart());
        assert_eq!(again.exclusive(), machine.exclusive());
        assert_isolated(&again, 2);
        // While nobody looks.
        run("systemctl stop steliad.service");
        again.kill();
        run("systemctl start steliad.service");
        wait_pool("exclusive", &other.to_string());
        wait_pool("allocatable", &all_but(&[&other]).to_string());
        sleeper.pod.kill();
        wait_pool("exclusive", "");
    });
}

/// Nothing is written to the container's `cpuset.cpus`, which is empty.
#[test]
fn a_rule_adopts_a_container_and_its_partition_has_the_cpus() {
    let rule = "[[adopt]]\nname = \"databases\"\nkind = \"container\"\npods = [\"database-*\"]\n";
    on_allocator(rule, || {
        let machine = vm("machine", 2, &[], &[]);
        let service = "while :; do :; done & exec sleep 100000";
        let options = ["--runtime", "runc", "--cpu-limit", "2"];
        let [pod, other] = ["database-main", "web"].map(|name| Pod::start(name, &options, &["sh", "-c", service]));
        reconcile();
        pod.wait_state("isolated");
        let pod = moved(pod);
        let exclusive = pod.exclusive();
        assert_eq!((exclusive.len(), other.state()), (2, None));
        assert!(exclusive.is_disjoint(&machine.exclusive()) && exclusive.is_subset(&partitioned()));
        let file = |name: &str| read(own(&pod).join(name));
        assert_eq!((&*file("cpuset.cpus.partition"), &*file("cpuset.cpus")), ("root", ""));
        assert_eq!(cpus(&file("cpuset.cpus.effective")), exclusive);
        let shared = cpus(&other.file("cpuset.cpus.effective"));
        assert!(shared.is_disjoint(&exclusive), "{shared}");

        let switches = recorded_under_noise(&exclusive);
        assert_eq!(foreign(&pod, &switches), [], "{switches:#?}");

        kill_daemon();
        pod.wait_state("isolated");
        assert_eq!(moved(pod.now()).exclusive(), exclusive);
        pod.kill();
        wait_pool("exclusive", &machine.exclusive().to_string());
        wait_until("its CPUs are given back", || exclusive.is_disjoint(&partitioned()));
    });
}
