//! Instances whose cgroups are in their container's own.

use stelia_model::record::{Adopted, Home, Tree};

use super::*;
use crate::Level;
use crate::partition_kind::partition_kind;

const POD: &str = "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice";

fn kubepods() -> CgroupPath {
    CgroupPath::root().child("kubepods.slice")
}

fn pod_slice() -> CgroupPath {
    CgroupPath::parse(POD).unwrap()
}

fn level(path: CgroupPath, list: &str) -> Level {
    Level {
        path,
        exclusive: Some(cpus(list)),
        ours: cpus(list),
    }
}

/// The instance of [`isolated`] with CPUs 2-3, in a container of this home.
fn isolated_in(home: Home) -> Snapshot {
    let mut snapshot = isolated();
    snapshot.slice.exclusive = Some(CpuSet::new());
    snapshot.kubepods = Some(level(kubepods(), "2-3"));
    let instance = snapshot.first_mut();
    instance.record.home = home;
    instance.record.origin = pod_slice().child("cri-containerd-50ab.scope");
    instance.tree = Tree::of(&instance.record);
    instance.pod_level = Some(level(pod_slice(), "2-3"));
    instance.origin_limits = None;
    let vcpu = instance.tree.vcpu().clone();
    instance
        .vcpus
        .iter_mut()
        .flatten()
        .for_each(|now| now.cgroup = vcpu.clone());
    if home == Home::Container {
        instance.record.partition = Partition::Root;
        let inner = instance.inner.as_mut().unwrap();
        inner.float = None;
        inner.vcpu.as_mut().unwrap().partition = "root".into();
        snapshot.slice.workers.as_mut().unwrap().cpus = cpus("0-1,4-7");
    }
    snapshot
}

fn write(cgroup: &CgroupPath, file: File, value: &str) -> Step {
    Step::Write(cgroup.clone(), file, value.into())
}

fn adopted(keeps: bool) -> Option<Adopted> {
    Some(Adopted {
        rule: "kubevirt".into(),
        keeps,
        pinned: false,
    })
}

#[test]
fn the_lists_above_are_extended_where_they_lack_cpus_and_only_there() {
    let snapshot = isolated_in(Home::InPlace);
    assert_eq!(steps(&snapshot), []);
    let mut without = snapshot.clone();
    without.first_mut().pod_level = Some(level(pod_slice(), "2"));
    assert_eq!(steps(&without), [Step::Extend(pod_slice(), cpus("2-3"))]);
    let mut without = snapshot.clone();
    without.kubepods.as_mut().unwrap().exclusive = Some(cpus("2"));
    let of_kubepods = [
        Step::SetOurs(kubepods(), cpus("2")),
        Step::Extend(kubepods(), cpus("2-3")),
    ];
    assert_eq!(steps(&without), of_kubepods);
    // CPUs that nobody's partition has any more are given back, and those of a record that cannot be used are not.
    let mut wider = snapshot.clone();
    wider.kubepods = Some(level(kubepods(), "2-5"));
    assert_eq!(steps(&wider), [Step::SetOurs(kubepods(), cpus("2-3"))]);
    wider.left_in_place = cpus("4-5");
    assert_eq!(steps(&wider), []);
}

#[test]
fn a_partition_in_place_shrinks_from_below_and_its_pod_follows() {
    let mut snapshot = isolated_in(Home::InPlace);
    let instance = snapshot.first_mut();
    instance.record.exclusive = cpus("2");
    instance.record.entry = cpus("2");
    instance.record.vcpus.truncate(1);
    instance.vcpus.truncate(1);
    instance.inner.as_mut().unwrap().vcpu.as_mut().unwrap().threads = vec![50];
    instance.origin_cpus = cpus("2");
    let (outer, vcpu) = (instance.tree.outer().clone(), instance.tree.vcpu().clone());
    kubelet_says(&mut snapshot, "0-1,3-7", Some("2"), None);
    let expected = [
        write(&vcpu, File::Cpus, "2"),
        write(&vcpu, File::CpusExclusive, "2"),
        write(&outer, File::CpusExclusive, "2"),
        Step::SetOurs(pod_slice(), cpus("2")),
    ];
    assert_eq!(steps(&snapshot), expected);
}

#[test]
fn one_that_leaves_gives_its_partition_up_before_its_processes_are_frozen() {
    let mut snapshot = isolated_in(Home::InPlace);
    snapshot.first_mut().record.phase = Phase::Leaving;
    let tree = snapshot.first().tree.clone();
    let expected = [
        write(tree.vcpu(), File::Partition, "member"),
        write(tree.vcpu(), File::CpusExclusive, ""),
        write(tree.outer(), File::CpusExclusive, ""),
        Step::SetOurs(pod_slice(), CpuSet::new()),
        write(tree.float(), File::Freeze, "1"),
    ];
    assert_eq!(steps(&snapshot), expected);
    // Its CPUs stay in the list above until the container's own list was read without them.
    snapshot.first_mut().scope_exclusive = CpuSet::new();
    assert!(steps(&snapshot).contains(&Step::SetOurs(kubepods(), CpuSet::new())));
}

/// The container may write its own lists.
#[test]
fn of_a_containers_lists_counts_what_the_lists_above_let_be_in_force() {
    let mut snapshot = isolated_in(Home::InPlace);
    let vcpu = snapshot.first_mut().inner.as_mut().unwrap().vcpu.as_mut().unwrap();
    (vcpu.exclusive, vcpu.cpus) = (cpus("2-7"), cpus("1-7"));
    let instance = snapshot.first();
    assert_eq!((instance.owned(), instance.listed()), (cpus("2-3"), cpus("2-3")));
    assert_eq!(snapshot.facts().totals().owned(), &cpus("2-3"));
}

