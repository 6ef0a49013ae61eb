//! What the kernel and systemd make of steps, as far as a plan depends on it. `stelia-testnode` keeps the kernel's rules and
//! is read through the engine, which is above this module; here a step is a change of plain values, so that thousands of
//! cases with a check after every single step take a moment.

use super::*;

/// The plan without what the kernel refuses in this state: a mask of no CPU at all for the unbound workers. The engine degrades the node
/// then and takes the other steps.
pub(crate) fn possible_plan(snapshot: &Snapshot, policies: &Policies) -> Vec<Planned> {
    let mut steps = plan(snapshot, policies);
    steps.retain(|planned| match &planned.step {
        Step::KeepWorkersOff(closed) => {
            let now = snapshot.slice.workers.as_ref().unwrap();
            masks(&now.cpus, &now.isolated, &now.withheld, closed).is_some()
        }
        _ => true,
    });
    steps
}

pub(crate) fn apply(snapshot: &mut Snapshot, steps: &[Planned]) {
    for Planned { whom, step } in steps {
        if let Step::Extend(_, cpus) = step {
            let list = snapshot.slice.exclusive.get_or_insert_default();
            list.union_with(cpus);
            continue;
        }
        if let Whom::Instance(pod) = whom {
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
                let (cpus, withheld) = masks(&now.cpus, &now.isolated, &now.withheld, closed).unwrap();
                (now.cpus, now.withheld) = (cpus, withheld);
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
        Step::Create(path) if *path == inner_path => instance.inner = Some(InstanceCgroup::default()),
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
        Step::Confine(tid, cpus) => {
            let within = cpus.intersection(&instance.origin_effective);
            let remaining = instance
                .origin_threads
                .iter_mut()
                .find(|remaining| remaining.thread == *tid);
            remaining.unwrap().affinity = within;
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
        step => instance.follow(step.recorded(&instance.record, 0).unwrap()),
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

fn leaf<'a>(instance: &'a mut Instance, path: &CgroupPath) -> &'a mut ThreadedCgroup {
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
        File::Mems => instance.inner.as_mut().unwrap().mems = value.parse().unwrap(),
        File::MaxDescendants => leaf(instance, path).max_descendants = (value != "0").then(|| value.into()),
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

/// Plan and take the steps until none is left.
pub(crate) fn settle(snapshot: &mut Snapshot) {
    // As many rounds as a pass of the engine takes.
    for _ in 0..8 {
        snapshot.instances.retain(|_, instance| instance.populated);
        let steps = possible_plan(snapshot, &policies());
        if steps.is_empty() {
            return;
        }
        apply(snapshot, &steps);
    }
    panic!("still planning: {:?}", possible_plan(snapshot, &policies()));
}
