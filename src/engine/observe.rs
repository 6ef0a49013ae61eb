//! Reading the system into a [`Snapshot`]. Reads only.

use std::collections::{BTreeMap, BTreeSet};

use stelia_allocator::{CpuSource, leftover};
use stelia_cpus::{CpuSet, Topology};
use stelia_kubelet::{CpuManagerState, PodUid};
use stelia_node::System;
use stelia_node::cgroup::{
    CgroupError, CgroupPath, Cgroups, File, cpus, is_populated, numbers, optional, populated, set,
};
use stelia_node::proc::TaskId;
use stelia_record::{Record, RecordError, VcpuThread};
use stelia_settings::{Partition, isolated_is_safe};

use super::container::lists;
use super::limits::{self, KnownLimits, number, protection};
use super::outside::{outside, workers};
use super::siblings;
use crate::decide::{Inner, Instance, Leaf, Slice, Snapshot, Tree, VcpuNow, pod_pool};

/// Everything at once, as a daemon that starts finds it.
///
/// # Errors
/// `stelia.slice` exists and cannot be listed, or the CPU topology cannot be read. A single instance that cannot be read
/// is in [`Snapshot::unreadable`].
pub fn snapshot(
    system: &System,
    kubelet: &Result<CpuManagerState, String>,
    source: CpuSource,
) -> Result<Snapshot, CgroupError> {
    let cgroups = &*system.cgroups;
    let mut snapshot = empty(kubelet.clone(), source, topology(system)?);
    snapshot.safe_partition = safe_partition(system);
    snapshot.slice = slice(cgroups)?;
    snapshot.slice.workers = workers(system, &CpuSet::new(), None)?;
    (snapshot.outside, snapshot.outside_gone) = outside(cgroups, source)?;
    for name in scopes(cgroups)? {
        match adopt(system, &name)? {
            Adopted::Instance(instance) => {
                let record = &instance.record;
                if let Ok(state) = kubelet
                    && pod_pool::is_open(state, record)
                {
                    snapshot
                        .siblings
                        .insert(record.pod.clone(), siblings::of(system, record));
                }
                snapshot.put(*instance);
            }
            Adopted::Unreadable(reason) => snapshot.unreadable.push((name, reason)),
            Adopted::Abandoned(scope) => snapshot.abandoned.push(scope),
            Adopted::Nothing => {}
        }
    }
    snapshot.left_alone = left_alone(cgroups, &snapshot.unreadable)?;
    snapshot.leftover = leftovers(cgroups, &snapshot)?;
    Ok(snapshot)
}

/// Nothing known but this.
pub(super) fn empty(kubelet: Result<CpuManagerState, String>, source: CpuSource, topology: Topology) -> Snapshot {
    Snapshot {
        source,
        leftover: CpuSet::new(),
        kubelet,
        topology,
        safe_partition: Partition::Isolated,
        slice: Slice::default(),
        outside: BTreeMap::new(),
        outside_gone: BTreeSet::new(),
        instances: BTreeMap::new(),
        siblings: BTreeMap::new(),
        unsettled: BTreeSet::new(),
        unreadable: Vec::new(),
        left_alone: CpuSet::new(),
        unwatched: None,
        abandoned: Vec::new(),
    }
}

/// The online CPUs.
pub(super) fn topology(system: &System) -> Result<Topology, CgroupError> {
    Topology::read(&system.sys).map_err(|cause| CgroupError {
        operation: format!("read the CPU topology below {}", system.sys.display()),
        cause,
    })
}

