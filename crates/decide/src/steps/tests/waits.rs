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
