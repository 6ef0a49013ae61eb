//! Which partition an instance gets, what must come first, and what a refusal changes.

use stelia_koordinator::allocator::CpuSource;

use super::*;
use crate::Level;
use crate::partition_kind::{partition_kind, retry};

fn write(cgroup: &CgroupPath, file: File, value: &str) -> Step {
    Step::Write(cgroup.clone(), file, value.into())
}

/// The kernel refused its partition.
fn refused() -> Snapshot {
    let mut snapshot = isolated();
    let instance = snapshot.first_mut();
    (instance.record.phase, instance.record.partition) = (Phase::Pinned, Partition::Member);
    instance.record.refused = true;
    instance.scope_exclusive = CpuSet::new();
    let inner = instance.inner.as_mut().unwrap();
    inner.exclusive = CpuSet::new();
    let vcpu = inner.vcpu.as_mut().unwrap();
    (vcpu.exclusive, vcpu.partition) = (CpuSet::new(), "member".into());
    snapshot.slice.exclusive = Some(CpuSet::new());
    snapshot.outside.clear();
    snapshot
}

#[test]
fn an_isolated_partition_stays_where_a_new_one_would_be_of_kind_root() {
    let mut snapshot = isolated();
    snapshot.safe_partition = Partition::Root;
    let kind = |snapshot: &Snapshot, setting| {
        let policies = Policies {
            partition: setting,
            ..policies()
        };
        partition_kind(snapshot, &policies, snapshot.first())
    };
    assert_eq!(kind(&snapshot, None), Partition::Isolated);
    assert_eq!(kind(&snapshot, Some(Partition::Root)), Partition::Root);
    assert_eq!(kind(&snapshot, Some(Partition::Member)), Partition::Member);
    let vcpu = snapshot.first_mut().inner.as_mut().unwrap().vcpu.as_mut().unwrap();
    vcpu.partition = "isolated invalid (Cpu list in cpuset.cpus not exclusive)".into();
    assert_eq!(kind(&snapshot, None), Partition::Root);
    snapshot.first_mut().record.partition = Partition::Root;
    assert_eq!(kind(&snapshot, Some(Partition::Isolated)), Partition::Isolated);
}

#[test]
fn a_refused_partition_is_asked_for_again_where_the_kernel_may_make_it() {
    let asked = |change: fn(&mut Snapshot)| {
        let mut snapshot = refused();
        snapshot.first_mut().tries_again = true;
        change(&mut snapshot);
        retry(&snapshot, &policies(), snapshot.first())
    };
    let beside = |list: &str| Level {
        path: CgroupPath::root().child("kubepods.slice"),
        exclusive: Some(cpus(list)),
        ours: CpuSet::new(),
    };
    assert_eq!(asked(|_| {}), Some(Partition::Isolated));
    assert_eq!(asked(|one| one.first_mut().tries_again = false), None);
    assert_eq!(asked(|one| one.first_mut().record.phase = Phase::Isolated), None);
    assert_eq!(asked(|one| one.slice.exclusive = None), None);
    // vCPUs that share CPUs need a partition with load balancing.
    assert_eq!(
        asked(|one| one.first_mut().record.vcpus[0].cpu = None),
        Some(Partition::Root)
    );
    for (list, expected) in [("3", None), ("4-7", Some(Partition::Isolated))] {
        let mut snapshot = refused();
        snapshot.first_mut().tries_again = true;
        snapshot.kubepods = Some(beside(list));
        assert_eq!(retry(&snapshot, &policies(), snapshot.first()), expected, "{list}");
    }
    let mut snapshot = refused();
    snapshot.first_mut().tries_again = true;
    let again = Step::Retry(snapshot.first().scope().clone(), Partition::Isolated);
    assert_eq!(steps(&snapshot), [again]);
    // Its CPUs are another pod's now.
    kubelet_says(&mut snapshot, "0-1,4-7", None, Some("2-3"));
    assert!(!steps(&snapshot).iter().any(|step| matches!(step, Step::Retry(..))));
}

#[test]
fn only_steps_that_give_a_partition_cpus_wait_for_the_list_above() {
    let mut snapshot = isolated();
    let tree = snapshot.first().tree.clone();
    let needs = |snapshot: &Snapshot, step: &Step| snapshot.first().needs_list_above(step);
    let extend = Step::Extend(CgroupPath::slice(), cpus("2-3"));
    assert!(needs(&snapshot, &extend));
    for (cgroup, list, expected) in [
        (tree.vcpu(), "2-4", true),
        (tree.vcpu(), "2", false),
        (tree.vcpu(), "", false),
        (tree.outer(), "2-3", false),
        (tree.float(), "2-3", true),
    ] {
        let step = write(cgroup, File::CpusExclusive, list);
        assert_eq!(needs(&snapshot, &step), expected, "{step}");
    }
    let [isolate, undo] = ["isolated", "member"].map(|kind| write(tree.vcpu(), File::Partition, kind));
    assert!(!needs(&snapshot, &isolate) && !needs(&snapshot, &undo));
    let vcpu = snapshot.first_mut().inner.as_mut().unwrap().vcpu.as_mut().unwrap();
    vcpu.partition = "isolated invalid (Cpu list in cpuset.cpus not exclusive)".into();
    assert!(needs(&snapshot, &isolate) && !needs(&snapshot, &undo));
    assert!(!needs(&snapshot, &write(tree.float(), File::Cpus, "0-1")));
    snapshot.first_mut().record.phase = Phase::Attaching;
    assert!(!needs(&snapshot, &isolate));
}

