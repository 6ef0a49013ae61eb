//! Reading cgroups into the parts of a [`Snapshot`]. Nothing is written.

use std::collections::BTreeSet;
use std::io;

use stelia_cpus::{CpuSet, Topology};
use stelia_decide::{
    Instance, InstanceCgroup, LiveState, RemainingThread, Slice, Snapshot, ThreadedCgroup, Tree, VcpuNow, validated,
};
use stelia_kernel::cgroup::{
    CgroupError, CgroupPath, Cgroups, File, is_populated, numbers, optional, populated, read_cpus, read_mems,
    read_optional_cpus,
};
use stelia_kernel::containers::container_scope;
use stelia_kernel::kernel_release::isolated_is_safe;
use stelia_kernel::proc::TaskId;
use stelia_kernel::{System, runtime_config};
use stelia_koordinator::allocator::leftover;
use stelia_kubelet::{ContainerCgroup, CpuManagerState, PodName, PodUid};
use stelia_model::record::{Home, Phase, Record, RecordError, VcpuThread};
use stelia_settings::Partition;

use super::container::lists;
use super::in_place;
use super::read_limits::{self, LastLimits, LimitFiles, number, protection};

/// At most so many threads of an origin are read at one look. A container's commands can make any number of them; further ones are
/// read when others have ended.
const MAX_ORIGIN_THREADS: usize = 4096;

pub(super) fn topology(system: &System) -> Result<Topology, CgroupError> {
    Topology::read(&system.sys).map_err(|cause| topology_error(system, cause))
}

pub(super) fn topology_error(system: &System, cause: io::Error) -> CgroupError {
    CgroupError {
        operation: format!("read the CPU topology below {}", system.sys.display()),
        cause,
    }
}

/// `stelia.slice`; without it nothing is set.
pub(super) fn slice(cgroups: &dyn Cgroups) -> Result<Slice, CgroupError> {
    let slice = CgroupPath::slice();
    let Some(controllers) = optional(cgroups.read(&slice, File::SubtreeControl))? else {
        return Ok(Slice::default());
    };
    Ok(Slice {
        exclusive: read_optional_cpus(cgroups, &slice, File::CpusExclusive)?,
        weight: number(cgroups, &slice, File::CpuWeight)?,
        protected: protection(cgroups, &slice, File::MemoryMin)?.zip(protection(cgroups, &slice, File::MemoryLow)?),
        controllers: words(&controllers),
        workers: None,
    })
}

/// The kind of partition that this kernel makes without danger to the node.
pub(super) fn safe_partition(system: &System) -> Partition {
    if isolated_is_safe(&system.kernel) {
        Partition::Isolated
    } else {
        Partition::Root
    }
}

/// The names of the scopes in stelia.slice that have an instance's name.
pub(super) fn scopes(cgroups: &dyn Cgroups) -> Result<Vec<String>, CgroupError> {
    let slice = CgroupPath::slice();
    if !cgroups.exists(&slice) {
        return Ok(Vec::new());
    }
    let mut names = cgroups.children(&slice)?;
    names.retain(|name| PodUid::from_scope(name).is_some());
    Ok(names)
}

/// What is found in a scope that is not a known instance.
pub(super) enum Adopted {
    Instance(Box<Instance>),
    /// An instance whose record cannot be used: nothing in it may be changed.
    Unreadable(String),
    /// No record and no process: the daemon that asked for it died, and its holder with it. systemd removes the scope, unless
    /// the holder ended before systemd could move it there.
    Abandoned(CgroupPath),
    /// It is gone, or being made: it has a process and no record yet.
    Nothing,
}

