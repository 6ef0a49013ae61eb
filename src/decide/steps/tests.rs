use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::{Cpu, Topology};
use stelia_kubelet::CpuManagerState;
use stelia_kubelet::checkpoint::Schema;
use stelia_node::cgroup::{CpuQuota, HugePage, IoMax};
use stelia_node::proc::TaskId;
use stelia_record::testing::record;
use stelia_settings::FloatPolicy;

use super::*;
use crate::decide::workers::{Workers, masks};
use crate::decide::{Inner, Leaf, Outside, Slice, Tree, VcpuNow};

const SCOPE: &str = "/stelia.slice/stelia-instance-b9e4f71c-64a5-4f8d-8574-41363cbaf8e5.scope";
const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// An instance whose scope was made and nothing else yet: container processes 40 (anchor), 41 and 42 in the origin.
pub(crate) fn instance() -> Instance {
    Instance {
        record: Record {
            phase: Phase::Registered,
            vcpus: vec![],
            isolated_us: 0,
            ..record()
        },
        tree: Tree::in_scope(CgroupPath::parse(SCOPE).unwrap()),
        populated: true,
        scope_procs: vec![7],
        scope_controllers: BTreeSet::new(),
        scope_exclusive: CpuSet::new(),
        inner: None,
        scope_limits: Limits::default(),
        origin_limits: Some(Limits::default()),
        memory_held: None,
        origin_procs: Some(vec![40, 41, 42]),
        origin_cpus: cpus("2-3"),
        anchor_lives: true,
        vcpus: vec![],
        refusals: 0,
        does_not_freeze: false,
        unwatched: None,
    }
}

/// A node of 8 CPUs; kubelet gave 2-3 to the record's pod.
pub(crate) fn snapshot(instances: Vec<Instance>) -> Snapshot {
    let entry = BTreeMap::from([("instance".to_owned(), cpus("2-3"))]);
    Snapshot {
        source: stelia_allocator::CpuSource::Kubelet,
        leftover: CpuSet::new(),
        outside_gone: BTreeSet::new(),
        kubelet: Ok(CpuManagerState {
            schema: Schema::V2,
            policy: "static".into(),
            default_cpus: cpus("0-1,4-7"),
            entries: BTreeMap::from([(record().pod, entry)]),
            container_entries: BTreeMap::new(),
            pod_entries: BTreeMap::new(),
        }),
        topology: topology("0-7"),
        safe_partition: Partition::Isolated,
        slice: Slice {
            exclusive: Some(CpuSet::new()),
            weight: Some(100),
            protected: Some((0, 0)),
            controllers: BTreeSet::new(),
            workers: Some(Workers {
                cpus: cpus("0-7"),
                ..Workers::default()
            }),
        },
        outside: BTreeMap::from([("system.slice".to_owned(), Outside::default())]),
        instances: instances
            .into_iter()
            .map(|instance| (instance.record.pod.clone(), instance))
            .collect(),
        siblings: BTreeMap::new(),
        unsettled: BTreeSet::new(),
        unreadable: vec![],
        left_alone: CpuSet::new(),
        unwatched: None,
        abandoned: vec![],
    }
}

fn topology(online: &str) -> Topology {
    let describe = |cpu| {
        let core = Cpu {
            package: cpu / 4,
            core: cpu / 2,
            node: cpu / 4,
        };
        (cpu, core)
    };
    Topology {
        cpus: cpus(online).iter().map(describe).collect(),
    }
}

