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

#[test]
fn one_that_leaves_goes_back_from_the_partition_outwards() {
    let mut snapshot = isolated();
    snapshot.first_mut().record.phase = Phase::Leaving;
    let inner = snapshot.first_mut().inner.as_mut().unwrap();
    (inner.freeze, inner.frozen) = (true, true);
    let (origin, tree) = (snapshot.first().record.origin.clone(), snapshot.first().tree.clone());
    let write = |path: &CgroupPath, file, value: &str| Step::Write(path.clone(), file, value.into());
    let mut expected = vec![write(tree.vcpu(), File::Partition, "member")];
    expected.extend([tree.vcpu(), tree.inner(), tree.outer()].map(|path| write(path, File::CpusExclusive, "")));
    for pid in &snapshot.first().inner.as_ref().unwrap().procs {
        expected.extend([Step::ResetProcess(*pid), Step::MoveProcess(*pid, origin.clone())]);
    }
    // The anchor stayed in the container.
    expected.push(Step::ResetProcess(40));
    expected.extend([tree.vcpu(), tree.float(), tree.inner()].map(|path| Step::Remove(path.clone())));
    let whom = Whom::Instance(record().pod);
    let planned = plan(&snapshot, &policies()).into_iter();
    let own: Vec<Step> = planned.filter(|one| one.whom == whom).map(|one| one.step).collect();
    assert_eq!(own, expected);
}

#[test]
fn memory_nodes_are_set_where_they_differ_from_the_record() {
    let mut snapshot = isolated();
    let inner = snapshot.first_mut().inner.as_mut().unwrap();
    inner.mems = [1].into();
    let mems = Step::Write(snapshot.first().tree.inner().clone(), File::Mems, "0".into());
    assert_eq!(steps(&snapshot), [mems]);
    snapshot.first_mut().record.mems = Default::default();
    assert_eq!(steps(&snapshot), []);
}

#[test]
fn an_adopted_vm_has_ended_when_none_of_its_threads_is_in_the_container() {
    fn end(instance: &mut Instance) {
        instance.vcpus = vec![None, None];
    }
    fn empty(instance: &mut Instance) {
        instance.inner.as_mut().unwrap().vcpu.as_mut().unwrap().threads.clear();
    }
    fn go(instance: &mut Instance) {
        let elsewhere = CgroupPath::parse("/init.scope").unwrap();
        instance
            .vcpus
            .iter_mut()
            .flatten()
            .for_each(|now| now.cgroup = elsewhere.clone());
    }
    let ended = |change: fn(&mut Instance)| {
        let mut snapshot = isolated();
        let instance = snapshot.first_mut();
        instance.record.adopted = stelia_model::record::testing::adopted().adopted;
        change(instance);
        let leaves = Step::Enter(instance.scope().clone(), Phase::Leaving);
        let is_over = steps(&snapshot) == [leaves];
        (snapshot.first().has_ended(), is_over)
    };
    assert_eq!(ended(|_| {}), (false, false));
    assert_eq!(ended(end), (true, true));
    // They are in /proc for a moment longer.
    assert_eq!(ended(empty), (true, true));
    assert_eq!(ended(go), (true, true));
    assert_eq!(ended(|one| one.vcpus[0] = None), (false, false));
    let in_container = |one: &mut Instance| {
        empty(one);
        one.vcpus[0].as_mut().unwrap().cgroup = one.record.origin.clone();
    };
    assert_eq!(ended(in_container), (false, false));
    let registered = |one: &mut Instance| {
        end(one);
        one.record.adopted = None;
    };
    assert_eq!(ended(registered), (false, false));
    let floating = |one: &mut Instance| {
        end(one);
        one.record.phase = Phase::Floating;
    };
    assert_eq!(ended(floating), (true, false));
    assert_eq!(ended(|one| one.vcpus.clear()), (false, false));
}

#[test]
fn an_instance_owns_what_it_is_to_have_and_what_its_threads_have_not_left() {
    let mut snapshot = isolated();
    let instance = snapshot.first_mut();
    instance.record.exclusive = cpus("3-4");
    instance.populated = false;
    assert_eq!(instance.owned(), cpus("3-4"));
    instance.populated = true;
    assert_eq!((instance.owned(), instance.needed()), (cpus("2-4"), cpus("4")));
    assert_eq!((instance.held(), instance.lacked()), (cpus("2-3"), cpus("4")));
    let vcpu = instance.inner.as_mut().unwrap().vcpu.as_mut().unwrap();
    vcpu.exclusive = CpuSet::new();
    assert_eq!((instance.held(), instance.lacked()), (cpus("2-3"), cpus("3-4")));
    instance.record.partition = Partition::Member;
    assert_eq!(instance.lacked(), CpuSet::new());
    let vcpu = instance.inner.as_mut().unwrap().vcpu.as_mut().unwrap();
    vcpu.threads.clear();
    assert_eq!((instance.held(), instance.owned()), (CpuSet::new(), cpus("3-4")));
    // The outer lists have them until they are written.
    assert_eq!(instance.listed(), cpus("2-3"));
}
