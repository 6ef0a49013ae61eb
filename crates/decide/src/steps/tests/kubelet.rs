//! What follows from kubelet's file.

use super::*;
use crate::entitlement::{Entitlement, Shrink};

#[test]
fn keys_that_are_not_known_beside_the_entries_change_nothing() {
    let mut snapshot = isolated();
    snapshot.kubelet.as_mut().unwrap().unknown_keys = vec!["slices".to_owned()];
    assert_eq!(steps(&snapshot), []);
}

#[test]
fn cpus_that_became_another_pods_are_left_at_once_and_taken_back_when_given_back() {
    let mut snapshot = isolated();
    kubelet_says(&mut snapshot, "0-1,5-7", None, Some("3-4"));
    let first: Vec<Step> = steps(&snapshot);
    let is_member = |step: &Step| matches!(step, Step::Write(_, File::Partition, value) if value == "member");
    assert!(first.iter().any(is_member), "{first:?}");
    settle(&mut snapshot);
    let instance = snapshot.first();
    assert_eq!(instance.vcpu().unwrap().threads, Vec::<i32>::new());
    assert_eq!(instance.float().unwrap().cpus, cpus("0-1,5-7"));
    assert_eq!(snapshot.slice.exclusive, Some(CpuSet::new()));
    assert!(reasons(&snapshot)[0].contains(OTHER), "{:?}", reasons(&snapshot));
    kubelet_says(&mut snapshot, "0-1,4-7", Some("2-3"), None);
    settle(&mut snapshot);
    assert_eq!(snapshot.first().vcpu().unwrap().threads, [50, 51]);
    assert_eq!(snapshot.first().vcpu().unwrap().partition, "isolated");
}

#[test]
fn an_entry_that_is_gone_leaves_the_vm_where_it_is() {
    let mut snapshot = isolated();
    kubelet_says(&mut snapshot, "0-1,4-7", None, None);
    assert_eq!(steps(&snapshot), []);
    assert!(reasons(&snapshot)[0].contains("assigns no CPUs"));
    snapshot.unsettled.insert(record().pod);
    assert_eq!(reasons(&snapshot), Vec::<String>::new());
}

/// Every exclusive list and pin stays within what the outer levels allow, at every single step.
fn apply_checked(snapshot: &mut Snapshot) {
    for _ in 0..8 {
        let planned = plan(snapshot, &policies());
        if planned.is_empty() {
            return;
        }
        for one in planned {
            apply(snapshot, std::slice::from_ref(&one));
            let instance = snapshot.first();
            let Some(vcpu) = instance.vcpu() else { continue };
            let slice = snapshot.slice.exclusive.as_ref().unwrap();
            let inner = &instance.inner.as_ref().unwrap().exclusive;
            assert!(instance.scope_exclusive.is_subset(slice), "{one:?}");
            assert!(inner.is_subset(&instance.scope_exclusive), "{one:?}");
            assert!(vcpu.exclusive.is_subset(inner), "{one:?}");
            for now in instance.vcpus.iter().flatten() {
                if now.cgroup.name() == "vcpu" && now.affinity.len() == 1 {
                    assert!(now.affinity.is_subset(&vcpu.cpus), "{one:?}");
                }
            }
        }
    }
    panic!("still planning: {:?}", plan(snapshot, &policies()));
}

/// What is planned and said of an isolated VM with vCPUs on 2-3 whose entry became CPU 2.
fn shrunk(change: impl FnOnce(&mut Snapshot)) -> (CpuSet, Vec<String>) {
    let mut snapshot = isolated();
    kubelet_says(&mut snapshot, "0-1,3-7", Some("2"), None);
    snapshot.first_mut().origin_cpus = cpus("2");
    change(&mut snapshot);
    settle(&mut snapshot);
    let vcpu = snapshot.first().vcpu().unwrap();
    (vcpu.cpus.clone(), reasons(&snapshot))
}

#[test]
fn a_vm_keeps_its_cpus_until_its_vcpus_are_unplugged_or_the_time_is_over_or_another_pod_has_them() {
    let mut snapshot = isolated();
    kubelet_says(&mut snapshot, "0-1,3-7", Some("2"), None);
    snapshot.first_mut().origin_cpus = cpus("2");
    assert_eq!((steps(&snapshot), reasons(&snapshot)), (Vec::new(), Vec::new()));
    let (entry, from, to) = (cpus("2"), 2, 1);
    let entitlement = snapshot.assess(&policies(), snapshot.first()).entitlement;
    assert_eq!(entitlement, Entitlement::Shrinks(Shrink { entry, from, to }));
    // A vCPU is gone, and nothing is done yet.
    snapshot.first_mut().vcpus[0] = None;
    let said = reasons(&snapshot);
    assert!(said.iter().all(|text| !text.contains("cpuset.cpus")), "{said:?}");
    assert_eq!(shrunk(|_| {}), (cpus("2-3"), Vec::new()));
    // A vCPU thread ended, and the other one is moved to the CPU that is left. It has that CPU for its own.
    assert_eq!(
        shrunk(|snapshot| snapshot.first_mut().vcpus[0] = None),
        (cpus("2"), Vec::new())
    );
    let (left, said) = shrunk(|snapshot| {
        snapshot.unplug_overdue.insert(record().pod);
    });
    assert_eq!(left, cpus("2"));
    assert!(said[0].contains("did not give up vCPUs in time"), "{said:?}");
    let (left, said) = shrunk(|snapshot| kubelet_says(snapshot, "0-1,4-7", Some("2"), Some("3")));
    assert_eq!(left, cpus("2"));
    assert!(said[0].contains("share the CPUs"), "{said:?}");
}

#[test]
fn a_resize_in_place_re_pins_a_running_vm_level_by_level() {
    for (default, own) in [
        ("0-1,6-7", "4-5"),
        ("0-1,4-5,7", "3,6"),
        ("0-1,6-7", "2-5"),
        ("0-1,3-7", "2"),
    ] {
        let mut snapshot = isolated();
        kubelet_says(&mut snapshot, default, Some(own), None);
        snapshot.first_mut().origin_cpus = cpus(own);
        snapshot.unplug_overdue.insert(record().pod);
        apply_checked(&mut snapshot);
        let instance = snapshot.first();
        let vcpu = instance.vcpu().unwrap();
        assert_eq!((&vcpu.cpus, &vcpu.exclusive), (&cpus(own), &cpus(own)), "{own}");
        assert_eq!(snapshot.slice.exclusive, Some(cpus(own)));
        assert_eq!(instance.float().unwrap().cpus, cpus(default));
        let shared = cpus(own).len() < 2;
        assert_eq!(vcpu.partition, if shared { "root" } else { "isolated" }, "{own}");
        for now in instance.vcpus.iter().flatten() {
            assert!(
                now.affinity.is_subset(&cpus(own)) && (shared || now.affinity.len() == 1),
                "{now:?}"
            );
        }
        assert_eq!(reasons(&snapshot).is_empty(), !shared, "{:?}", reasons(&snapshot));
    }
}