#[test]
fn what_is_execd_into_the_container_goes_to_float_and_a_vcpu_does_not() {
    let mut snapshot = isolated_in(Home::InPlace);
    let stray = |thread| crate::MisplacedThread { thread, process: 42 };
    snapshot.first_mut().strays = vec![stray(50), stray(77)];
    let float = snapshot.first().tree.float().clone();
    let moved = [Step::ResetThread(77), Step::MoveThread(77, float.clone())];
    assert_eq!(steps(&snapshot), moved);
    // Before its vCPUs are known whole processes are moved, each once.
    let record = &mut snapshot.first_mut().record;
    (record.phase, record.vcpus) = (Phase::Registered, Vec::new());
    snapshot.first_mut().vcpus.clear();
    let planned = steps(&snapshot);
    let moves = planned.iter().filter(|step| matches!(step, Step::MoveProcess(..)));
    assert_eq!(moves.collect::<Vec<_>>(), [&Step::MoveProcess(42, float)]);
}

#[test]
fn the_partition_of_a_whole_container_is_of_kind_root_and_its_vcpus_are_pinned_where_nobody_else_pins_them() {
    let mut snapshot = isolated_in(Home::Container);
    assert_eq!(steps(&snapshot), []);
    let isolated = Policies {
        partition: Some(Partition::Isolated),
        ..policies()
    };
    assert_eq!(partition_kind(&snapshot, &isolated, snapshot.first()), Partition::Root);
    let now = |snapshot: &mut Snapshot, list: &str| {
        snapshot.first_mut().vcpus[0].as_mut().unwrap().affinity = cpus(list);
    };
    for list in ["2-3", "3"] {
        now(&mut snapshot, list);
        assert_eq!(steps(&snapshot), [Step::Pin(50, 2)], "{list}");
    }
    let mut elsewhere = snapshot.clone();
    elsewhere.first_mut().vcpus[0].as_mut().unwrap().cgroup = CgroupPath::root();
    assert_eq!(steps(&elsewhere), []);
    snapshot.first_mut().record.adopted = adopted(true);
    now(&mut snapshot, "2-3");
    assert_eq!(steps(&snapshot), []);
}

#[test]
fn a_whole_container_that_leaves_keeps_the_pins_of_others_only() {
    for (keeps, pins) in [
        (false, vec![Step::ResetThread(50), Step::ResetThread(51)]),
        (true, vec![]),
    ] {
        let mut snapshot = isolated_in(Home::Container);
        let instance = snapshot.first_mut();
        instance.record.adopted = adopted(keeps);
        instance.record.phase = Phase::Leaving;
        let outer = instance.tree.outer().clone();
        let mut expected = vec![
            write(&outer, File::Partition, "member"),
            write(&outer, File::CpusExclusive, ""),
            Step::SetOurs(pod_slice(), CpuSet::new()),
        ];
        expected.extend(pins);
        expected.push(Step::Unregister(outer));
        let whom = Whom::Instance(record().pod);
        let planned = plan(&snapshot, &policies()).into_iter();
        let own: Vec<Step> = planned.filter(|one| one.whom == whom).map(|one| one.step).collect();
        assert_eq!(own, expected, "keeps: {keeps}");
    }
}

#[test]
fn a_cpu_that_stelia_slice_does_not_need_is_given_up_before_the_pods_list_has_it() {
    let mut snapshot = isolated_in(Home::InPlace);
    snapshot.slice.exclusive = Some(cpus("2-3"));
    snapshot.kubepods = Some(level(kubepods(), ""));
    let instance = snapshot.first_mut();
    instance.record.phase = Phase::Attaching;
    instance.pod_level = Some(level(pod_slice(), ""));
    instance.scope_exclusive = CpuSet::new();
    let float = instance.tree.float().clone();
    instance
        .vcpus
        .iter_mut()
        .flatten()
        .for_each(|now| now.cgroup = float.clone());
    let vcpu = instance.inner.as_mut().unwrap().vcpu.as_mut().unwrap();
    *vcpu = ThreadedCgroup {
        threaded: true,
        partition: "member".into(),
        ..ThreadedCgroup::default()
    };
    let extend = Step::Extend(kubepods(), cpus("2-3"));
    let of_slice = |list: &str| write(&CgroupPath::slice(), File::CpusExclusive, list);
    assert_eq!(steps(&snapshot)[..2], [of_slice(""), extend]);
    // A scope whose record cannot be used keeps its CPU, and the instance waits for that.
    snapshot.left_alone = cpus("3");
    assert_eq!(steps(&snapshot), [of_slice("3")]);
}

#[test]
fn what_ended_containers_left_on_their_pods_is_removed() {
    let mut snapshot = isolated_in(Home::InPlace);
    snapshot.with_ours_left.insert(pod_slice());
    assert_eq!(steps(&snapshot), [Step::SetOurs(pod_slice(), CpuSet::new())]);
    snapshot.with_ours_left.clear();
    let container = pod_slice().child("cri-containerd-77cd.scope");
    snapshot.half_registered.insert(container.clone());
    assert_eq!(steps(&snapshot), [Step::Unregister(container)]);
}
