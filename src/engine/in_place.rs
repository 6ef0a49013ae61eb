//! Reading and changing cgroups of kubelet's for instances in place.

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_decide::{InstanceCgroup, Level, MisplacedThread, Tree};
use stelia_kernel::System;
use stelia_kernel::cgroup::{
    CgroupError, CgroupPath, Cgroups, File, numbers, optional, populated, read_cpus, read_optional_cpus, recorded_cpus,
};
use stelia_kubelet::ContainerCgroup;
use stelia_model::record::{Home, Record, RecordPlace, SCHEMA_ATTRIBUTE};
use stelia_settings::Partition;

use super::record_writer;

/// The attribute of a cgroup of kubelet's that keeps which CPUs were added to its `cpuset.cpus.exclusive`.
const ADDED: &str = "exclusive-cpus-added";

/// A cgroup above instances in place; `None` where it does not exist.
pub(super) fn level(cgroups: &dyn Cgroups, path: CgroupPath) -> Result<Option<Level>, CgroupError> {
    if !cgroups.exists(&path) {
        return Ok(None);
    }
    Ok(Some(Level {
        exclusive: read_optional_cpus(cgroups, &path, File::CpusExclusive)?,
        ours: read_ours(cgroups, &path)?,
        path,
    }))
}

/// What is recorded as added to a cgroup's list.
pub(super) fn read_ours(cgroups: &dyn Cgroups, path: &CgroupPath) -> Result<CpuSet, CgroupError> {
    let text = optional(cgroups.attribute(path, ADDED).map(Option::unwrap_or_default))?;
    // Only this program writes it.
    Ok(recorded_cpus(&text.unwrap_or_default()))
}

/// The cgroup of the pod that this container is of.
pub(super) fn pod_level(cgroups: &dyn Cgroups, tree: &Tree) -> Result<Option<Level>, CgroupError> {
    match tree.outer().parent() {
        Some(pod) => level(cgroups, pod),
        None => Ok(None),
    }
}

/// The cgroup that all pods are in, as systemd or kubelet itself makes it.
pub(super) fn kubepods(cgroups: &dyn Cgroups) -> Result<Option<Level>, CgroupError> {
    for name in ["kubepods.slice", "kubepods"] {
        if let Some(level) = level(cgroups, CgroupPath::root().child(name))? {
            return Ok(Some(level));
        }
    }
    Ok(None)
}

/// Threads of a container's own cgroup, and of those that it made, that are read at one look. A container's commands can make any number of
/// them; the others are read when these have been moved.
const MAX_STRAYS: usize = 1024;
/// At most so many cgroups that a container made below one are dealt with at a look; the others when these are gone, or empty.
const MAX_BELOW: usize = 64;
/// The most cgroups that are searched for them.
const MAX_READ_CGROUPS: usize = 1024;

/// The container's threads outside `float` and `vcpu`: in place, those in the container's own cgroup and in cgroups that it made; everywhere,
/// those in cgroups below `float` and `vcpu`, which are recorded in `inner`. A thread that ends meanwhile is left out.
pub(super) fn strays(
    system: &System,
    tree: &Tree,
    inner: Option<&mut InstanceCgroup>,
) -> Result<Vec<MisplacedThread>, CgroupError> {
    let cgroups = &*system.cgroups;
    let is_in_place = tree.scope() == tree.inner();
    let mut places = Vec::new();
    if let Some(inner) = inner {
        let leaves = [&mut inner.float, &mut inner.vcpu].map(Option::as_mut);
        // One file tells that there is nothing else.
        if descendants(cgroups, tree.inner())? > leaves.iter().flatten().count() {
            for (leaf, path) in leaves.into_iter().zip([tree.float(), tree.vcpu()]) {
                let Some(leaf) = leaf else { continue };
                leaf.below = below(cgroups, path, &[])?;
                leaf.below.truncate(MAX_BELOW);
                places.extend(leaf.below.clone());
            }
            if is_in_place {
                // Empty ones are the container's affair, and hide no others.
                let made = below(cgroups, tree.inner(), &[tree.float(), tree.vcpu()])?;
                let populated = made.into_iter().filter(|made| populated(cgroups, made).unwrap_or(true));
                places.extend(populated.take(MAX_BELOW));
            }
        }
    }
    let mut threads = if is_in_place {
        numbers(&cgroups.read(tree.scope(), File::Threads)?)
    } else {
        Vec::new()
    };
    // One that has no threads of its own cannot be read (it is not threaded).
    let read = places
        .iter()
        .filter_map(|place| cgroups.read(place, File::Threads).ok());
    threads.extend(read.flat_map(|text| numbers(&text)));
    let stray = |thread: i32| {
        let (process, _) = system.procs.process_and_affinity(thread).ok()?;
        Some(MisplacedThread { thread, process })
    };
    Ok(threads.into_iter().take(MAX_STRAYS).filter_map(stray).collect())
}

