//! Reading the system into a [`Snapshot`]. Reads only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use super::container::{self, lists};
use super::{System, siblings};
use crate::cgroup::{CgroupError, CgroupPath, Cgroups, File, HugePage, Limits};
use crate::cpuset::CpuSet;
use crate::excerpt::excerpt;
use crate::kubelet::checkpoint::CPU_MANAGER_STATE;
use crate::kubelet::{CpuManagerState, PodUid};
use crate::plan::allocator::{CpuSource, leftover};
use crate::plan::record::RecordError;
use crate::plan::{Inner, Instance, Leaf, OUTSIDE, Outside, Record, Slice, Snapshot, VcpuNow, is_restricted};
use crate::topology::Topology;

/// kubelet's state, or why it cannot be used. Where steliad chooses the CPUs itself, kubelet may have any policy, or be none
/// at all; but a file that is there must be understood.
pub fn kubelet(root: &Path, source: CpuSource) -> Result<CpuManagerState, String> {
    let path = root.join(CPU_MANAGER_STATE);
    let bytes = match fs::read(&path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound && source == CpuSource::Steliad => {
            return Ok(CpuManagerState::absent());
        }
        read => read.map_err(|cause| format!("read {}: {cause}", path.display()))?,
    };
    let state = CpuManagerState::parse(&bytes).map_err(|cause| format!("{}: {cause}", path.display()))?;
    if !state.is_static() && source == CpuSource::Kubelet {
        return Err(format!(
            "{}: CPU manager policy is {:?}, not \"static\"",
            path.display(),
            excerpt(&state.policy)
        ));
    }
    Ok(state)
}

/// When kubelet wrote its state.
pub fn kubelet_modified(root: &Path) -> Option<SystemTime> {
    fs::metadata(root.join(CPU_MANAGER_STATE)).ok()?.modified().ok()
}

/// The whole picture.
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
    let slice = CgroupPath::slice();
    let topology = Topology::read(&system.sys).map_err(|cause| CgroupError {
        operation: format!("read the CPU topology below {}", system.sys.display()),
        cause,
    })?;
    let mut snapshot = Snapshot {
        source,
        leftover: CpuSet::new(),
        kubelet: kubelet.clone(),
        topology,
        slice: Slice::default(),
        outside: BTreeMap::new(),
        outside_gone: BTreeSet::new(),
        instances: Vec::new(),
        siblings: BTreeMap::new(),
        unsettled: BTreeSet::new(),
        unreadable: Vec::new(),
        left_alone: CpuSet::new(),
        abandoned: Vec::new(),
    };
    if !cgroups.exists(&slice) {
        snapshot.leftover = left(cgroups, &snapshot)?;
        return Ok(snapshot);
    }
    snapshot.slice = Slice {
        exclusive: optional(cgroups.read(&slice, File::CpusExclusive))?.map(|text| cpus(&text)),
        weight: number(cgroups, &slice, File::CpuWeight)?,
        controllers: words(&cgroups.read(&slice, File::SubtreeControl)?),
    };
    snapshot.outside = outside(cgroups, &slice, source)?;
    snapshot.outside_gone = gone(cgroups, &slice, &snapshot.outside)?;
    for name in cgroups.children(&slice)? {
        let Some(pod) = PodUid::from_scope(&name) else { continue };
        let scope = slice.child(&name);
        let attributes = match cgroups.attributes(&scope) {
            Ok(attributes) => attributes,
            Err(error) if error.is_gone() => continue,
            Err(error) => {
                snapshot.unreadable.push((name, error.to_string()));
                continue;
            }
        };
        let record = match Record::parse(&attributes) {
            Ok(record) if record.pod == pod => record,
            Ok(record) => {
                snapshot
                    .unreadable
                    .push((name, format!("the scope's record is of pod {}", record.pod)));
                continue;
            }
            Err(error) => {
                // A scope without a record is one whose maker died: its holder has ended with the maker, so systemd
                // removes it, unless the holder ended before systemd could put it there. Nothing of a container is in it.
                if error != RecordError::Absent {
                    snapshot.unreadable.push((name, error.to_string()));
                } else if !populated(cgroups, &scope)? {
                    snapshot.abandoned.push(scope);
                }
                continue;
            }
        };
        match instance(system, record, scope) {
            Ok(instance) => snapshot.instances.push(instance),
            Err(error) if error.is_gone() => {}
            Err(error) => snapshot.unreadable.push((name, error.to_string())),
        }
    }
    snapshot.siblings = siblings::of_open_pods(system, kubelet, &snapshot.instances);
    for (name, _) in &snapshot.unreadable {
        let list = optional(cgroups.read(&slice.child(name), File::CpusExclusive))?;
        snapshot.left_alone = snapshot.left_alone.union(&cpus(&list.unwrap_or_default()));
    }
    snapshot.leftover = left(cgroups, &snapshot)?;
    Ok(snapshot)
}

