//! Which CPUs: bind policies, strategies, alignment, exclusivity.

use super::{Sleeper, allocation, configure, cores, nodes, on_allocator, shape, wait_pool};

const FULL: &str = "cpu-bind-policy=FullPCPUs";
const SPREAD: &str = "cpu-bind-policy=SpreadByPCPUs";

#[test]
fn bind_policies_give_whole_cores_or_one_cpu_of_each() {
    on_allocator("", || {
        let [one, two] = ["one", "two"].map(|name| Sleeper::start(name, &[]));
        for (policy, count, shaped) in [
            (FULL, 2, (2, 1, 1)),
            (FULL, 4, (4, 2, 1)),
            (FULL, 6, (6, 3, 2)),
            (SPREAD, 2, (2, 2, 1)),
            // Default is what the node says, and the node says FullPCPUs.
            ("cpu-bind-policy=Default", 2, (2, 1, 1)),
        ] {
            let words = format!("cpus={count} {policy}");
            let first = one.get(&words);
            assert_eq!(shape(&first), shaped, "{words}: {first}");
            one.give_back();
            assert_eq!(one.get(&words), first, "the same request, another answer");
            one.give_back();
        }
        // A CPU of each core of one NUMA node is gone: whole cores are on the other.
        let spread = one.get(&format!("cpus=2 {SPREAD}"));
        let full = two.get(&format!("cpus=2 {FULL}"));
        assert_eq!(shape(&full), (2, 1, 1), "{full}");
        assert_ne!(nodes(&full), nodes(&spread));
        two.give_back();
        // Preferred, not required: what comes closest.
        let closest = two.get(&format!("cpus=5 {FULL}"));
        assert_eq!(shape(&closest), (5, 3, 2), "{closest}");
        two.give_back();
        one.give_back();

        configure("required-cpu-bind-policy = \"FullPCPUsOnly\"");
        one.assert_not_allocated("cpus=3", "3");
        one.assert_not_allocated(&format!("cpus=2 {SPREAD}"), "FullPCPUs");
        let whole = one.get("cpus=4");
        assert_eq!(shape(&whole), (4, 2, 1), "{whole}");
        assert_eq!(allocation(&one.pod)["required"], true);
        one.give_back();
        configure("required-cpu-bind-policy = \"SpreadByPCPUs\"");
        one.assert_not_allocated("cpus=5", "SpreadByPCPUs");
        let spread = one.get("cpus=4");
        assert_eq!(shape(&spread), (4, 4, 2), "{spread}");
        // Not one core is left of which nobody has a CPU; a CPU of each is.
        let other = two.get("cpus=2");
        assert_eq!(cores(&other).len(), 2, "{other}");
        assert!(other.is_disjoint(&spread));
    });
}

#[test]
fn strategies_and_alignment_choose_the_numa_nodes() {
    on_allocator("cpu-bind-policy = \"FullPCPUs\"", || {
        let [one, two, three] = ["one", "two", "three"].map(|name| Sleeper::start(name, &[]));
        let first = one.get("cpus=2");
        let most = two.get("cpus=2 numa-allocate-strategy=MostAllocated");
        assert_eq!(nodes(&most), nodes(&first), "{most} beside {first}");
        two.give_back();
        let evenly = two.get("cpus=4 numa-allocate-strategy=DistributeEvenly numa-topology-alignment-policy=None");
        assert_eq!(shape(&evenly), (4, 2, 2), "{evenly}");
        two.give_back();
        let least = two.get("cpus=2 numa-allocate-strategy=LeastAllocated");
        assert_eq!(nodes(&least).len(), 1);
        assert_ne!(nodes(&least), nodes(&first), "{least} beside {first}");

        // Two CPUs are left on each NUMA node, where an empty host had four.
        for (policy, count) in [("SingleNUMANode", 3), ("Restricted", 3), ("SingleNUMANode", 5)] {
            let words = format!("cpus={count} numa-topology-alignment-policy={policy}");
            three.assert_not_allocated(&words, policy);
        }
        three.assert_not_allocated("cpus=5", "4");
        let best = three.get("cpus=3 numa-topology-alignment-policy=BestEffort");
        assert_eq!((best.len(), nodes(&best).len()), (3, 2), "{best}");
        assert!(best.is_disjoint(&first) && best.is_disjoint(&least));
        three.give_back();
        let single = three.get("cpus=2 numa-topology-alignment-policy=SingleNUMANode");
        assert_eq!(nodes(&single).len(), 1, "{single}");
        three.give_back();

        one.give_back();
        let single = three.get("cpus=4 numa-topology-alignment-policy=SingleNUMANode");
        assert_eq!(shape(&single), (4, 2, 1), "{single}");
        assert_eq!(nodes(&single), nodes(&first));
        three.give_back();
        // Five are on two NUMA nodes on an empty host too.
        let restricted = three.get("cpus=5 numa-topology-alignment-policy=Restricted");
        assert_eq!(nodes(&restricted).len(), 2, "{restricted}");
        assert!(restricted.is_disjoint(&least));
        three.give_back();
        // Nobody gets the last shared CPU: there would be nowhere to float.
        three.assert_not_allocated("cpus=6", "shared");
    });
}

