use super::*;
use crate::plan::VcpuNow;
use crate::plan::record::tests::record;

const SCOPE: &str = "/stelia.slice/stelia-instance-b9e4f71c-64a5-4f8d-8574-41363cbaf8e5.scope";

/// An instance whose scope was made and nothing else yet: container processes 40 (anchor), 41 and 42 in the origin.
fn new_instance() -> Instance {
    Instance {
        record: crate::plan::Record {
            phase: Phase::Registered,
            vcpus: vec![],
            isolated_us: 0,
            ..record()
        },
        scope: CgroupPath::parse(SCOPE).unwrap(),
        populated: true,
        scope_procs: vec![7],
        scope_controllers: BTreeSet::new(),
        scope_exclusive: CpuSet::new(),
        inner: None,
        origin_procs: Some(vec![40, 41, 42]),
        anchor_lives: true,
        vcpus: vec![],
    }
}

fn snapshot(instances: Vec<Instance>) -> Snapshot {
    Snapshot {
        pool: Ok("0-1,4-7".parse().unwrap()),
        slice_exclusive: Some(CpuSet::new()),
        instances,
        unreadable: vec![],
    }
}

/// What the kernel makes of the steps, as far as the planner looks at it.
fn apply(snapshot: &mut Snapshot, steps: &[Planned]) {
    for Planned { pod, step } in steps {
        let Some(pod) = pod else {
            let Step::Write(_, File::CpusExclusive, value) = step else {
                panic!("{step:?}")
            };
            snapshot.slice_exclusive = Some(value.parse().unwrap());
            continue;
        };
        let instance = snapshot
            .instances
            .iter_mut()
            .find(|instance| instance.record.pod == *pod)
            .unwrap();
        apply_one(instance, step);
    }
}