/// Read a scope with its record, as far as that is believed.
pub(super) fn adopt(
    system: &System,
    snapshot: &Snapshot,
    files: &LimitFiles,
    name: &str,
) -> Result<Adopted, CgroupError> {
    let cgroups = &*system.cgroups;
    let scope = CgroupPath::slice().child(name);
    let attributes = match cgroups.attributes(&scope) {
        Ok(attributes) => attributes,
        Err(error) if error.is_gone() => return Ok(Adopted::Nothing),
        Err(error) => return Ok(Adopted::Unreadable(error.to_string())),
    };
    let record = match Record::parse(&attributes) {
        Ok(record) if record.pod.scope() == name && record.home == Home::Scope => record,
        Ok(record) => {
            let text = RecordError::Foreign(
                format!("pod {} ({})", record.pod, record.home.tree().name()),
                name.to_owned(),
            );
            return Ok(Adopted::Unreadable(text.to_string()));
        }
        Err(RecordError::Absent) if populated(cgroups, &scope)? => return Ok(Adopted::Nothing),
        Err(RecordError::Absent) => return Ok(Adopted::Abandoned(scope)),
        Err(error) => return Ok(Adopted::Unreadable(error.to_string())),
    };
    let tree = Tree::of(&record);
    match instance(system, record, tree, true, files, None) {
        Ok(instance) => match validated(snapshot, instance, &LiveState::default()) {
            Ok(mut instance) => {
                instance.pod_name = pod_name(system, &instance.record);
                Ok(Adopted::Instance(Box::new(instance)))
            }
            Err(reason) => Ok(Adopted::Unreadable(reason)),
        },
        Err(error) if error.is_gone() => Ok(Adopted::Nothing),
        Err(error) => Ok(Adopted::Unreadable(error.to_string())),
    }
}

fn pod_name(system: &System, record: &Record) -> Option<PodName> {
    let container = ContainerCgroup::parse(record.origin.as_str())?;
    runtime_config::container(&system.run, &container).pod
}