#[test]
fn what_a_scheduler_chose_is_given_or_refused_with_the_reason() {
    on_allocator("reserved-cpus = \"0-1\"", || {
        let [one, two] = ["one", "two"].map(|name| Sleeper::start(name, &[]));
        let given = one.get("cpus=2 scheduled-cpuset=4-5 scheduled-numa-nodes=0-1");
        assert_eq!(given.to_string(), "4-5");
        // Asked again it is the same, and another choice is none of it.
        assert_eq!(one.get("scheduled-cpuset=4-5"), given);
        one.assert_refused("scheduled-cpuset=6-7", "CpusetMismatch", "6-7");
        two.assert_not_allocated("cpus=2 scheduled-cpuset=5-6", "5 are not free");
        two.assert_not_allocated("cpus=2 scheduled-cpuset=1-2", "1 are reserved");
        two.assert_not_allocated("cpus=2 scheduled-cpuset=7-8", "8 are not online");
        two.assert_refused("cpus=3 scheduled-cpuset=2-3", "CpusetMismatch", "2 CPUs");
        configure("reserved-cpus = \"0-1\"\nrequired-cpu-bind-policy = \"FullPCPUsOnly\"");
        two.assert_not_allocated("cpus=2 scheduled-cpuset=3,6", "FullPCPUs");
        assert_eq!(two.get("cpus=2 scheduled-cpuset=6-7").to_string(), "6-7");
        two.give_back();
        one.give_back();
    });
}

#[test]
fn exclusive_policies_are_kept_or_it_is_told_that_they_are_not() {
    on_allocator("reserved-cpus = \"0-1\"", || {
        let four = ["one", "two", "three", "four"].map(|name| Sleeper::start(name, &[]));
        let [one, two, three, last] = &four;
        // Three cores for four that would each have one alone.
        let words = "cpus=1 cpu-exclusive-policy=PCPULevel";
        let alone = [one, two, three].map(|sleeper| {
            let cpus = sleeper.get(words);
            assert_eq!(sleeper.exclusivity(), "kept");
            cpus
        });
        let taken: std::collections::BTreeSet<u32> = alone.iter().flat_map(cores).collect();
        assert_eq!(taken, [1, 2, 3].into(), "{alone:?}");
        last.get(words);
        assert_eq!(last.exclusivity(), "dropped");
        let told = allocation(&last.pod)["explanation"].to_string();
        assert!(told.contains("PCPULevel"), "{told}");
        last.give_back();
        // Whoever does not mind company is no company to mind.
        last.get("cpus=1");
        assert_eq!(last.exclusivity(), "not-asked");
        four.iter().for_each(Sleeper::give_back);
        wait_pool("allocatable", "2-7");

        let words = "cpus=2 cpu-bind-policy=FullPCPUs cpu-exclusive-policy=NUMANodeLevel";
        let (first, second) = (one.get(words), two.get(words));
        assert_ne!(nodes(&first), nodes(&second), "{first} and {second}");
        assert_eq!((one.exclusivity(), two.exclusivity()), ("kept".into(), "kept".into()));
        // Both NUMA nodes have one: on a core of its own at least.
        let third = three.get(words);
        assert_eq!(three.exclusivity(), "downgraded");
        assert!(cores(&third).is_disjoint(&cores(&second)));
        wait_pool("allocatable", "");
        last.assert_not_allocated(words, "2");
        last.assert_not_allocated("cpus=1", "1");
    });
}