/// `stelia.slice`; without it nothing is set.
pub(super) fn slice(cgroups: &dyn Cgroups) -> Result<Slice, CgroupError> {
    let slice = CgroupPath::slice();
    let Some(controllers) = optional(cgroups.read(&slice, File::SubtreeControl))? else {
        return Ok(Slice::default());
    };
    Ok(Slice {
        exclusive: optional(cgroups.read(&slice, File::CpusExclusive))?.map(|text| cpus(&text)),
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

/// The names of the scopes that are instances', or were to be.
pub(super) fn scopes(cgroups: &dyn Cgroups) -> Result<Vec<String>, CgroupError> {
    let slice = CgroupPath::slice();
    if !cgroups.exists(&slice) {
        return Ok(Vec::new());
    }
    let mut names = cgroups.children(&slice)?;
    names.retain(|name| PodUid::from_scope(name).is_some());
    Ok(names)
}

/// What a scope is that nobody knows yet.
pub(super) enum Adopted {
    /// An instance.
    Instance(Box<Instance>),
    /// One that must be left alone, with the reason.
    Unreadable(String),
    /// One whose maker died: its holder has ended with the maker, so systemd removes it, unless the holder ended before
    /// systemd could put it there. Nothing of a container is in it.
    Abandoned(CgroupPath),
    /// It is gone; or it has no record yet, and somebody is in it: its maker is at work.
    Nothing,
}

/// Read a scope with its record.
///
/// # Errors
/// The kernel does not say whether anybody is in it.
pub(super) fn adopt(system: &System, name: &str) -> Result<Adopted, CgroupError> {
    let cgroups = &*system.cgroups;
    let scope = CgroupPath::slice().child(name);
    let attributes = match cgroups.attributes(&scope) {
        Ok(attributes) => attributes,
        Err(error) if error.is_gone() => return Ok(Adopted::Nothing),
        Err(error) => return Ok(Adopted::Unreadable(error.to_string())),
    };
    let record = match Record::parse(&attributes) {
        Ok(record) if record.pod.scope() == name => record,
        Ok(record) => {
            let text = format!("the scope's record is of pod {}", record.pod);
            return Ok(Adopted::Unreadable(text));
        }
        Err(RecordError::Absent) if populated(cgroups, &scope)? => return Ok(Adopted::Nothing),
        Err(RecordError::Absent) => return Ok(Adopted::Abandoned(scope)),
        Err(error) => return Ok(Adopted::Unreadable(error.to_string())),
    };
    match instance(system, record, Tree::in_scope(scope), true, None) {
        Ok(instance) => Ok(Adopted::Instance(Box::new(instance))),
        Err(error) if error.is_gone() => Ok(Adopted::Nothing),
        Err(error) => Ok(Adopted::Unreadable(error.to_string())),
    }
}

/// `cpuset.cpus.exclusive` of scopes that are left alone.
pub(super) fn left_alone(cgroups: &dyn Cgroups, unreadable: &[(String, String)]) -> Result<CpuSet, CgroupError> {
    let mut all = CpuSet::new();
    for (name, _) in unreadable {
        let list = optional(cgroups.read(&CgroupPath::slice().child(name), File::CpusExclusive))?;
        all.union_with(&cpus(&list.unwrap_or_default()));
    }
    Ok(all)
}

/// What a static CPU manager left behind. While it rules, its file says everything.
pub(super) fn leftovers(cgroups: &dyn Cgroups, snapshot: &Snapshot) -> Result<CpuSet, CgroupError> {
    let rules = snapshot.kubelet.as_ref().is_ok_and(CpuManagerState::is_static);
    if snapshot.source == CpuSource::Kubelet || rules {
        return Ok(CpuSet::new());
    }
    Ok(leftover(&lists(cgroups, &snapshot.instances)?))
}

/// Read an instance whose record is known. `freezes`: look whether its tasks stand still, too. `known`: limits that are not to
/// be read.
///
/// # Errors
/// It is gone, or cannot be read.
pub(super) fn instance(
    system: &System,
    record: Record,
    tree: Tree,
    freezes: bool,
    known: Option<KnownLimits>,
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
    let limits = limits::read(cgroups, scope, &record, here, known)?;
    Ok(Instance {
        populated: is_populated(&cgroups.read(scope, File::Events)?),
        scope_procs: numbers(&cgroups.read(scope, File::Procs)?),
        scope_controllers: words(&cgroups.read(scope, File::SubtreeControl)?),
        scope_exclusive: set(cgroups, scope, File::CpusExclusive)?,
        inner: inner(cgroups, &tree, freezes)?,
        scope_limits: limits.scope,
        origin_limits: limits.origin.filter(|_| here),
        memory_held: limits.memory_held,
        origin_cpus: if here {
            set(cgroups, &record.origin, File::Cpus)?
        } else {
            CpuSet::new()
        },
        origin_procs,
        anchor_lives: same(record.anchor),
        vcpus: record
            .vcpus
            .iter()
            .map(|thread| if same(thread.task) { now(thread) } else { None })
            .collect(),
        refusals: 0,
        does_not_freeze: false,
        unwatched: None,
        record,
        tree,
    })
}

fn inner(cgroups: &dyn Cgroups, tree: &Tree, freezes: bool) -> Result<Option<Inner>, CgroupError> {
    let path = tree.inner();
    let Some(controllers) = optional(cgroups.read(path, File::SubtreeControl))? else {
        return Ok(None);
    };
    let leaf = |path: &CgroupPath| -> Result<Option<Leaf>, CgroupError> {
        let Some(kind) = optional(cgroups.read(path, File::Type))? else {
            return Ok(None);
        };
        let threaded = kind == "threaded";
        Ok(Some(Leaf {
            threaded,
            cpus: set(cgroups, path, File::Cpus)?,
            exclusive: set(cgroups, path, File::CpusExclusive)?,
            partition: optional(cgroups.read(path, File::Partition))?.unwrap_or_default(),
            cpu_max: optional(cgroups.read(path, File::CpuMax))?.unwrap_or_default(),
            // A cgroup that is no threaded one yet has no threads of ours; reading would fail below a threaded one.
            threads: if threaded {
                numbers(&cgroups.read(path, File::Threads)?)
            } else {
                Vec::new()
            },
        }))
    };
    let freeze = freezes && optional(cgroups.read(path, File::Freeze))?.is_some_and(|text| text == "1");
    let frozen = || -> Result<bool, CgroupError> {
        let events = cgroups.read(path, File::Events)?;
        Ok(events.lines().any(|line| line == "frozen 1"))
    };
    Ok(Some(Inner {
        controllers: words(&controllers),
        exclusive: set(cgroups, path, File::CpusExclusive)?,
        mems: optional(cgroups.read(path, File::Mems))?.unwrap_or_default(),
        procs: numbers(&cgroups.read(path, File::Procs)?),
        freeze,
        frozen: freeze && frozen()?,
        float: leaf(tree.float())?,
        vcpu: leaf(tree.vcpu())?,
    }))
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