/// Read a container that has a record on its pod's cgroup, and what is known of it apart from that; `None` where it is gone.
///
/// # Errors
/// Why the record cannot be read.
pub(super) fn read_in_place(
    system: &System,
    files: &LimitFiles,
    container: &CgroupPath,
) -> Result<Option<(Instance, LiveState)>, String> {
    let cgroups = &*system.cgroups;
    let Some(record) = in_place::record(cgroups, container)? else {
        return Ok(None);
    };
    let tree = Tree::of(&record);
    let written = ContainerCgroup::parse(record.origin.as_str())
        .map(|container| runtime_config::container(&system.run, &container))
        .unwrap_or_default();
    let read = || -> Result<(Instance, LiveState), CgroupError> {
        let in_force = in_place::in_force(cgroups, &tree)?;
        let mut instance = instance(system, record, tree, true, files, None)?;
        instance.pod_name = written.pod;
        let container = written.name;
        Ok((instance, LiveState { container, in_force }))
    };
    match read() {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// `cpuset.cpus.exclusive` of scopes whose record cannot be used.
pub(super) fn left_alone(cgroups: &dyn Cgroups, unreadable: &[(String, String)]) -> Result<CpuSet, CgroupError> {
    let mut all = CpuSet::new();
    for (name, _) in unreadable.iter().filter(|(name, _)| !name.starts_with('/')) {
        let scope = CgroupPath::slice().child(name);
        all.union_with(&read_cpus(cgroups, &scope, File::CpusExclusive)?);
    }
    Ok(all)
}

/// CPUs that kubelet's static policy assigned before it was switched off. While it is on, its file says everything.
pub(super) fn leftovers(cgroups: &dyn Cgroups, snapshot: &Snapshot) -> Result<CpuSet, CgroupError> {
    let rules = snapshot.kubelet.as_ref().is_ok_and(CpuManagerState::is_static);
    if !snapshot.source.may_have_leftovers() || rules {
        return Ok(CpuSet::new());
    }
    Ok(leftover(&lists(cgroups, &snapshot.instances)?))
}

/// Read an instance whose record is known, but for its name, which does not change. `freezes`: also whether its tasks are
/// frozen. `known`: limits that are not to be read.
pub(super) fn instance(
    system: &System,
    record: Record,
    tree: Tree,
    freezes: bool,
    files: &LimitFiles,
    known: Option<LastLimits>,
) -> Result<Instance, CgroupError> {
    let cgroups = &*system.cgroups;
    let scope = tree.scope();
    let origin_procs = optional(cgroups.read(&record.origin, File::Procs))?.map(|text| numbers(&text));
    let here = origin_procs.is_some();
    let procs = &system.procs;
    let same = |task: TaskId| procs.identify(task.id).is_ok_and(|now| now == task);
    let now = |thread: &VcpuThread| {
        let cgroup = procs.cgroup(thread.task.id).ok()?;
        let (process, affinity) = procs.process_and_affinity(thread.task.id).ok()?;
        Some(VcpuNow {
            process,
            cgroup,
            affinity,
        })
    };
    let placed = tree.pod().is_some();
    // In place the container lives under its own limits: there is nothing to carry or to compare.
    let limits = if placed {
        LastLimits::default()
    } else {
        read_limits::read(cgroups, scope, &record, here, files, known)?
    };
    let pod_level = if placed {
        in_place::pod_level(cgroups, &tree)?
    } else {
        None
    };
    // At the end all of them are let go of.
    let remain = !placed && record.phase != Phase::Leaving;
    let (origin_effective, origin_threads) = match origin_procs.as_deref().filter(|_| remain) {
        Some(processes) => remaining_threads(system, &record, processes)?,
        None => Default::default(),
    };
    let scope_exclusive = read_cpus(cgroups, tree.outer(), File::CpusExclusive)?;
    let mut inner = if tree.has_float() {
        inner(cgroups, &tree, freezes)?
    } else {
        container(cgroups, &tree, &scope_exclusive)?
    };
    let strays = if tree.has_float() {
        in_place::strays(system, &tree, inner.as_mut())?
    } else {
        Vec::new()
    };
    Ok(Instance {
        pod_name: None,
        populated: is_populated(&cgroups.read(tree.outer(), File::Events)?),
        scope_procs: if placed {
            Vec::new()
        } else {
            numbers(&cgroups.read(scope, File::Procs)?)
        },
        scope_controllers: if tree.has_float() {
            words(&cgroups.read(scope, File::SubtreeControl)?)
        } else {
            BTreeSet::new()
        },
        scope_exclusive,
        inner,
        scope_limits: limits.scope,
        origin_limits: limits.origin.filter(|_| here),
        memory_held: limits.memory_held,
        origin_cpus: if here {
            read_cpus(cgroups, &container_scope(&record.origin), File::Cpus)?
        } else {
            CpuSet::new()
        },
        origin_procs,
        origin_effective,
        origin_threads,
        anchor_lives: record.anchor.is_none_or(same),
        vcpus: record
            .vcpus
            .iter()
            .map(|thread| if same(thread.task) { now(thread) } else { None })
            .collect(),
        refusals: 0,
        does_not_freeze: false,
        unwatched: None,
        tries_again: false,
        strays,
        pod_level,
        record,
        tree,
    })
}

/// Read the origin's threads of a known instance again.
pub(super) fn origin_threads(system: &System, instance: &mut Instance) -> Result<(), CgroupError> {
    let processes = numbers(&system.cgroups.read(&instance.record.origin, File::Procs)?);
    (instance.origin_effective, instance.origin_threads) = remaining_threads(system, &instance.record, &processes)?;
    instance.origin_procs = Some(processes);
    Ok(())
}

/// Where the threads that stayed in the origin may run, each where it is not on the CPUs of kubelet's entry anyway. One that ends
/// meanwhile is left out.
fn remaining_threads(
    system: &System,
    record: &Record,
    processes: &[i32],
) -> Result<(CpuSet, Vec<RemainingThread>), CgroupError> {
    let effective = read_cpus(&*system.cgroups, &record.origin, File::CpusEffective)?;
    if effective.is_subset(&record.entry) {
        return Ok((effective, Vec::new()));
    }
    // Until a registration is complete all others are being moved.
    let is_anchor = |pid: i32| record.anchor.is_some_and(|anchor| anchor.id == pid);
    let stays = |pid: &&i32| record.phase != Phase::Registered || is_anchor(**pid);
    let processes = processes.iter().filter(stays);
    let threads = processes.filter_map(|pid| system.procs.thread_ids(*pid).ok());
    let remaining = |thread: i32| {
        let affinity = system.procs.affinity(thread).ok()?;
        Some(RemainingThread { thread, affinity })
    };
    let found = threads.flatten().take(MAX_ORIGIN_THREADS).filter_map(remaining);
    let found = found.collect();
    Ok((effective, found))
}

/// The partition of a container whose own cgroup it is. Its tasks are not listed: none of them is moved.
fn container(cgroups: &dyn Cgroups, tree: &Tree, exclusive: &CpuSet) -> Result<Option<InstanceCgroup>, CgroupError> {
    let path = tree.vcpu();
    let vcpu = ThreadedCgroup {
        cpus: read_cpus(cgroups, path, File::Cpus)?,
        exclusive: exclusive.clone(),
        partition: optional(cgroups.read(path, File::Partition))?.unwrap_or_default(),
        ..ThreadedCgroup::default()
    };
    Ok(Some(InstanceCgroup {
        exclusive: exclusive.clone(),
        vcpu: Some(vcpu),
        ..InstanceCgroup::default()
    }))
}

fn inner(cgroups: &dyn Cgroups, tree: &Tree, freezes: bool) -> Result<Option<InstanceCgroup>, CgroupError> {
    let path = tree.inner();
    let Some(controllers) = optional(cgroups.read(path, File::SubtreeControl))? else {
        return Ok(None);
    };
    let leaf = |path: &CgroupPath| -> Result<Option<ThreadedCgroup>, CgroupError> {
        let Some(kind) = optional(cgroups.read(path, File::Type))? else {
            return Ok(None);
        };
        let threaded = kind == "threaded";
        Ok(Some(ThreadedCgroup {
            threaded,
            cpus: read_cpus(cgroups, path, File::Cpus)?,
            exclusive: read_cpus(cgroups, path, File::CpusExclusive)?,
            partition: optional(cgroups.read(path, File::Partition))?.unwrap_or_default(),
            cpu_max: optional(cgroups.read(path, File::CpuMax))?.unwrap_or_default(),
            max_descendants: optional(cgroups.read(path, File::MaxDescendants))?.filter(|most| most != "0"),
            below: Vec::new(),
            // Before it is threaded it has no threads of ours, and below a threaded cgroup the read would fail.
            threads: if threaded {
                numbers(&cgroups.read(path, File::Threads)?)
            } else {
                Vec::new()
            },
        }))
    };
    let freezer = tree.freezer();
    let freeze = freezes && optional(cgroups.read(freezer, File::Freeze))?.is_some_and(|text| text == "1");
    let frozen = || -> Result<bool, CgroupError> {
        let events = cgroups.read(freezer, File::Events)?;
        Ok(events.lines().any(|line| line == "frozen 1"))
    };
    Ok(Some(InstanceCgroup {
        controllers: words(&controllers),
        exclusive: read_cpus(cgroups, path, File::CpusExclusive)?,
        mems: read_mems(cgroups, path)?,
        procs: numbers(&cgroups.read(path, File::Procs)?),
        freeze,
        frozen: freeze && frozen()?,
        // One that is removed while it is read is not the end of the instance.
        float: optional(leaf(tree.float()))?.flatten(),
        vcpu: optional(leaf(tree.vcpu()))?.flatten(),
    }))
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