/// How many cgroups are below this one.
fn descendants(cgroups: &dyn Cgroups, cgroup: &CgroupPath) -> Result<usize, CgroupError> {
    let text = optional(cgroups.read(cgroup, File::Stat))?.unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("nr_descendants "));
    Ok(count.and_then(|count| count.parse().ok()).unwrap_or_default())
}

/// The cgroups below this one, each after those in it, without these and what is in them.
fn below(cgroups: &dyn Cgroups, cgroup: &CgroupPath, without: &[&CgroupPath]) -> Result<Vec<CgroupPath>, CgroupError> {
    let inside = |cgroup: &CgroupPath| -> Result<Vec<(CgroupPath, bool)>, CgroupError> {
        let names = optional(cgroups.some_children(cgroup, MAX_READ_CGROUPS))?
            .unwrap_or_default()
            .into_iter();
        let children = names
            .map(|name| cgroup.child(&name))
            .filter(|child| !without.contains(&child));
        Ok(children.map(|child| (child, false)).collect())
    };
    let mut found = Vec::new();
    // And whether it was looked into.
    let mut next = inside(cgroup)?;
    let mut seen = 0;
    while let Some((path, looked_into)) = next.pop() {
        if looked_into {
            found.push(path);
        } else if seen < MAX_READ_CGROUPS {
            seen += 1;
            let children = inside(&path).unwrap_or_default();
            next.push((path, true));
            next.extend(children);
        }
    }
    Ok(found)
}

/// Have exactly these CPUs added to a cgroup's list. What is added is recorded before, and what is taken back is removed from
/// the record after, so that the record never has less than what was added.
pub(super) fn set_ours(cgroups: &dyn Cgroups, path: &CgroupPath, want: &CpuSet) -> Result<(), CgroupError> {
    if !cgroups.exists(path) {
        return Ok(());
    }
    let ours = read_ours(cgroups, path)?;
    let now = read_cpus(cgroups, path, File::CpusExclusive)?;
    let mut recorded = ours.clone();
    if !want.is_subset(&ours) {
        recorded = ours.union(want);
        record_ours(cgroups, path, &recorded)?;
    }
    let list = now.difference(&ours).union(want);
    if list != now {
        let written = cgroups.write(path, File::CpusExclusive, &list.to_string());
        // What the list does not take, as another tree has it, would be asked for again with the CPUs of each other instance.
        if written.is_err() && recorded != ours {
            record_ours(cgroups, path, &ours)?;
        }
        written?;
    }
    if want.is_empty() || recorded != *want {
        record_ours(cgroups, path, want)?;
    }
    Ok(())
}

fn record_ours(cgroups: &dyn Cgroups, path: &CgroupPath, cpus: &CpuSet) -> Result<(), CgroupError> {
    if cpus.is_empty() {
        return cgroups.remove_attribute(path, ADDED);
    }
    cgroups.set_attribute(path, ADDED, &cpus.to_string())
}

