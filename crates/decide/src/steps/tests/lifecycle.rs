//! From registration to the end of the scope.

use super::*;

#[test]
fn who_does_not_freeze_is_moved_as_it_is_and_whoever_stays_goes_on() {
    let mut snapshot = isolated();
    snapshot.first_mut().record.phase = Phase::Leaving;
    let freeze = |value: &str, snapshot: &Snapshot| {
        Step::Write(snapshot.first().tree.inner().clone(), File::Freeze, value.into())
    };
    let planned = plan(&snapshot, &policies());
    apply(&mut snapshot, &planned);
    snapshot.first_mut().inner.as_mut().unwrap().frozen = false;
    // What all share goes on; it is waited for.
    let waits = plan(&snapshot, &policies());
    assert!(waits.iter().all(|planned| planned.whom == Whom::Node), "{waits:?}");
    snapshot.first_mut().does_not_freeze = true;
    let planned = steps(&snapshot);
    assert_eq!(planned[0], freeze("0", &snapshot));
    assert!(planned.iter().any(|step| matches!(step, Step::MoveProcess(..))));
    // And one that does not leave any more.
    let mut stays = snapshot.clone();
    stays.first_mut().record.phase = Phase::Floating;
    assert!(steps(&stays).contains(&freeze("0", &stays)));
    // Nor one whose container is gone.
    snapshot.first_mut().origin_procs = None;
    assert!(steps(&snapshot).contains(&freeze("0", &snapshot)));
}

#[test]
fn a_dead_instance_leaves_the_slice_only_when_its_scope_is_gone() {
    let mut snapshot = isolated();
    snapshot.first_mut().populated = false;
    assert_eq!(steps(&snapshot), []);
    snapshot.instances.clear();
    let step = Step::Write(CgroupPath::slice(), File::CpusExclusive, String::new());
    assert_eq!(steps(&snapshot), [step]);
}

#[test]
fn an_empty_scope_that_nobody_recorded_is_removed() {
    let mut snapshot = isolated();
    let scope = CgroupPath::slice().child("stelia-instance-416de7c2-21de-472d-817c-fa9d4306cb7d.scope");
    snapshot.abandoned.push(scope.clone());
    assert_eq!(steps(&snapshot), [Step::Forget(scope)]);
}

/// Another program may have the CPU that the list lost.
#[test]
fn the_slices_list_is_not_given_a_cpu_that_it_lost_and_an_instance_is_about_to_leave() {
    let mut snapshot = isolated();
    snapshot.first_mut().record.phase = Phase::Leaving;
    snapshot.slice.exclusive = Some("3".parse().unwrap());
    let of_slice =
        |step: &Step| matches!(step, Step::Write(path, File::CpusExclusive, _) if *path == CgroupPath::slice());
    let written: Vec<Step> = steps(&snapshot).into_iter().filter(of_slice).collect();
    assert_eq!(written, []);
    // One that cannot be read keeps its CPUs.
    snapshot.left_alone = "5".parse().unwrap();
    let written: Vec<Step> = steps(&snapshot).into_iter().filter(of_slice).collect();
    assert_eq!(written, [set_exclusive(&CgroupPath::slice(), &"3,5".parse().unwrap())]);
}
