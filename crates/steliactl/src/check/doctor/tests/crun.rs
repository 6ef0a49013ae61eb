//! The CPU quotas of containers with exclusive CPUs.

use super::super::crun::{Quota, read};
use super::*;

fn check(quotas: Result<Vec<Quota>, String>) -> Finding {
    named(&Facts { quotas, ..fit() }, "crun")
}

#[test]
fn a_quota_below_the_exclusive_cpus_is_told() {
    for (cpus, milli, expected) in [
        (2, Some(10), Verdict::Warning),
        (2, Some(1999), Verdict::Warning),
        (2, Some(2000), Verdict::Ok),
        (1, Some(1100), Verdict::Ok),
        (2, None, Verdict::Ok),
    ] {
        let cgroup = "/kubepods.slice/a.scope".to_owned();
        let check = check(Ok(vec![Quota { cgroup, cpus, milli }]));
        assert_eq!(check.verdict, expected, "{check:?}");
        assert_eq!(check.cure.is_empty(), expected != Verdict::Warning);
        if milli == Some(10) {
            let found = "/kubepods.slice/a.scope has 2 CPUs of its own and a quota of 1 % of a CPU";
            assert_eq!(check.found, found);
        }
    }
    // What is not known is not said to be right.
    let check = check(Err("cpu.max: denied".to_owned()));
    assert_eq!(check.verdict, Verdict::Unknown);
    assert!(check.found.ends_with("cpu.max: denied"), "{check:?}");
}

#[test]
fn the_containers_are_those_with_the_cpus_of_an_entry_and_their_scope_counts_too() {
    let root = tempfile::tempdir().unwrap();
    let pod = POD.replace('-', "_");
    let slice = format!("sys/fs/cgroup/kubepods.slice/kubepods-pod{pod}.slice");
    let file = |cgroup: &str, name: &str, text: &str| write(root.path(), &format!("{slice}/{cgroup}/{name}"), text);
    let scope = |number: u32| format!("cri-containerd-{number:064x}.scope");
    for (number, cpus, max) in [
        (1, "1,5", "1000 100000"),
        (2, "0,2-4,6-7", "5000 100000"),
        (3, "1,5", "max 100000"),
    ] {
        file(&scope(number), "cgroup.procs", "");
        file(&scope(number), "cgroup.events", "populated 1\nfrozen 0\n");
        file(&scope(number), "cpuset.cpus", cpus);
        file(&scope(number), "cpu.max", max);
    }
    // With crun the processes are one level below.
    let inner = format!("{}/container", scope(1));
    file(&inner, "cgroup.events", "populated 1\nfrozen 0\n");
    file(&inner, "cpuset.cpus", "");
    file(&inner, "cpu.max", "max 100000");
    let mut quotas = read(root.path(), fit().state.as_ref().unwrap()).unwrap();
    quotas.sort_by_key(|quota| quota.milli);
    let found: Vec<_> = quotas.iter().map(|quota| (quota.cpus, quota.milli)).collect();
    assert_eq!(found, [(2, None), (2, Some(10))]);
    let is_inner = |quota: &Quota| quota.cgroup.ends_with("/container");
    assert!(quotas.iter().any(is_inner), "{quotas:?}");
}