/// The instance of [`record`], isolated.
pub(crate) fn isolated() -> Snapshot {
    let mut snapshot = snapshot(vec![instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot, Partition::Isolated, &[Some(2), Some(3)]);
    settle(&mut snapshot);
    snapshot
}

/// The NUMA nodes' pools have tests of their own.
fn policies() -> Policies {
    Policies {
        float: FloatPolicy::Node,
        ..Policies::default()
    }
}

/// What the kernel and systemd make of the steps, as far as the planner looks at it.
pub(crate) fn apply(snapshot: &mut Snapshot, steps: &[Planned]) {
    for Planned { pod, step } in steps {
        if let Some(pod) = pod {
            apply_one(snapshot.instances.get_mut(pod).unwrap(), step);
            continue;
        }
        match step {
            Step::Write(_, File::CpusExclusive, value) => snapshot.slice.exclusive = Some(value.parse().unwrap()),
            Step::Write(_, File::SubtreeControl, value) => {
                snapshot.slice.controllers.insert(value[1..].to_owned());
            }
            Step::Weigh(weight) => snapshot.slice.weight = Some(*weight),
            Step::KeepWorkersOff(closed) => {
                let now = snapshot.slice.workers.as_mut().unwrap();
                let (cpus, taken) = masks(&now.cpus, &now.isolated, &now.taken, closed).unwrap();
                (now.cpus, now.taken) = (cpus, taken);
            }
            Step::Protect { min, low } => snapshot.slice.protected = Some((*min, *low)),
            Step::Restrict { unit, cpus, save } => {
                let outside = snapshot.outside.get_mut(unit).unwrap();
                outside.cpus = cpus.clone();
                outside.saved = save.clone().or(outside.saved.take());
            }
            Step::Restore(unit, saved) => {
                let cpus = saved.clone();
                snapshot.outside.insert(unit.clone(), Outside { cpus, saved: None });
            }
            other => panic!("{other:?}"),
        }
    }
}

fn apply_one(instance: &mut Instance, step: &Step) {
    let scope = instance.scope().clone();
    let inner_path = scope.child("instance");
    match step {
        Step::Create(path) if *path == inner_path => instance.inner = Some(Inner::default()),
        Step::Create(path) => drop(leaf(instance, path)),
        Step::Write(path, file, value) => write(instance, path, *file, value),
        Step::MoveProcess(pid, to) => move_process(instance, *pid, to),
        Step::MoveThread(tid, to) => {
            for name in ["float", "vcpu"] {
                leaf(instance, &inner_path.child(name))
                    .threads
                    .retain(|other| other != tid);
            }
            leaf(instance, to).threads.push(*tid);
            if let Some(now) = vcpu_now(instance, *tid) {
                now.cgroup = to.clone();
            }
        }
        Step::Pin(tid, cpu) => vcpu_now(instance, *tid).unwrap().affinity = [*cpu].into_iter().collect(),
        Step::ResetThread(tid) => {
            let set = instance.record.exclusive.clone();
            if let Some(now) = vcpu_now(instance, *tid) {
                now.affinity = set;
            }
        }
        Step::ResetProcess(_) | Step::Remove(_) if *step != Step::Remove(inner_path.clone()) => {}
        // systemd removes the scope that is empty now.
        Step::Remove(_) => {
            instance.inner = None;
            instance.populated = instance.record.phase != Phase::Leaving;
        }
        Step::Enter(_, phase) => instance.record.phase = *phase,
        Step::Entitle { entry, exclusive, .. } => {
            instance.record.entry = entry.clone();
            instance.record.exclusive = exclusive.clone();
        }
        Step::Place(_, vcpus, partition) => {
            instance.record.vcpus = vcpus.clone();
            instance.record.partition = *partition;
        }
        Step::Limit(_, limits) => {
            instance.scope_limits = Limits {
                oom_group: instance.scope_limits.oom_group,
                hugetlb: instance.scope_limits.hugetlb.clone(),
                hugetlb_reserved: instance.scope_limits.hugetlb_reserved.clone(),
                io_max: instance.scope_limits.io_max.clone(),
                uclamp_min: instance.scope_limits.uclamp_min.clone(),
                uclamp_max: instance.scope_limits.uclamp_max.clone(),
                ..(**limits).clone()
            };
        }
        other => panic!("{other:?}"),
    }
}

fn vcpu_now(instance: &mut Instance, tid: i32) -> Option<&mut VcpuNow> {
    let index = instance.record.vcpus.iter().position(|thread| thread.task.id == tid)?;
    instance.vcpus.get_mut(index)?.as_mut()
}

fn move_process(instance: &mut Instance, pid: i32, to: &CgroupPath) {
    instance.scope_procs.retain(|other| *other != pid);
    if let Some(procs) = &mut instance.origin_procs {
        procs.retain(|other| *other != pid);
        if *to == instance.record.origin {
            procs.push(pid);
        }
    }
    let inner_path = instance.tree.inner().clone();
    if let Some(inner) = &mut instance.inner {
        inner.procs.retain(|other| *other != pid);
        if to.is_within(&inner_path) {
            inner.procs.push(pid);
        }
    }
    for now in instance.vcpus.iter_mut().flatten().filter(|now| now.process == pid) {
        now.cgroup = to.clone();
    }
}

fn leaf<'a>(instance: &'a mut Instance, path: &CgroupPath) -> &'a mut Leaf {
    let inner = instance.inner.as_mut().unwrap();
    let leaf = if path.name() == "float" {
        &mut inner.float
    } else {
        &mut inner.vcpu
    };
    leaf.get_or_insert_with(Default::default)
}