/// Of a partition that is invalid the kernel makes a valid one only by way of none.
#[test]
fn an_invalid_partition_is_undone_before_it_is_made_again() {
    let mut snapshot = isolated();
    let vcpu = snapshot.first().tree.vcpu().clone();
    let set = |snapshot: &mut Snapshot, text: &str| {
        let vcpu = snapshot.first_mut().inner.as_mut().unwrap().vcpu.as_mut().unwrap();
        vcpu.partition = text.into();
    };
    let [member, isolated] = ["member", "isolated"].map(|kind| write(&vcpu, File::Partition, kind));
    set(
        &mut snapshot,
        "isolated invalid (Parent unable to distribute cpu downstream)",
    );
    assert_eq!(steps(&snapshot), [member, isolated.clone()]);
    set(&mut snapshot, "root");
    assert_eq!(steps(&snapshot), [isolated]);
}

#[test]
fn units_outside_lose_a_pinned_vms_cpus_and_its_own_pod_does_not() {
    let mut snapshot = refused();
    snapshot.source = CpuSource::Steliad;
    let unit = |list: &str| Outside {
        cpus: cpus(list),
        saved: None,
    };
    let of_others = "kubepods-pod416de7c2_21de_472d_817c_fa9d4306cb7d.slice";
    let own = "kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice";
    snapshot.outside = [
        (of_others.to_owned(), unit("0-7")),
        (own.to_owned(), unit("0-7")),
        ("init.scope".to_owned(), unit("2-3")),
        ("user.slice".to_owned(), unit("0-1")),
    ]
    .into();
    snapshot.first_mut().pod_level = Some(Level {
        path: CgroupPath::root().child("kubepods.slice").child(own),
        exclusive: None,
        ours: CpuSet::new(),
    });
    let restrict = Step::Restrict {
        unit: of_others.to_owned(),
        cpus: cpus("0-1,4-7"),
        save: Some(cpus("0-7")),
    };
    // A list without a CPU would mean every CPU: init.scope keeps its own.
    let facts = Derived::of(&snapshot, &policies());
    assert_eq!(outside_units::restrict(&snapshot, &facts), [restrict]);
    for (unit, of_kubelet, of_steliad) in [
        ("system.slice", true, true),
        ("kubepods-burstable.slice", false, true),
        (own, false, true),
        ("kubepods-besteffort.slice", false, false),
        ("machine.slice", false, false),
    ] {
        let [kubelets, ours] = [CpuSource::Kubelet, CpuSource::Steliad].map(|source| is_restricted(unit, source));
        assert_eq!((kubelets, ours), (of_kubelet, of_steliad), "{unit}");
    }
    // A VM whose record cannot be read may be a pinned one.
    snapshot
        .outside
        .values_mut()
        .for_each(|unit| unit.saved = Some(cpus("0-7")));
    let restored = |snapshot: &Snapshot| outside_units::restore(snapshot, &snapshot.facts()).len();
    assert_eq!(restored(&snapshot), 0);
    snapshot.instances.clear();
    assert_eq!(restored(&snapshot), 4);
    snapshot.unreadable.push(("x.scope".into(), "it is damaged".into()));
    assert_eq!(restored(&snapshot), 0);
}

#[test]
fn an_empty_scope_of_an_instance_is_removed_from_below() {
    let mut snapshot = isolated();
    snapshot.first_mut().populated = false;
    let tree = snapshot.first().tree.clone();
    snapshot.abandoned.push(tree.scope().clone());
    let remove = |path: &CgroupPath| Step::Remove(path.clone());
    let expected = [
        remove(tree.vcpu()),
        remove(tree.float()),
        remove(tree.inner()),
        Step::Forget(tree.scope().clone()),
    ];
    assert_eq!(steps(&snapshot), expected);
}

#[test]
fn a_thread_that_left_the_container_is_not_moved_or_pinned() {
    let mut snapshot = isolated();
    let now = snapshot.first_mut().vcpus[0].as_mut().unwrap();
    (now.cgroup, now.affinity) = (CgroupPath::parse("/init.scope").unwrap(), cpus("0-7"));
    let of_it = |step: &Step| matches!(step, Step::MoveThread(50, _) | Step::Pin(50, _) | Step::MoveProcess(..));
    assert_eq!(steps(&snapshot).into_iter().find(of_it), None);
}

/// libvirt, for example.
#[test]
fn vcpus_that_others_pinned_stay_pinned_when_the_vm_leaves() {
    let mut snapshot = isolated();
    let instance = snapshot.first_mut();
    instance.record.phase = Phase::Leaving;
    instance.record.adopted = Some(stelia_model::record::Adopted {
        rule: "libvirt".into(),
        keeps: true,
        pinned: false,
    });
    let inner = instance.inner.as_mut().unwrap();
    (inner.freeze, inner.frozen) = (true, true);
    let is_pin = |step: &Step| matches!(step, Step::Pin(..));
    let pins = |snapshot: &Snapshot| steps(snapshot).into_iter().filter(is_pin).collect::<Vec<_>>();
    assert_eq!(pins(&snapshot), [Step::Pin(50, 2), Step::Pin(51, 3)]);
    snapshot.first_mut().record.adopted = None;
    assert_eq!(pins(&snapshot), []);
}