/// What a static CPU manager left behind. While it rules, its file says everything.
fn left(cgroups: &dyn Cgroups, snapshot: &Snapshot) -> Result<CpuSet, CgroupError> {
    let rules = snapshot.kubelet.as_ref().is_ok_and(CpuManagerState::is_static);
    if snapshot.source == CpuSource::Kubelet || rules {
        return Ok(CpuSet::new());
    }
    Ok(leftover(&lists(cgroups, &snapshot.instances)?))
}

const SAVED: &str = "allowed-cpus.";

/// The attribute of stelia.slice that keeps what a unit outside had before it was restricted.
pub(super) fn saved_attribute(unit: &str) -> String {
    format!("{SAVED}{unit}")
}

/// The units outside that are restricted, or were: as they are and as they were.
pub(super) fn outside(
    cgroups: &dyn Cgroups,
    slice: &CgroupPath,
    source: CpuSource,
) -> Result<BTreeMap<String, Outside>, CgroupError> {
    let attributes = cgroups.attributes(slice)?;
    let saved = |unit: &str| attributes.get(&saved_attribute(unit)).map(|text| cpus(text));
    let root = CgroupPath::root();
    let kubepods = root.child("kubepods.slice");
    let of_pods = if cgroups.exists(&kubepods) {
        cgroups.children(&kubepods)?
    } else {
        Vec::new()
    };
    let host = OUTSIDE.iter().map(|unit| (root.child(unit), (*unit).to_owned()));
    let pods = of_pods.into_iter().map(|name| (kubepods.child(&name), name));
    // What was restricted is given back, whoever chooses now.
    let units = host
        .chain(pods)
        .filter(|(_, unit)| is_restricted(unit, source) || saved(unit).is_some());
    let mut found = BTreeMap::new();
    for (cgroup, unit) in units {
        if cgroups.exists(&cgroup) {
            let cpus = set(cgroups, &cgroup, File::Cpus)?;
            let saved = saved(&unit);
            found.insert(unit, Outside { cpus, saved });
        }
    }
    Ok(found)
}

/// Units that have a record of what they had and no cgroup: pods that ended.
fn gone(
    cgroups: &dyn Cgroups,
    slice: &CgroupPath,
    outside: &BTreeMap<String, Outside>,
) -> Result<BTreeSet<String>, CgroupError> {
    let attributes = cgroups.attributes(slice)?;
    let units = attributes.keys().filter_map(|name| name.strip_prefix(SAVED));
    // A unit of the host's own may come back, restricted as it was.
    let gone = |unit: &&str| !outside.contains_key(*unit) && !OUTSIDE.contains(unit);
    Ok(units.filter(gone).map(str::to_owned).collect())
}

/// A number in a file; `None` for `max` and where there is no such file.
fn number(cgroups: &dyn Cgroups, cgroup: &CgroupPath, file: File) -> Result<Option<u64>, CgroupError> {
    Ok(optional(cgroups.read(cgroup, file))?.and_then(|text| text.parse().ok()))
}

/// A cgroup's own limits.
fn limits(cgroups: &dyn Cgroups, cgroup: &CgroupPath) -> Result<Limits, CgroupError> {
    let mut hugetlb = BTreeMap::new();
    for size in HugePage::ALL {
        if let Some(text) = optional(cgroups.read(cgroup, File::HugetlbMax(size)))? {
            hugetlb.insert(size, text.parse().ok());
        }
    }
    let group = optional(cgroups.read(cgroup, File::MemoryOomGroup))?;
    Ok(Limits {
        memory_max: number(cgroups, cgroup, File::MemoryMax)?,
        memory_high: number(cgroups, cgroup, File::MemoryHigh)?,
        memory_swap_max: number(cgroups, cgroup, File::MemorySwapMax)?,
        pids_max: number(cgroups, cgroup, File::PidsMax)?,
        cpu_weight: number(cgroups, cgroup, File::CpuWeight)?,
        oom_group: group.is_some_and(|text| text == "1"),
        hugetlb,
    })
}

/// The limits of a container whose processes are in a subgroup of its scope. Not every limit is on both; by its weight the
/// scope competes with others.
fn tighter(scope: Limits, subgroup: Limits) -> Limits {
    let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
    let sizes = scope.hugetlb.keys().chain(subgroup.hugetlb.keys());
    let of = |limits: &Limits, size| limits.hugetlb.get(size).copied().flatten();
    let hugetlb = sizes.map(|size| (*size, least(of(&scope, size), of(&subgroup, size))));
    Limits {
        memory_max: least(scope.memory_max, subgroup.memory_max),
        memory_high: least(scope.memory_high, subgroup.memory_high),
        memory_swap_max: least(scope.memory_swap_max, subgroup.memory_swap_max),
        pids_max: least(scope.pids_max, subgroup.pids_max),
        cpu_weight: scope.cpu_weight,
        oom_group: scope.oom_group || subgroup.oom_group,
        hugetlb: hugetlb.collect(),
    }
}

