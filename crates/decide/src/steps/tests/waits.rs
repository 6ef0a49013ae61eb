//! What instances wait for, and how that is shown.

use stelia_api::ReasonCode;

use super::*;
use crate::home::Above;
use crate::{Level, not_isolated};

/// An instance whose vCPU threads are about to be pinned.
fn attaching(partition: Partition) -> Snapshot {
    let mut snapshot = snapshot(vec![instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot, partition, &[Some(2), Some(3)]);
    snapshot
}

fn wait(snapshot: &Snapshot) -> Option<Wait> {
    let (facts, pod) = (Derived::of(snapshot, &policies()), record().pod);
    let assessed = BTreeMap::from([(pod.clone(), snapshot.assess(&policies(), snapshot.first()))]);
    waits(snapshot, &facts, &assessed).remove(&pod)
}

#[test]
fn each_wait_is_for_what_the_instances_own_cpus_lack() {
    let mut beside = attaching(Partition::Isolated);
    assert_eq!(wait(&beside), None);
    beside.left_in_place = cpus("3");
    beside.kubepods = Some(Level {
        path: CgroupPath::root().child("kubepods.slice"),
        exclusive: Some(cpus("3")),
        ours: cpus("3"),
    });
    assert_eq!(wait(&beside), Some(Wait::ListBeside(Above::Kubepods)));
    let mut without_partition = attaching(Partition::Member);
    let unit = |list: &str| Outside {
        cpus: list.parse().unwrap_or_default(),
        saved: Some(CpuSet::new()),
    };
    for (list, expected) in [
        ("", Some(Wait::OutsideUnits)),
        ("0-3", Some(Wait::OutsideUnits)),
        ("0-1", None),
    ] {
        let outside = BTreeMap::from([("system.slice".to_owned(), unit(list))]);
        without_partition.outside = outside;
        assert_eq!(wait(&without_partition), expected, "system.slice on {list:?}");
    }
}

#[test]
fn a_wait_is_shown_with_what_it_delays() {
    let wait = Wait::ListBeside(Above::Slice);
    let has = "cpuset.cpus.exclusive of stelia.slice still has the VM's CPUs";
    let mut snapshot = attaching(Partition::Isolated);
    let assessment = snapshot.assess(&policies(), snapshot.first());
    let reason = not_isolated(snapshot.first(), &assessment, Some(&wait)).unwrap();
    assert_eq!(reason.code, ReasonCode::Pinning);
    assert!(reason.text.ends_with(has), "{}", reason.text);
    snapshot.first_mut().record.phase = Phase::Isolated;
    assert_eq!(not_isolated(snapshot.first(), &assessment, Some(&wait)), None);
}

#[test]
fn an_instance_waits_for_another_one_that_has_its_cpus_and_knows_whether_that_one_leaves() {
    let blocked = |entries: [Option<&str>; 2], change: fn(&mut Instance)| {
        let mut snapshot = attaching(Partition::Isolated);
        kubelet_says(&mut snapshot, "0-1,4-7", entries[0], entries[1]);
        let mut other = isolated().first().clone();
        other.record.pod = PodUid::parse(OTHER).unwrap();
        change(&mut other);
        snapshot.put(other);
        let blocked = snapshot.assess(&policies(), &snapshot.instances[&record().pod]).blocked;
        blocked.map(|blocked| (blocked.cpus.to_string(), blocked.leaves))
    };
    let by = |list: &str, leaves| Some((list.to_owned(), leaves));
    let both = [Some("2-3"), Some("2-3")];
    assert_eq!(blocked(both, |_| {}), by("2-3", false));
    assert_eq!(blocked([Some("2-3"), None], |_| {}), by("2-3", true));
    assert_eq!(
        blocked(both, |other| other.record.phase = Phase::Leaving),
        by("2-3", true)
    );
    assert_eq!(blocked(both, |other| other.populated = false), by("2-3", true));
    let moved = |other: &mut Instance| {
        other.record.exclusive = cpus("4-5");
        other.record.entry = cpus("4-5");
    };
    assert_eq!(blocked([Some("2-3"), Some("4-5")], moved), by("2-3", true));
    let without_partition = |other: &mut Instance| {
        (other.scope_exclusive, other.inner) = (cpus("3"), None);
    };
    assert_eq!(blocked([Some("2-3"), None], without_partition), by("3", true));
    let elsewhere = |other: &mut Instance| {
        (other.scope_exclusive, other.inner) = (CpuSet::new(), None);
    };
    assert_eq!(blocked([Some("2-3"), None], elsewhere), None);
}