fn apply_one(instance: &mut Instance, step: &Step) {
    let scope = instance.scope.clone();
    let inner_path = scope.child("instance");
    match step {
        Step::Create(path) if *path == inner_path => instance.inner = Some(Inner::default()),
        Step::Create(path) => drop(leaf(instance, path)),
        Step::Write(path, file, value) => write(instance, path, *file, value),
        Step::MoveProcess(pid, to) => {
            instance.scope_procs.retain(|other| other != pid);
            if let Some(procs) = &mut instance.origin_procs {
                procs.retain(|other| other != pid);
                if *to == instance.record.origin {
                    procs.push(*pid);
                }
            }
            if let Some(inner) = &mut instance.inner {
                inner.procs.retain(|other| other != pid);
                if to.is_within(&inner_path) {
                    inner.procs.push(*pid);
                }
            }
        }
        Step::MoveThread(tid, to) => {
            for name in ["float", "vcpu"] {
                leaf(instance, &inner_path.child(name))
                    .threads
                    .retain(|other| other != tid);
            }
            leaf(instance, to).threads.push(*tid);
            let index = instance.record.vcpus.iter().position(|thread| thread.task.id == *tid);
            if let Some(Some(now)) = index.and_then(|index| instance.vcpus.get_mut(index)) {
                now.cgroup = to.clone();
            }
        }
        Step::Pin(tid, cpu) => {
            let index = instance
                .record
                .vcpus
                .iter()
                .position(|thread| thread.task.id == *tid)
                .unwrap();
            instance.vcpus[index].as_mut().unwrap().affinity = [*cpu].into_iter().collect();
        }
        Step::ResetProcess(_) | Step::ResetThread(_) => {}
        Step::Remove(path) if *path == inner_path => instance.inner = None,
        Step::Remove(_) => {}
        Step::Enter(_, phase) => instance.record.phase = *phase,
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
    let inner_path = instance.scope.child("instance");
    let cpus = || value.parse::<CpuSet>().unwrap();
    let enabled = || {
        value
            .split(' ')
            .map(|name| name.trim_start_matches('+').to_owned())
            .collect()
    };
    match file {
        File::SubtreeControl if *path == instance.scope => instance.scope_controllers = enabled(),
        File::SubtreeControl => instance.inner.as_mut().unwrap().controllers = enabled(),
        File::CpusExclusive if *path == instance.scope => instance.scope_exclusive = cpus(),
        File::CpusExclusive if *path == inner_path => instance.inner.as_mut().unwrap().exclusive = cpus(),
        File::CpusExclusive => leaf(instance, path).exclusive = cpus(),
        File::Mems => instance.inner.as_mut().unwrap().mems = value.into(),
        File::Type => leaf(instance, path).threaded = value == "threaded",
        File::Cpus => leaf(instance, path).cpus = cpus(),
        File::Partition => leaf(instance, path).partition = value.into(),
        other => panic!("{other:?}"),
    }
}

fn settle(snapshot: &mut Snapshot) {
    for _ in 0..8 {
        let steps = plan(snapshot);
        if steps.is_empty() {
            return;
        }
        apply(snapshot, &steps);
    }
    panic!("still planning: {:?}", plan(snapshot));
}

fn attach(snapshot: &mut Snapshot) {
    let instance = &mut snapshot.instances[0];
    instance.record.vcpus = record().vcpus;
    instance.record.phase = Phase::Attaching;
    let float = instance.scope.child("instance").child("float");
    let all: CpuSet = "0-7".parse().unwrap();
    instance.vcpus = vec![
        Some(VcpuNow {
            cgroup: float,
            affinity: all
        });
        2
    ];
}

#[test]
fn registration_moves_everything_but_the_anchor_once_and_ends_floating() {
    let mut snapshot = snapshot(vec![new_instance()]);
    let moves: Vec<i32> = plan(&snapshot)
        .iter()
        .filter_map(|planned| match &planned.step {
            Step::MoveProcess(pid, to) if to.name() == "float" => Some(*pid),
            _ => None,
        })
        .collect();
    assert_eq!(moves, [41, 42]);
    settle(&mut snapshot);
    let instance = &snapshot.instances[0];
    assert_eq!(instance.record.phase, Phase::Floating);
    assert_eq!(instance.origin_procs, Some(vec![40]));
    assert_eq!(
        instance
            .inner
            .as_ref()
            .unwrap()
            .float
            .as_ref()
            .unwrap()
            .cpus
            .to_string(),
        "0-1,4-7"
    );
}

#[test]
fn attached_threads_end_pinned_in_an_isolated_partition() {
    let mut snapshot = snapshot(vec![new_instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot);
    settle(&mut snapshot);
    let instance = &snapshot.instances[0];
    assert_eq!(instance.record.phase, Phase::Isolated);
    assert_eq!(snapshot.slice_exclusive, Some("2-3".parse().unwrap()));
    let vcpu = instance.inner.as_ref().unwrap().vcpu.as_ref().unwrap();
    assert_eq!(
        (vcpu.partition.as_str(), vcpu.threads.as_slice()),
        ("isolated", [50, 51].as_slice())
    );
    assert_eq!(degraded(&snapshot, instance), Vec::<String>::new());
}

#[test]
fn leaving_gives_every_level_back_and_returns_the_processes() {
    let mut snapshot = snapshot(vec![new_instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot);
    settle(&mut snapshot);
    snapshot.instances[0].record.phase = Phase::Leaving;
    settle(&mut snapshot);
    let instance = &snapshot.instances[0];
    assert_eq!(instance.inner, None);
    assert!(instance.origin_procs.as_ref().unwrap().contains(&41));
    assert!(instance.scope_exclusive.is_empty());
    assert_eq!(snapshot.slice_exclusive, Some(CpuSet::new()));
}

#[test]
fn a_stranger_in_vcpu_goes_to_float() {
    let mut snapshot = snapshot(vec![new_instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot);
    settle(&mut snapshot);
    snapshot.instances[0]
        .inner
        .as_mut()
        .unwrap()
        .vcpu
        .as_mut()
        .unwrap()
        .threads
        .push(99);
    let steps: Vec<Step> = plan(&snapshot).into_iter().map(|planned| planned.step).collect();
    let float = CgroupPath::parse(SCOPE).unwrap().child("instance").child("float");
    assert_eq!(steps, [Step::ResetThread(99), Step::MoveThread(99, float)]);
}

#[test]
fn float_keeps_what_it_has_while_kubelets_file_cannot_be_used() {
    let mut snapshot = snapshot(vec![new_instance()]);
    settle(&mut snapshot);
    snapshot.pool = Err("absent".into());
    assert_eq!(plan(&snapshot), []);
    assert_eq!(degraded(&snapshot, &snapshot.instances[0]).len(), 1);
}

#[test]
fn a_dead_instance_leaves_the_slice_only_when_its_scope_is_gone() {
    let mut snapshot = snapshot(vec![new_instance()]);
    settle(&mut snapshot);
    attach(&mut snapshot);
    settle(&mut snapshot);
    snapshot.instances[0].populated = false;
    assert_eq!(plan(&snapshot), []);
    snapshot.instances.clear();
    let slice = CgroupPath::slice();
    let step = Step::Write(slice, File::CpusExclusive, String::new());
    assert_eq!(plan(&snapshot), [Planned { pod: None, step }]);
}
