//! Reading and changing cgroups of kubelet's for instances in place.

use std::collections::{BTreeMap, BTreeSet};

use stelia_api::Error;
use stelia_cpus::CpuSet;
use stelia_node::System;
use stelia_node::cgroup::{CgroupError, CgroupPath, Cgroups, File, cpus, numbers, optional, set};
use stelia_node::containers::whole;
use stelia_record::{Record, SCHEMA_ATTRIBUTE};

use crate::decide::{Level, Stray, Tree};

/// The attribute of a cgroup of kubelet's that keeps which CPUs were added to its `cpuset.cpus.exclusive`.
const CLAIMED: &str = "exclusive-cpus-added";

/// A cgroup above instances in place; `None` where it does not exist.
pub(super) fn level(cgroups: &dyn Cgroups, path: CgroupPath) -> Result<Option<Level>, CgroupError> {
    if !cgroups.exists(&path) {
        return Ok(None);
    }
    Ok(Some(Level {
        exclusive: optional(cgroups.read(&path, File::CpusExclusive))?.map(|text| cpus(&text)),
        ours: claimed(cgroups, &path)?,
        path,
    }))
}

/// What is recorded as added to a cgroup's list.
pub(super) fn claimed(cgroups: &dyn Cgroups, path: &CgroupPath) -> Result<CpuSet, CgroupError> {
    let text = optional(cgroups.attribute(path, CLAIMED).map(Option::unwrap_or_default))?;
    // Only this program writes it.
    Ok(cpus(&text.unwrap_or_default()))
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

/// Threads that are in the cgroup itself. One that ends meanwhile is left out.
pub(super) fn strays(system: &System, scope: &CgroupPath) -> Result<Vec<Stray>, CgroupError> {
    let threads = numbers(&system.cgroups.read(scope, File::Threads)?);
    let stray = |thread: i32| {
        let (process, _) = system.procs.process_and_affinity(thread).ok()?;
        Some(Stray { thread, process })
    };
    Ok(threads.into_iter().filter_map(stray).collect())
}

/// Have exactly these CPUs added to a cgroup's list. What is added is recorded before, and what is taken back is removed from
/// the record after, so that the record never has less than what was added.
pub(super) fn claim(cgroups: &dyn Cgroups, path: &CgroupPath, want: &CpuSet) -> Result<(), Error> {
    if !cgroups.exists(path) {
        return Ok(());
    }
    let ours = claimed(cgroups, path)?;
    let now = set(cgroups, path, File::CpusExclusive)?;
    if !want.is_subset(&ours) {
        cgroups.set_attribute(path, CLAIMED, &ours.union(want).to_string())?;
    }
    let list = now.difference(&ours).union(want);
    if list != now {
        cgroups.write(path, File::CpusExclusive, &list.to_string())?;
    }
    if want.is_empty() {
        cgroups.remove_attribute(path, CLAIMED)?;
    } else if ours != *want {
        cgroups.set_attribute(path, CLAIMED, &want.to_string())?;
    }
    Ok(())
}

/// Remove the record from a container's cgroup; without its schema, which goes first, the rest says nothing.
pub(super) fn unregister(cgroups: &dyn Cgroups, scope: &CgroupPath) -> Result<(), Error> {
    if !cgroups.exists(scope) {
        return Ok(());
    }
    cgroups.remove_attribute(scope, SCHEMA_ATTRIBUTE)?;
    for name in attributes(cgroups, scope)?.keys() {
        cgroups.remove_attribute(scope, name)?;
    }
    Ok(())
}

/// Whether the record of an instance in place is gone.
pub(super) fn is_unregistered(cgroups: &dyn Cgroups, scope: &CgroupPath) -> Result<bool, CgroupError> {
    match cgroups.attribute(scope, SCHEMA_ATTRIBUTE) {
        Ok(schema) => Ok(schema.is_none()),
        Err(error) if error.is_gone() => Ok(true),
        Err(error) => Err(error),
    }
}

/// What a former daemon left in kubelet's cgroups.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Containers with a record.
    pub(super) containers: Vec<CgroupPath>,
    /// Containers with a part of a record.
    pub(super) half_registered: BTreeSet<CgroupPath>,
    /// Pods with CPUs added to their list.
    pub(super) pods: BTreeSet<CgroupPath>,
}

pub(super) fn find(cgroups: &dyn Cgroups) -> Result<Found, CgroupError> {
    let mut found = Found::default();
    for pod in stelia_node::containers::pods(cgroups)? {
        if !claimed(cgroups, &pod)?.is_empty() {
            found.pods.insert(pod.clone());
        }
        for (origin, _) in stelia_node::containers::inside(cgroups, &pod)? {
            if !is_unregistered(cgroups, &origin)? {
                found.containers.push(origin);
            } else if !attributes(cgroups, &origin)?.is_empty() {
                found.half_registered.insert(origin);
            }
        }
    }
    Ok(found)
}

/// Of a cgroup that may be gone meanwhile.
fn attributes(cgroups: &dyn Cgroups, cgroup: &CgroupPath) -> Result<BTreeMap<String, String>, CgroupError> {
    match cgroups.attributes(cgroup) {
        Err(error) if error.is_gone() => Ok(BTreeMap::new()),
        result => result,
    }
}

/// The record of a container.
pub(super) fn record(cgroups: &dyn Cgroups, origin: &CgroupPath) -> Result<Record, String> {
    let attributes = cgroups.attributes(origin).map_err(|error| error.to_string())?;
    let record = Record::parse(&attributes).map_err(|error| error.to_string())?;
    match Tree::of(&record).scope() == origin {
        true => Ok(record),
        false => Err(format!("the record is of {}", record.origin)),
    }
}

/// Take back, on kubepods and the pods, every CPU that no container with a record has in its list. Returns the cgroups that
/// were changed.
pub(super) fn release(cgroups: &dyn Cgroups) -> Result<Vec<String>, Error> {
    let Found {
        containers, mut pods, ..
    } = find(cgroups)?;
    let mut held: BTreeMap<CgroupPath, CpuSet> = BTreeMap::new();
    for origin in containers {
        let list = set(cgroups, &origin, File::CpusExclusive)?;
        let above = std::iter::successors(whole(&origin).parent(), CgroupPath::parent);
        above.for_each(|level| held.entry(level).or_default().union_with(&list));
    }
    // The pods first: an inner list must not exceed an outer one.
    let all = kubepods(cgroups)?.map(|level| level.path);
    let mut changed = Vec::new();
    for level in std::mem::take(&mut pods).into_iter().chain(all) {
        let want = held.remove(&level).unwrap_or_default();
        if claimed(cgroups, &level)? != want {
            claim(cgroups, &level, &want)?;
            changed.push(level.as_str().to_owned());
        }
    }
    Ok(changed)
}