/// Have these CPUs, too, in the list of stelia.slice, or among those added to that of a cgroup of kubelet's. The error names these alone: others
/// in the list are other pods', and the instance's pod is told of what failed.
pub(super) fn extend(cgroups: &dyn Cgroups, path: &CgroupPath, by: &CpuSet) -> Result<(), CgroupError> {
    let extended = || {
        let now = read_cpus(cgroups, path, File::CpusExclusive)?;
        if *path == CgroupPath::slice() {
            return cgroups.write(path, File::CpusExclusive, &now.union(by).to_string());
        }
        // What a daemon recorded that died before it was added is nobody's.
        let added = read_ours(cgroups, path)?.intersection(&now);
        set_ours(cgroups, path, &added.union(by))
    };
    extended().map_err(|CgroupError { cause, .. }| CgroupError {
        operation: format!("add \"{by}\" to {path}/{}", File::CpusExclusive.name()),
        cause,
    })
}

/// Remove the record of a container, whose whole cgroup is given, from its pod's cgroup; without its schema, which goes first, the
/// rest says nothing. The container may be gone.
pub(super) fn unregister(cgroups: &dyn Cgroups, container: &CgroupPath) -> Result<(), CgroupError> {
    let place = RecordPlace::on_pod(container);
    let own = place.own(&attributes(cgroups, place.cgroup())?);
    let schema = own.get_key_value(SCHEMA_ATTRIBUTE).into_iter();
    let rest = own.iter().filter(|(name, _)| *name != SCHEMA_ATTRIBUTE);
    for (name, _) in schema.chain(rest) {
        cgroups.remove_attribute(place.cgroup(), &place.name(name))?;
    }
    Ok(())
}