/// The limits a container lives under: of memory, swap and pids the least of its cgroup and those it is in (kubelet sets
/// podPidsLimit on the pod), the rest its own. `None` when it is gone.
pub(super) fn effective_limits(cgroups: &dyn Cgroups, origin: &CgroupPath) -> Result<Option<Limits>, CgroupError> {
    if !cgroups.exists(origin) {
        return Ok(None);
    }
    let whole = container::whole(origin);
    let mut all = limits(cgroups, &whole)?;
    if whole != *origin {
        all = tighter(all, limits(cgroups, origin)?);
    }
    for level in std::iter::successors(whole.parent(), CgroupPath::parent) {
        for (limit, file) in [
            (&mut all.memory_max, File::MemoryMax),
            (&mut all.memory_swap_max, File::MemorySwapMax),
            (&mut all.pids_max, File::PidsMax),
        ] {
            if let Some(above) = number(cgroups, &level, file)? {
                *limit = Some(limit.map_or(above, |own| own.min(above)));
            }
        }
    }
    Ok(Some(all))
}

fn instance(system: &System, record: Record, scope: CgroupPath) -> Result<Instance, CgroupError> {
    let cgroups = &*system.cgroups;
    let inner_path = scope.child("instance");
    let inner = if cgroups.exists(&inner_path) {
        Some(inner(cgroups, &inner_path)?)
    } else {
        None
    };
    let origin_procs = optional(cgroups.read(&record.origin, File::Procs))?.map(|text| numbers(&text));
    let vcpus = record
        .vcpus
        .iter()
        .map(|thread| {
            let same = system
                .procs
                .identify(thread.task.id)
                .is_ok_and(|task| task == thread.task);
            let now = || {
                let cgroup = system.procs.cgroup(thread.task.id).ok()?;
                Some(VcpuNow {
                    process: system.procs.process(thread.task.id).ok()?,
                    cgroup,
                    affinity: system.procs.affinity(thread.task.id).ok()?,
                })
            };
            if same { now() } else { None }
        })
        .collect();
    Ok(Instance {
        populated: populated(cgroups, &scope)?,
        scope_procs: numbers(&cgroups.read(&scope, File::Procs)?),
        scope_controllers: words(&cgroups.read(&scope, File::SubtreeControl)?),
        scope_exclusive: set(cgroups, &scope, File::CpusExclusive)?,
        inner,
        scope_limits: limits(cgroups, &scope)?,
        origin_limits: effective_limits(cgroups, &record.origin)?,
        origin_procs,
        origin_cpus: set(cgroups, &record.origin, File::Cpus)?,
        anchor_lives: system
            .procs
            .identify(record.anchor.id)
            .is_ok_and(|task| task == record.anchor),
        vcpus,
        record,
        scope,
    })
}

/// Whether any process is in a cgroup or below; not in one that is gone.
pub(super) fn populated(cgroups: &dyn Cgroups, cgroup: &CgroupPath) -> Result<bool, CgroupError> {
    let events = optional(cgroups.read(cgroup, File::Events))?;
    Ok(events.is_some_and(|text| text.lines().any(|line| line == "populated 1")))
}

fn inner(cgroups: &dyn Cgroups, path: &CgroupPath) -> Result<Inner, CgroupError> {
    let leaf = |name: &str| -> Result<Option<Leaf>, CgroupError> {
        let path = path.child(name);
        if !cgroups.exists(&path) {
            return Ok(None);
        }
        let threaded = cgroups.read(&path, File::Type)? == "threaded";
        Ok(Some(Leaf {
            threaded,
            cpus: set(cgroups, &path, File::Cpus)?,
            exclusive: set(cgroups, &path, File::CpusExclusive)?,
            partition: optional(cgroups.read(&path, File::Partition))?.unwrap_or_default(),
            cpu_max: optional(cgroups.read(&path, File::CpuMax))?.unwrap_or_default(),
            // A cgroup that is no threaded one yet has no threads of ours; reading would fail below a threaded one.
            threads: if threaded {
                numbers(&cgroups.read(&path, File::Threads)?)
            } else {
                Vec::new()
            },
        }))
    };
    Ok(Inner {
        controllers: words(&cgroups.read(path, File::SubtreeControl)?),
        exclusive: set(cgroups, path, File::CpusExclusive)?,
        mems: optional(cgroups.read(path, File::Mems))?.unwrap_or_default(),
        procs: numbers(&cgroups.read(path, File::Procs)?),
        float: leaf("float")?,
        vcpu: leaf("vcpu")?,
    })
}

/// A file that may be absent: the controller is not enabled, or the kernel has no such file.
pub(super) fn optional(result: Result<String, CgroupError>) -> Result<Option<String>, CgroupError> {
    match result {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn set(cgroups: &dyn Cgroups, cgroup: &CgroupPath, file: File) -> Result<CpuSet, CgroupError> {
    Ok(optional(cgroups.read(cgroup, file))?
        .map(|text| cpus(&text))
        .unwrap_or_default())
}

/// The kernel's own text: what does not parse is no set we wrote, and differs from any we want.
fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap_or_default()
}

/// Process or thread ids, one a line; 0 (a task outside our PID namespace) is left out.
pub(super) fn numbers(text: &str) -> Vec<i32> {
    text.lines()
        .filter_map(|line| line.parse().ok())
        .filter(|number| *number > 0)
        .collect()
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