fn write(instance: &mut Instance, path: &CgroupPath, file: File, value: &str) {
    let inner_path = instance.tree.inner().clone();
    let cpus = || value.parse::<CpuSet>().unwrap();
    let enabled = || {
        value
            .split(' ')
            .map(|name| name.trim_start_matches('+').to_owned())
            .collect()
    };
    match file {
        File::SubtreeControl if *path == *instance.scope() => instance.scope_controllers = enabled(),
        File::SubtreeControl => instance.inner.as_mut().unwrap().controllers = enabled(),
        File::CpusExclusive if *path == *instance.scope() => instance.scope_exclusive = cpus(),
        File::CpusExclusive if *path == inner_path => instance.inner.as_mut().unwrap().exclusive = cpus(),
        File::CpusExclusive => leaf(instance, path).exclusive = cpus(),
        File::Freeze => {
            let inner = instance.inner.as_mut().unwrap();
            (inner.freeze, inner.frozen) = (value == "1", value == "1");
        }
        File::Mems => instance.inner.as_mut().unwrap().mems = value.into(),
        File::Type => leaf(instance, path).threaded = value == "threaded",
        File::Cpus => leaf(instance, path).cpus = cpus(),
        File::CpuMax => leaf(instance, path).cpu_max = value.into(),
        File::Partition => leaf(instance, path).partition = value.into(),
        File::MemoryOomGroup => instance.scope_limits.oom_group = value == "1",
        File::HugetlbMax(size) => drop(instance.scope_limits.hugetlb.insert(size, value.parse().ok())),
        File::HugetlbReservedMax(size) => {
            instance.scope_limits.hugetlb_reserved.insert(size, value.parse().ok());
        }
        File::IoMax => {
            let (device, _) = value.split_once(' ').unwrap();
            instance.scope_limits.io_max.remove(device);
            instance.scope_limits.io_max.extend(IoMax::parse(value));
        }
        File::UclampMin if *path == *instance.scope() => instance.scope_limits.uclamp_min = Some(value.into()),
        File::UclampMin => assert!(path.is_within(&inner_path)),
        File::UclampMax => instance.scope_limits.uclamp_max = Some(value.into()),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn settle(snapshot: &mut Snapshot) {
    // As many rounds as a pass of the engine takes.
    for _ in 0..8 {
        snapshot.instances.retain(|_, instance| instance.populated);
        let steps = plan(snapshot, &policies());
        if steps.is_empty() {
            return;
        }
        apply(snapshot, &steps);
    }
    panic!("still planning: {:?}", plan(snapshot, &policies()));
}

/// vCPU threads 50, 51, … of process 42, as AttachVcpus records them.
fn attach(snapshot: &mut Snapshot, partition: Partition, pins: &[Option<u32>]) {
    let instance = snapshot.first_mut();
    instance.record.partition = partition;
    instance.record.phase = Phase::Attaching;
    instance.record.vcpus.clear();
    instance.vcpus.clear();
    for (index, cpu) in (0..).zip(pins) {
        instance.record.vcpus.push(VcpuThread {
            role: ThreadRole::Vcpu(index),
            task: TaskId {
                id: 50 + index as i32,
                start: 500,
            },
            cpu: *cpu,
        });
        instance.vcpus.push(Some(VcpuNow {
            process: 42,
            cgroup: instance.tree.float().clone(),
            affinity: cpus("0-7"),
        }));
    }
}

fn steps(snapshot: &Snapshot) -> Vec<Step> {
    plan(snapshot, &policies())
        .into_iter()
        .map(|planned| planned.step)
        .collect()
}

/// kubelet's state: the pod's own entry, and another pod's.
fn kubelet_says(snapshot: &mut Snapshot, default: &str, own: Option<&str>, other: Option<&str>) {
    let state = snapshot.kubelet.as_mut().unwrap();
    state.default_cpus = cpus(default);
    state.entries.clear();
    let pods = [(record().pod, own), (PodUid::parse(OTHER).unwrap(), other)];
    for (pod, list) in pods {
        if let Some(list) = list {
            state
                .entries
                .insert(pod, BTreeMap::from([("instance".to_owned(), cpus(list))]));
        }
    }
}

fn reasons(snapshot: &Snapshot) -> Vec<String> {
    let degraded = snapshot.assess(&policies(), snapshot.first()).degraded;
    degraded.into_iter().map(|reason| reason.text).collect()
}

#[test]
fn registration_moves_everything_but_the_anchor_once_and_ends_floating() {
    let mut snapshot = snapshot(vec![instance()]);
    let moves: Vec<i32> = steps(&snapshot)
        .iter()
        .filter_map(|step| match step {
            Step::MoveProcess(pid, to) if to.name() == "float" => Some(*pid),
            _ => None,
        })
        .collect();
    assert_eq!(moves, [41, 42]);
    settle(&mut snapshot);
    let instance = snapshot.first();
    assert_eq!(instance.record.phase, Phase::Floating);
    assert_eq!(instance.origin_procs, Some(vec![40]));
    assert_eq!(instance.float().unwrap().cpus, cpus("0-1,4-7"));
}

#[test]
fn attached_threads_end_pinned_in_an_isolated_partition() {
    let snapshot = isolated();
    let instance = snapshot.first();
    assert_eq!(instance.record.phase, Phase::Isolated);
    assert_eq!(snapshot.slice.exclusive, Some(cpus("2-3")));
    let vcpu = instance.vcpu().unwrap();
    assert_eq!(
        (vcpu.partition.as_str(), vcpu.threads.as_slice()),
        ("isolated", [50, 51].as_slice())
    );
    assert_eq!(reasons(&snapshot), Vec::<String>::new());
}

#[test]
fn leaving_gives_every_level_back_and_returns_the_processes() {
    let mut snapshot = isolated();
    snapshot.first_mut().record.phase = Phase::Leaving;
    let freeze = Step::Write(snapshot.first().tree.inner().clone(), File::Freeze, "1".into());
    assert_eq!(steps(&snapshot).last(), Some(&freeze), "before anything is listed");
    for _ in 0..2 {
        let steps = plan(&snapshot, &policies());
        apply(&mut snapshot, &steps);
    }
    let instance = snapshot.first();
    assert_eq!(instance.inner, None);
    assert!(instance.origin_procs.as_ref().unwrap().contains(&41));
    assert!(instance.scope_exclusive.is_empty());
    settle(&mut snapshot);
    assert_eq!(snapshot.slice.exclusive, Some(CpuSet::new()));
}

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
    assert!(waits.iter().all(|planned| planned.pod.is_none()), "{waits:?}");
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
fn a_partition_that_the_kernel_refuses_again_and_again_is_given_up() {
    let mut snapshot = snapshot(vec![instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot, Partition::Isolated, &[Some(2), Some(3)]);
    snapshot.first_mut().refusals = REFUSALS;
    assert_eq!(steps(&snapshot), [Step::Contain(snapshot.first().scope().clone())]);
}

#[test]
fn a_stranger_in_vcpu_goes_to_float() {
    let mut snapshot = isolated();
    let vcpu = snapshot.first_mut().inner.as_mut().unwrap().vcpu.as_mut().unwrap();
    vcpu.threads.push(99);
    let float = CgroupPath::parse(SCOPE).unwrap().child("instance").child("float");
    assert_eq!(steps(&snapshot), [Step::ResetThread(99), Step::MoveThread(99, float)]);
}

#[test]
fn float_keeps_what_it_has_while_kubelets_file_cannot_be_used() {
    let mut snapshot = isolated();
    snapshot.kubelet = Err("absent".into());
    assert_eq!(steps(&snapshot), []);
    assert_eq!(reasons(&snapshot).len(), 1);
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
fn cpus_that_became_another_pods_are_left_at_once_and_taken_back_when_given_back() {
    let mut snapshot = isolated();
    kubelet_says(&mut snapshot, "0-1,5-7", None, Some("3-4"));
    let first: Vec<Step> = steps(&snapshot);
    let member = first
        .iter()
        .position(|step| matches!(step, Step::Write(_, File::Partition, value) if value == "member"));
    assert!(member.is_some(), "{first:?}");
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
    assert!(reasons(&snapshot)[0].contains("no entry"));
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
        assert_eq!(
            reasons(&snapshot).len(),
            usize::from(shared),
            "{:?}",
            reasons(&snapshot)
        );
    }
}

#[test]
fn threads_without_a_cpu_of_their_own_may_use_the_whole_set_of_a_root_partition() {
    let mut snapshot = snapshot(vec![instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot, Partition::Root, &[None, None, None]);
    settle(&mut snapshot);
    let instance = snapshot.first();
    assert_eq!(instance.vcpu().unwrap().partition, "root");
    assert!(instance.vcpus.iter().flatten().all(|now| now.affinity == cpus("2-3")));
    assert!(
        reasons(&snapshot)[0].contains("3 vCPUs share"),
        "{:?}",
        reasons(&snapshot)
    );
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
    assert_eq!(instance.record.phase, Phase::Contained);
    assert_eq!(instance.origin_procs, Some(vec![40]));
    assert_eq!(instance.scope_exclusive, CpuSet::new());
    let lists = |snapshot: &Snapshot| -> Vec<(String, Option<CpuSet>)> {
        snapshot
            .outside
            .values()
            .map(|now| (now.cpus.to_string(), now.saved.clone()))
            .collect()
    };
    assert_eq!(
        lists(&snapshot),
        [
            ("0-1".into(), Some(cpus("0-3"))),
            ("0-1,4-7".into(), Some(CpuSet::new()))
        ]
    );
    snapshot.instances.clear();
    settle(&mut snapshot);
    assert_eq!(lists(&snapshot), [("0-3".into(), None), (String::new(), None)]);
}

#[test]
fn limits_of_the_container_and_the_weight_of_all_follow() {
    let mut snapshot = isolated();
    let limits = Limits {
        memory_max: Some(1 << 30),
        pids_max: Some(500),
        cpu_weight: Some(79),
        oom_group: true,
        hugetlb: BTreeMap::from([(HugePage::Mb2, Some(1 << 21))]),
        ..Limits::default()
    };
    snapshot.first_mut().origin_limits = Some(limits.clone());
    // The file appears with the controller.
    snapshot.first_mut().scope_limits.hugetlb.insert(HugePage::Mb2, None);
    settle(&mut snapshot);
    assert_eq!(snapshot.first().scope_limits, limits);
    assert_eq!(snapshot.slice.weight, Some(79));
    assert!(snapshot.slice.controllers.contains("hugetlb"));
    snapshot.instances.clear();
    settle(&mut snapshot);
    assert_eq!(snapshot.slice.weight, Some(100));
}

/// One that is registered, with these limits on its container.
fn limited(limits: Limits) -> Snapshot {
    let mut snapshot = snapshot(vec![instance()]);
    snapshot.first_mut().origin_limits = Some(limits);
    snapshot
}

#[test]
fn nobody_moves_in_before_the_limits_of_huge_pages_are_on_the_scope() {
    let sizes = |limit: u64| BTreeMap::from([(HugePage::Mb2, Some(limit))]);
    let mut snapshot = limited(Limits {
        hugetlb: sizes(1 << 22),
        hugetlb_reserved: sizes(1 << 21),
        ..Limits::default()
    });
    let is_move = |step: &Step| matches!(step, Step::MoveProcess(pid, _) if *pid != 7);
    let enters = |step: &Step| matches!(step, Step::Enter(..));
    let mut rounds = Vec::new();
    for _ in 0..4 {
        let steps = plan(&snapshot, &Policies::default());
        apply(&mut snapshot, &steps);
        let steps: Vec<Step> = steps.into_iter().map(|planned| planned.step).collect();
        rounds.push((steps.iter().any(is_move), steps.iter().any(enters)));
        // The files come with the controller: in this one they come late.
        if rounds.len() == 2 {
            let none = || BTreeMap::from([(HugePage::Mb2, None)]);
            let scope = &mut snapshot.first_mut().scope_limits;
            (scope.hugetlb, scope.hugetlb_reserved) = (none(), none());
        }
    }
    // The files are written in the third round; whoever waits for them has not floated yet.
    assert_eq!(rounds, [(false, false), (false, false), (false, false), (true, false)]);
    let scope = &snapshot.first().scope_limits;
    assert_eq!(
        (&scope.hugetlb, &scope.hugetlb_reserved),
        (&sizes(1 << 22), &sizes(1 << 21))
    );
}

#[test]
fn a_quota_is_carried_by_who_has_no_cpus_of_its_own_and_by_nobody_else() {
    let quota = CpuQuota::parse("150000 100000");
    let mut snapshot = isolated();
    snapshot.first_mut().origin_limits.as_mut().unwrap().cpu_max = quota;
    assert_eq!(steps(&snapshot), []);
    // Somebody set one on the scope.
    snapshot.first_mut().scope_limits.cpu_max = quota;
    settle(&mut snapshot);
    assert_eq!(snapshot.first().scope_limits.cpu_max, None);

    let mut floats = instance();
    floats.record.exclusive = CpuSet::new();
    let origin = Limits {
        cpu_max: quota,
        ..Limits::default()
    };
    assert_eq!(limits_of_scope(&floats.record, &origin).cpu_max, quota);
    floats.origin_limits = Some(origin);
    let limit = |instance: &Instance| limits::scope(instance);
    assert!(matches!(&limit(&floats)[..], [Step::Limit(_, limits)] if limits.cpu_max == quota));
    floats.scope_limits.cpu_max = quota;
    assert_eq!(limit(&floats), []);
}

#[test]
fn what_is_protected_on_the_slice_is_what_all_have_together() {
    let mut snapshot = isolated();
    let origin = snapshot.first_mut().origin_limits.as_mut().unwrap();
    (origin.memory_min, origin.memory_low) = (1 << 20, 1 << 21);
    settle(&mut snapshot);
    assert_eq!(snapshot.slice.protected, Some((1 << 20, 1 << 21)));
    let scope = &snapshot.first().scope_limits;
    assert_eq!((scope.memory_min, scope.memory_low), (1 << 20, 1 << 21));
    snapshot.first_mut().origin_limits.as_mut().unwrap().memory_low = u64::MAX;
    settle(&mut snapshot);
    assert_eq!(snapshot.slice.protected, Some((1 << 20, u64::MAX)));
    snapshot.instances.clear();
    settle(&mut snapshot);
    assert_eq!(snapshot.slice.protected, Some((0, 0)));
}

#[test]
fn limits_of_devices_and_clamps_are_written_and_taken_away() {
    let mut snapshot = isolated();
    let instance = snapshot.first_mut();
    let clamp = |text: &str| Some(text.to_owned());
    instance.scope_limits.uclamp_min = clamp("0.00");
    instance.scope_limits.uclamp_max = clamp("max");
    let origin = instance.origin_limits.as_mut().unwrap();
    origin.io_max = IoMax::parse("8:0 rbps=1048576\n8:16 wiops=100");
    origin.uclamp_min = clamp("20.00");
    origin.uclamp_max = clamp("80.00");
    let origin = origin.clone();
    let clamped = |step: &Step| matches!(step, Step::Write(_, File::UclampMin, value) if value == "20.00");
    assert_eq!(steps(&snapshot).iter().filter(|step| clamped(step)).count(), 3);
    settle(&mut snapshot);
    assert_eq!(snapshot.first().scope_limits, origin);
    snapshot.first_mut().origin_limits.as_mut().unwrap().io_max = IoMax::parse("8:16 wiops=100 rbps=5");
    let of_devices: Vec<String> = steps(&snapshot).iter().map(Step::to_string).collect();
    assert_eq!(of_devices.len(), 2);
    assert!(
        of_devices[0].contains("8:0 rbps=max wbps=max riops=max wiops=max"),
        "{of_devices:?}"
    );
    settle(&mut snapshot);
    assert_eq!(snapshot.first().scope_limits.io_max.len(), 1);
}

#[test]
fn a_cpu_that_is_offline_takes_nobody_and_the_partition_waits_for_one() {
    let mut snapshot = isolated();
    snapshot.topology = topology("0-2,4-7");
    snapshot.first_mut().vcpus[1].as_mut().unwrap().affinity = cpus("2");
    assert_eq!(steps(&snapshot), []);
    assert_eq!(reasons(&snapshot), ["CPUs 3 are offline"]);
    snapshot.topology = topology("0-1,4-7");
    let vcpu = snapshot.first_mut().inner.as_mut().unwrap().vcpu.as_mut().unwrap();
    vcpu.partition = "isolated invalid (No cpu available due to hotplug)".into();
    assert_eq!(steps(&snapshot), []);
    snapshot.topology = topology("0-7");
    let kinds: Vec<String> = steps(&snapshot)
        .into_iter()
        .filter_map(|step| match step {
            Step::Write(_, File::Partition, kind) => Some(kind),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, ["member", "isolated"]);
    settle(&mut snapshot);
    let instance = snapshot.first();
    assert_eq!(instance.vcpu().unwrap().partition, "isolated");
    assert_eq!(instance.vcpus[1].as_ref().unwrap().affinity, cpus("3"));
}

#[test]
fn a_process_that_somebody_moved_away_comes_back_before_its_threads() {
    let mut snapshot = isolated();
    let elsewhere = CgroupPath::parse("/system.slice").unwrap();
    for now in snapshot.first_mut().vcpus.iter_mut().flatten() {
        now.cgroup = elsewhere.clone();
    }
    assert!(matches!(&steps(&snapshot)[0], Step::MoveProcess(42, to) if to.name() == "float"));
    settle(&mut snapshot);
    assert!(
        snapshot
            .first()
            .vcpus
            .iter()
            .flatten()
            .all(|now| now.cgroup.name() == "vcpu")
    );
}

#[test]
fn an_empty_scope_that_nobody_recorded_is_removed() {
    let mut snapshot = isolated();
    let scope = CgroupPath::slice().child("stelia-instance-416de7c2-21de-472d-817c-fa9d4306cb7d.scope");
    snapshot.abandoned.push(scope.clone());
    assert_eq!(steps(&snapshot), [Step::Forget(scope)]);
}
