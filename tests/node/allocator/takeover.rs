//! From kubelet's static policy to steliad's allocator, while pods run.

use super::{Sleeper, allocation, given, on_allocator_after, pool_of, wait_pool};
use crate::support::*;

#[test]
fn pods_that_kubelet_gave_cpus_keep_them_and_nobody_else_gets_them() {
    let before = || {
        let machine = Pod::start_vm("machine", 2, &["--cpuset", "0-1"]);
        let old = Sleeper::start("old", &["--cpuset", "5-6"]);
        let ls = Sleeper::start("ls", &["--qos-class", "burstable"]);
        machine.wait_running();
        let threads = assert_isolated(&machine, 2);
        (machine, threads, old, ls)
    };
    on_allocator_after("", before, |(machine, threads, old, ls)| {
        let list = |sleeper: &Sleeper| sleeper.pod.file("cpuset.cpus");
        let held = cpus("0-1,5-6");
        // kubelet's file names nobody any more.
        wait_pool("shared", "2-4,7");
        assert_says(&journal("-u steliad"), &["Guaranteed pods that are not VMs"]);
        assert_eq!((list(&old), list(&ls)), ("5-6".into(), "2-4,7".into()));
        assert_eq!(assert_isolated(&machine, 2).vcpus, threads.vcpus);
        assert!(allocation(&machine).is_null(), "{}", allocation(&machine));

        let new = Sleeper::start("new", &[]);
        for count in 1..=3 {
            let given = new.get(&format!("cpus={count}"));
            assert!(given.is_disjoint(&held), "{given}");
            new.give_back();
        }
        new.assert_not_allocated("cpus=5", "5");
        // The daemon started anew knows it as well, from what there is.
        restart("steliad.service");
        wait_pool("shared", "2-4,7");
        let own = new.get("cpus=2");
        assert!(own.is_disjoint(&held), "{own}");
        ls.get("");
        ls.wait_float(&pool_of("shared"));

        // Pods go one after the other, and with each its CPUs become steliad's.
        run("kubelet-standin pod delete old --grace 1");
        wait_until("old's CPUs in the pool", || {
            reconcile();
            cpus("5-6").is_subset(&pool_of("allocatable"))
        });
        assert_eq!(assert_isolated(&machine, 2).vcpus, threads.vcpus);
        machine.kill();
        wait_pool("exclusive", &own.to_string());
        // Its next container gets CPUs from steliad.
        run("kubelet-standin pod restart machine");
        let again = given(Pod::show("machine"));
        assert_eq!(allocation(&again)["qos"], "LSE");
        assert_isolated(&again, 2);
        assert!(again.exclusive().is_disjoint(&own));
    });
}
