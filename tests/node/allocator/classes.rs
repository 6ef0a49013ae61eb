//! Who runs where: LSE, LSR, LS and BE.

use stelia_cpus::CpuSet;

use super::{all_but, allocation, given, on_allocator, pool_of, shape, vm};
use crate::pinned::{UNITS, assert_contained, is_everybodys};
use crate::support::*;

/// The slices of pods that may not meet an LSR instance: Burstable's, and each Guaranteed pod's but its own.
fn kept_off(own: &Pod) -> Vec<String> {
    let own = own.uid.replace('-', "_");
    let names = names_in(format!("{CGROUP}/kubepods.slice")).into_iter();
    let pods = names.filter(|name| name.starts_with("kubepods-pod") || name == "kubepods-burstable.slice");
    let others = pods.filter(|name| !name.contains(&own));
    others.map(|name| format!("kubepods.slice/{name}")).collect()
}

#[test]
fn lse_is_isolated_lsr_is_open_to_be_alone_and_the_pools_follow() {
    on_allocator("reserved-cpus = \"0-1\"\ncpu-bind-policy = \"FullPCPUs\"", || {
        let ls = Sleeper::start("ls", &["--qos-class", "burstable"]);
        let be = Sleeper::start("be", &["--qos-class", "besteffort"]);
        let burst = Sleeper::start("burst", &[]);
        let bystander = Sleeper::start("bystander", &[]);
        let none = CpuSet::new();
        // The class that Kubernetes' class stands for.
        for (sleeper, words, class) in [
            (&ls, "", "LS"),
            (&be, "", "BE"),
            (&burst, "qos=LS cpu-bind-policy=ConstrainedBurst cpu-limit=1500", "LS"),
        ] {
            assert_eq!(sleeper.get(words), none);
            assert_eq!(allocation(&sleeper.pod)["qos"], class);
        }
        let home = allocation(&burst.pod)["numa_node"].as_u64().expect("a NUMA node");
        let home = cpus(if home == 0 { "0-3" } else { "4-7" });
        let follow = |lse: &CpuSet, lsr: &CpuSet| {
            let shared = all_but(&[lse, lsr]);
            ls.wait_float(&shared);
            burst.wait_float(&home.intersection(&shared));
            be.wait_float(&all_but(&[lse]));
            assert_eq!((pool_of("shared"), pool_of("be_shared")), (shared, all_but(&[lse])));
        };
        follow(&none, &none);

        // A Guaranteed pod that names no class is the node's: LSE. It gets as many CPUs as it may use.
        let lse = vm("lse", 2, &[], &[]);
        assert_eq!(allocation(&lse)["qos"], "LSE");
        assert_isolated(&lse, 2);
        follow(&lse.exclusive(), &none);
        let lsr = vm("lsr", 2, &[], &["--qos", "LSR"]);
        assert_contained(&lsr);
        follow(&lse.exclusive(), &lsr.exclusive());
        assert!(lse.exclusive().is_disjoint(&lsr.exclusive()));
        assert_eq!(lse.exclusive().union(&lsr.exclusive()).intersection(&cpus("0-1")), none);
        let others = kept_off(&lsr);
        let bystander = bystander.pod.uid.replace('-', "_");
        assert_says(&others.join(" "), &[&bystander, "burstable"]);
        wait_until("other pods kept off LSR's CPUs", || {
            let off = |unit: &String| effective(unit).is_disjoint(&lsr.exclusive());
            others.iter().all(off)
        });
        let best_effort = effective("kubepods.slice/kubepods-besteffort.slice");
        assert!(lsr.exclusive().is_subset(&best_effort) && best_effort.is_disjoint(&lse.exclusive()));
        // One that comes later is kept off as well.
        let late = Sleeper::start("late", &[]);
        wait_until("a later pod kept off too", || {
            reconcile();
            let allowed = thread(late.pod.pid).expect("its first process").allowed;
            allowed.is_disjoint(&lsr.exclusive())
        });

        // A VM without CPUs of its own: it runs on the pool, its vCPUs unpinned.
        let floating = vm("floating", 2, &[], &["--qos", "LS"]);
        floating.assert_is("shared");
        assert_eq!(floating.described()["exclusive"], "");
        let threads = floating.threads();
        assert_eq!(threads.vcpus.len(), 2, "{threads:#?}");
        for thread in threads.vcpus.iter().chain(&threads.others) {
            let shared = all_but(&[&lse.exclusive(), &lsr.exclusive()]);
            thread.assert_in(&floating.float(), &shared);
        }

        assert_isolated(&lse, 2);
        lse.delete(1);
        follow(&none, &lsr.exclusive());
        assert_contained(&lsr);
        lsr.delete(1);
        follow(&none, &none);
        let units = || UNITS.into_iter().chain(others.iter().map(String::as_str));
        wait_until("every CPU is everybody's again", || units().all(is_everybodys));
    });
}

/// No scheduler wrote a status into its annotations: the file is there, and empty.
#[test]
fn the_example_for_koordinator_has_the_class_and_the_whole_core_that_it_asks_for() {
    needs_kvm();
    on_allocator("", || {
        let pod = given(crate::first_vm::start("vm-koordinator"));
        assert_eq!(shape(&pod.exclusive()), (2, 1, 1));
        assert_eq!(allocation(&pod)["qos"], "LSE");
        pod.assert_is("isolated");
    });
}
