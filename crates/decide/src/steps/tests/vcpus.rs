//! Where vCPU threads and everybody else run.

use stelia_model::record::Home;

use super::*;
use crate::Level;

/// The CPUs of a whole container that steliad chose are those of its partition alone.
#[test]
fn a_whole_container_without_a_partition_leaves_where_steliad_chose_its_cpus() {
    let mut snapshot = snapshot(vec![instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot, Partition::Isolated, &[Some(2), Some(3)]);
    let instance = snapshot.first_mut();
    instance.refusals = MAX_PARTITION_REFUSALS;
    instance.record.home = Home::Container;
    instance.record.allocation = stelia_model::record::testing::allocated().allocation;
    let scope = instance.scope().clone();
    assert_eq!(steps(&snapshot), [Step::Enter(scope.clone(), Phase::Leaving)]);
    snapshot.first_mut().record.allocation = None;
    assert_eq!(steps(&snapshot), [Step::RecordPinned(scope, PinnedReason::Refused)]);
}

/// The record of the container that has it cannot be used, so no instance blocks this one.
#[test]
fn a_cpu_that_the_other_tree_still_has_is_not_taken() {
    let mut snapshot = snapshot(vec![instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot, Partition::Isolated, &[Some(2), Some(3)]);
    snapshot.kubepods = Some(Level {
        path: CgroupPath::parse("/kubepods.slice").unwrap(),
        exclusive: Some(cpus("2")),
        ours: cpus("2"),
    });
    snapshot.left_in_place = cpus("2");
    let vcpu = snapshot.first().tree.vcpu().clone();
    let takes = |step: &Step| match step {
        Step::Write(cgroup, ..) => *cgroup == vcpu,
        Step::MoveThread(..) | Step::Pin(..) | Step::Enter(..) => true,
        _ => false,
    };
    assert!(!steps(&snapshot).iter().any(takes), "{:#?}", steps(&snapshot));
    snapshot.left_in_place = CpuSet::new();
    let given_up = Step::SetOurs(CgroupPath::parse("/kubepods.slice").unwrap(), CpuSet::new());
    assert!(steps(&snapshot).contains(&given_up));
    assert!(steps(&snapshot).iter().any(takes));
}

/// Also where the kernel has made it already.
#[test]
fn a_contained_instance_gets_no_partition_that_is_forbidden_by_now() {
    let mut snapshot = isolated();
    snapshot.first_mut().record.phase = Phase::Pinned;
    let member = Policies {
        partition: Some(Partition::Member),
        ..policies()
    };
    let scope = snapshot.first().scope().clone();
    assert!(steps(&snapshot).contains(&Step::Enter(scope.clone(), Phase::Isolated)));
    let planned = plan(&snapshot, &member);
    let taken: Vec<&Step> = planned.iter().map(|planned| &planned.step).collect();
    assert_eq!(taken, [&Step::RecordPinned(scope, PinnedReason::Setting)]);
    apply(&mut snapshot, &planned);
    let record = &snapshot.first().record;
    assert_eq!((record.partition, record.refused), (Partition::Member, false));
}

/// The kernel's refusal is recorded until it has made the partition, also while it is asked again.
#[test]
fn a_refusal_is_recorded_until_the_partition_is_made() {
    let scope = || CgroupPath::parse(SCOPE).unwrap();
    let mut record = record();
    let life = [
        (Step::RecordPinned(scope(), PinnedReason::Refused), true),
        (Step::Enter(scope(), Phase::Pinned), true),
        (Step::Retry(scope(), Partition::Isolated), true),
        (Step::RecordPinned(scope(), PinnedReason::Setting), true),
        (Step::Enter(scope(), Phase::Isolated), false),
    ];
    for (step, refused) in life {
        record = step.recorded(&record, 0).unwrap();
        assert_eq!(record.refused, refused, "{step:?}");
    }
}

#[test]
fn a_contained_instance_keeps_the_hosts_units_off_and_gives_them_back() {
    let mut snapshot = snapshot(vec![instance()]);
    snapshot.outside.insert(
        "init.scope".to_owned(),
        Outside {
            cpus: cpus("0-3"),
            saved: None,
        },
    );
    settle(&mut snapshot);
    attach(&mut snapshot, Partition::Member, &[Some(2), Some(3)]);
    // An exec'd shell: nothing but float keeps it off.
    snapshot.first_mut().origin_procs.as_mut().unwrap().push(77);
    settle(&mut snapshot);
    let instance = snapshot.first();
    assert_eq!(instance.record.phase, Phase::Pinned);
    assert_eq!(instance.origin_procs, Some(vec![40]));
    assert_eq!(instance.scope_exclusive, CpuSet::new());
    let lists = |snapshot: &Snapshot| -> Vec<(String, Option<CpuSet>)> {
        let units = snapshot.outside.values();
        units.map(|now| (now.cpus.to_string(), now.saved.clone())).collect()
    };
    let saved = [
        ("0-1".into(), Some(cpus("0-3"))),
        ("0-1,4-7".into(), Some(CpuSet::new())),
    ];
    assert_eq!(lists(&snapshot), saved);
    snapshot.instances.clear();
    settle(&mut snapshot);
    assert_eq!(lists(&snapshot), [("0-3".into(), None), (String::new(), None)]);
}

/// An attach fails while none of the VM's CPUs is online, and a topology that cannot be read says nothing of them.
#[test]
fn a_vm_that_floats_while_it_is_attached_is_not_said_to_be_isolated() {
    let mut snapshot = isolated();
    snapshot.first_mut().record.phase = Phase::Attaching;
    snapshot.topology = topology("0-1,4-7");
    settle(&mut snapshot);
    assert_eq!(snapshot.first().record.phase, Phase::Attaching);
    snapshot.topology = topology("0-7");
    settle(&mut snapshot);
    assert_eq!(snapshot.first().record.phase, Phase::Isolated);
    let policies = Policies::default();
    snapshot.topology = stelia_cpus::Topology::default();
    assert!(!snapshot.assess(&policies, snapshot.first()).must_float);
}

#[test]
fn the_vcpu_of_a_cpu_that_is_offline_runs_on_the_others() {
    let mut snapshot = isolated();
    snapshot.topology = topology("0-2,4-7");
    snapshot.first_mut().vcpus[1].as_mut().unwrap().affinity = cpus("2");
    assert_eq!(steps(&snapshot), []);
    assert_eq!(reasons(&snapshot), ["CPUs 3 are offline"]);
}

/// The kernel lets the threads of a cpuset without a CPU that is online run on the CPUs of its parent.
#[test]
fn without_a_cpu_that_is_online_the_vcpus_float_until_one_returns() {
    let mut snapshot = isolated();
    snapshot.topology = topology("0-1,4-7");
    let vcpu = snapshot.first_mut().inner.as_mut().unwrap().vcpu.as_mut().unwrap();
    vcpu.partition = "isolated invalid (No cpu available due to hotplug)".into();
    settle(&mut snapshot);
    let now = snapshot.first();
    assert!(now.vcpus.iter().flatten().all(|now| now.cgroup.name() == "float"));
    assert_eq!(now.vcpu().unwrap().partition, "member");
    assert!(reasons(&snapshot)[0].starts_with("CPUs 2-3 are offline"));
    snapshot.topology = topology("0-7");
    settle(&mut snapshot);
    let now = snapshot.first();
    assert_eq!(now.vcpu().unwrap().partition, "isolated");
    assert_eq!(now.vcpus[1].as_ref().unwrap().affinity, cpus("3"));
}

#[test]
fn a_process_that_is_in_the_container_again_comes_back_before_its_threads() {
    let mut snapshot = isolated();
    let origin = snapshot.first().record.origin.clone();
    for now in snapshot.first_mut().vcpus.iter_mut().flatten() {
        now.cgroup = origin.clone();
    }
    assert!(matches!(&steps(&snapshot)[0], Step::MoveProcess(42, to) if to.name() == "float"));
    settle(&mut snapshot);
    let mut vcpus = snapshot.first().vcpus.iter().flatten();
    assert!(vcpus.all(|now| now.cgroup.name() == "vcpu"));
}

#[test]
fn what_is_execd_into_the_container_of_an_isolated_vm_stays_there_on_floats_cpus() {
    let mut snapshot = isolated();
    snapshot.first_mut().origin_procs.as_mut().unwrap().push(77);
    assert_eq!(steps(&snapshot), []);
    for (may_run_on, container_has, confined) in [
        ("0-7", "0-1,4-7", true),
        ("0-1,4-7", "0-1,4-7", false),
        ("0-1", "0-1,4-7", true),
        ("0-1", "0-3", false),
        ("2-3", "2-3", false),
    ] {
        let instance = snapshot.first_mut();
        instance.origin_effective = cpus(container_has);
        instance.origin_threads = vec![crate::RemainingThread {
            thread: 77,
            affinity: cpus(may_run_on),
        }];
        let confine = confined.then(|| Step::Confine(77, cpus("0-1,4-7")));
        assert_eq!(
            steps(&snapshot),
            Vec::from_iter(confine),
            "{may_run_on} of {container_has}"
        );
    }
}

/// Another program wrote the list.
#[test]
fn a_float_leaves_vcpus_cpus_also_while_kubelets_file_cannot_be_used() {
    let moves = |list: &str, change: fn(&mut Snapshot, &mut Policies)| {
        let (mut snapshot, mut policies) = (isolated(), policies());
        snapshot.kubelet = Err("it is damaged".into());
        let inner = snapshot.first_mut().inner.as_mut().unwrap();
        inner.float.as_mut().unwrap().cpus = cpus(list);
        change(&mut snapshot, &mut policies);
        let planned = plan(&snapshot, &policies).into_iter().map(|planned| planned.step);
        let written = planned.filter_map(|step| match step {
            Step::Write(path, File::Cpus, list) if path.name() == "float" => Some(list),
            _ => None,
        });
        written.collect::<Vec<_>>()
    };
    assert_eq!(moves("0", |_, _| {}), Vec::<String>::new());
    assert_eq!(moves("1-3", |_, _| {}), ["1"]);
    assert_eq!(moves("2-3", |_, _| {}), ["0-1,4-7"]);
    let reserved = |_: &mut Snapshot, policies: &mut Policies| policies.allocator.reserved = cpus("0,2");
    assert_eq!(moves("2-3", reserved), ["0"]);
    let leftover = |snapshot: &mut Snapshot, _: &mut Policies| snapshot.leftover = cpus("0-1,4-6");
    assert_eq!(moves("2-3", leftover), ["7"]);
    let all = |snapshot: &mut Snapshot, _: &mut Policies| snapshot.leftover = cpus("0-1,4-7");
    assert_eq!(moves("2-3", all), Vec::<String>::new());
}

#[test]
fn floats_quota_is_written_where_it_or_the_setting_is_a_limit() {
    for (now, setting, expected) in [
        ("max 100000", "max", None),
        ("", "max", None),
        ("max 100000", "50000 100000", Some("50000 100000")),
        ("50000 100000", "50000 100000", None),
        ("50000 100000", "max", Some("max")),
    ] {
        let mut snapshot = isolated();
        let inner = snapshot.first_mut().inner.as_mut().unwrap();
        inner.float.as_mut().unwrap().cpu_max = now.into();
        let policies = Policies {
            float_cpu_max: setting.into(),
            ..policies()
        };
        let planned = plan(&snapshot, &policies).into_iter().map(|planned| planned.step);
        let float = snapshot.first().tree.float().clone();
        let write = expected.map(|text| Step::Write(float, File::CpuMax, text.into()));
        assert_eq!(
            planned.collect::<Vec<_>>(),
            Vec::from_iter(write),
            "{now:?}, {setting:?}"
        );
    }
}