/// Whether the record of an instance in place is gone.
pub(super) fn is_unregistered(cgroups: &dyn Cgroups, tree: &Tree) -> Result<bool, CgroupError> {
    let place = tree.place();
    match cgroups.attribute(place.cgroup(), &place.name(SCHEMA_ATTRIBUTE)) {
        Ok(schema) => Ok(schema.is_none()),
        Err(error) if error.is_gone() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Write the first record of a container. Attributes of an earlier record are removed first: they would be taken for a part of this
/// one, and those of containers that are gone take its room.
pub(super) fn register(system: &System, record: &Record) -> Result<(), Error> {
    let (cgroups, tree) = (&*system.cgroups, Tree::of(record));
    let place = tree.place();
    let all = attributes(cgroups, place.cgroup()).map_err(Error::failed)?;
    for container in RecordPlace::containers(place.cgroup(), &all) {
        if container == *tree.outer() || !cgroups.exists(&container) {
            unregister(cgroups, &container).map_err(Error::failed)?;
        }
    }
    let all = attributes(cgroups, place.cgroup()).map_err(Error::failed)?;
    if let Some(text) = place.lacks_room(record, &all) {
        return Err(ErrorKind::Failed.because(text));
    }
    let written = record_writer::write(system, place, None, record);
    if written.is_err() {
        unregister(cgroups, tree.outer()).map_err(Error::failed)?;
    }
    written.map_err(Error::failed)
}

/// What a former daemon left in kubelet's cgroups.
#[derive(Debug, Default)]
pub(super) struct FormerState {
    /// Containers with a record, by the whole container's cgroup.
    pub(super) containers: Vec<CgroupPath>,
    /// Containers with a part of a record, and those with any attribute that are gone.
    pub(super) half_registered: BTreeSet<CgroupPath>,
    /// Pods with CPUs added to their list.
    pub(super) pods: BTreeSet<CgroupPath>,
}

/// Search the pods' cgroups. What a container's own cgroup says is not read: a container may write there.
pub(super) fn find(cgroups: &dyn Cgroups) -> Result<FormerState, CgroupError> {
    let mut found = FormerState::default();
    for pod in stelia_kernel::containers::pod_cgroups(cgroups)? {
        let all = attributes(cgroups, &pod)?;
        if !all
            .get(ADDED)
            .map(|text| recorded_cpus(text))
            .unwrap_or_default()
            .is_empty()
        {
            found.pods.insert(pod.clone());
        }
        for container in RecordPlace::containers(&pod, &all) {
            let schema = RecordPlace::on_pod(&container).name(SCHEMA_ATTRIBUTE);
            if all.contains_key(&schema) && cgroups.exists(&container) {
                found.containers.push(container);
            } else {
                found.half_registered.insert(container);
            }
        }
    }
    Ok(found)
}

/// The attributes of a cgroup that may have been removed meanwhile.
pub(super) fn attributes(cgroups: &dyn Cgroups, cgroup: &CgroupPath) -> Result<BTreeMap<String, String>, CgroupError> {
    match cgroups.attributes(cgroup) {
        Err(error) if error.is_gone() => Ok(BTreeMap::new()),
        result => result,
    }
}

/// The record of a container, by what its pod's cgroup says; `None` where it has none.
pub(super) fn record(cgroups: &dyn Cgroups, container: &CgroupPath) -> Result<Option<Record>, String> {
    let place = RecordPlace::on_pod(container);
    let all = attributes(cgroups, place.cgroup()).map_err(|error| error.to_string())?;
    Record::of_container(container, &all).map_err(|error| error.to_string())
}

/// The CPUs that the kernel has in a partition of this instance. No container can make a partition there: in and below a cgroup whose parent
/// is no partition the kernel lets only root of the host make one.
pub(super) fn in_force(cgroups: &dyn Cgroups, tree: &Tree) -> Result<CpuSet, CgroupError> {
    let kind = optional(cgroups.read(tree.vcpu(), File::Partition))?.unwrap_or_default();
    match Partition::parse(&kind) {
        Some(Partition::Isolated | Partition::Root) => read_cpus(cgroups, tree.vcpu(), File::CpusExclusiveEffective),
        _ => Ok(CpuSet::new()),
    }
}

/// The CPUs in a partition of this container, whichever of its cgroups the instance is in.
pub(super) fn in_force_of_container(cgroups: &dyn Cgroups, container: &CgroupPath) -> Result<CpuSet, CgroupError> {
    let mut all = in_force(cgroups, &Tree::of_container(container.clone()))?;
    for origin in [container.clone(), container.child(ContainerCgroup::SUBGROUP)] {
        all.union_with(&in_force(cgroups, &Tree::in_place(origin))?);
    }
    Ok(all)
}

/// Take back, on kubepods and the pods, every CPU that no container with a record has in a partition. Returns the cgroups that were
/// changed.
pub(super) fn release(cgroups: &dyn Cgroups) -> Result<Vec<String>, CgroupError> {
    let FormerState {
        containers,
        half_registered,
        mut pods,
    } = find(cgroups)?;
    half_registered
        .iter()
        .try_for_each(|container| unregister(cgroups, container))?;
    let mut held: BTreeMap<CgroupPath, CpuSet> = BTreeMap::new();
    for container in containers {
        if record(cgroups, &container).is_ok_and(|record| record.is_some_and(|record| record.home == Home::Container)) {
            // No task has to be moved, and without a daemon the partition would not follow kubelet.
            cgroups.write(&container, File::Partition, Partition::Member.name())?;
            cgroups.write(&container, File::CpusExclusive, "")?;
            unregister(cgroups, &container)?;
            continue;
        }
        let list = in_force_of_container(cgroups, &container)?;
        let above = std::iter::successors(container.parent(), CgroupPath::parent);
        above.for_each(|level| held.entry(level).or_default().union_with(&list));
    }
    // The pods first: an inner list must not exceed an outer one.
    let all = kubepods(cgroups)?.map(|level| level.path);
    let mut changed = Vec::new();
    for level in std::mem::take(&mut pods).into_iter().chain(all) {
        let want = held.remove(&level).unwrap_or_default();
        if read_ours(cgroups, &level)? != want {
            set_ours(cgroups, &level, &want)?;
            changed.push(level.as_str().to_owned());
        }
    }
    Ok(changed)
}
