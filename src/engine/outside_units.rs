//! CPUs that are withheld from units outside stelia.slice and from the kernel's unbound workers, and the records by which
//! they are given back.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;
use stelia_decide::workers::Workers;
use stelia_decide::{OUTSIDE, Outside, Snapshot, is_restricted};
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File, optional, read_optional_cpus, recorded_cpus};
use stelia_kernel::{System, workqueue};
use stelia_koordinator::allocator::CpuSource;

/// The attribute of stelia.slice that keeps which CPUs are withheld from the kernel's unbound workers.
pub(super) const WITHHELD: &str = "worker-cpus";

/// The kernel's unbound workers, which are to be kept off the CPUs `closed`. `known`: what is recorded as withheld from them, where
/// that need not be read.
pub(super) fn workers(system: &System, closed: &CpuSet, known: Option<CpuSet>) -> Result<Option<Workers>, CgroupError> {
    let Some(now) = workqueue::in_force(&system.sys)? else {
        return Ok(None);
    };
    let withheld = match known {
        Some(known) => known,
        None => withheld(&*system.cgroups)?,
    };
    // What the kernel keeps them off by itself matters only when CPUs are to be given back.
    let isolated = if withheld.is_subset(closed) {
        CpuSet::new()
    } else {
        workqueue::isolated(&system.sys)?
    };
    Ok(Some(Workers {
        cpus: now,
        withheld,
        isolated,
    }))
}

/// What is recorded as withheld from the workers.
pub(super) fn withheld(cgroups: &dyn Cgroups) -> Result<CpuSet, CgroupError> {
    let text = optional(
        cgroups
            .attribute(&CgroupPath::slice(), WITHHELD)
            .map(Option::unwrap_or_default),
    )?;
    Ok(recorded_cpus(&text.unwrap_or_default()))
}

/// Set an attribute of stelia.slice, which is made where an administrator stopped it: instances in place go on without it.
pub(super) fn set_on_slice(cgroups: &dyn Cgroups, name: &str, value: &str) -> Result<(), CgroupError> {
    let slice = CgroupPath::slice();
    if !cgroups.exists(&slice) {
        cgroups.create(&slice)?;
    }
    cgroups.set_attribute(&slice, name, value)
}

/// Record again what is withheld from workers and units, where stelia.slice was stopped and its attributes are gone with it. Returns whether it was.
pub(super) fn record_again(cgroups: &dyn Cgroups, snapshot: &Snapshot) -> Result<bool, CgroupError> {
    if cgroups.exists(&CgroupPath::slice()) {
        return Ok(false);
    }
    let workers = snapshot.slice.workers.as_ref().map(|workers| &workers.withheld);
    let workers = workers.filter(|withheld| !withheld.is_empty());
    let workers = workers.map(|withheld| (WITHHELD.to_owned(), withheld.to_string()));
    let saved = snapshot.outside.iter();
    let saved = saved.filter_map(|(unit, now)| Some((saved_attribute(unit), now.saved.as_ref()?.to_string())));
    let all: Vec<(String, String)> = workers.into_iter().chain(saved).collect();
    for (name, value) in &all {
        // The slice that was made for them says that all are there.
        set_on_slice(cgroups, name, value).inspect_err(|_| drop(cgroups.remove(&CgroupPath::slice())))?;
    }
    Ok(!all.is_empty())
}

const SAVED_CPUS_PREFIX: &str = "allowed-cpus.";

/// The same attribute on the unit's own cgroup, for pods for which stelia.slice has no room.
pub(super) const OWN: &str = "allowed-cpus";

/// The attribute of stelia.slice that keeps what a unit outside had before it was restricted.
pub(super) fn saved_attribute(unit: &str) -> String {
    format!("{SAVED_CPUS_PREFIX}{unit}")
}

/// The units outside that are or may be restricted, with their lists now and before; and pods' units that have a record of
/// their list before and no cgroup any more.
pub(super) fn outside(
    cgroups: &dyn Cgroups,
    source: CpuSource,
) -> Result<(BTreeMap<String, Outside>, BTreeSet<String>), CgroupError> {
    let attributes = optional(cgroups.attributes(&CgroupPath::slice()))?.unwrap_or_default();
    let root = CgroupPath::root();
    let kubepods = root.child("kubepods.slice");
    let recorded = |name: &str| attributes.get(&saved_attribute(name)).map(|text| recorded_cpus(text));
    let mut units: Vec<(CgroupPath, String)> = OUTSIDE
        .iter()
        .map(|unit| (root.child(unit), (*unit).to_owned()))
        .collect();
    // Pods' slices are restricted only where steliad chooses; what was restricted before is given back in any case. Those that
    // stelia.slice had no room for are known by themselves alone, and there are some only where it has pods'.
    let of_pods = |name: &&str| !OUTSIDE.contains(name);
    let saved_pods = attributes
        .keys()
        .filter_map(|name| name.strip_prefix(SAVED_CPUS_PREFIX));
    let looks = source.restricts_pods() || saved_pods.clone().any(|name| of_pods(&name));
    if looks {
        let names = if cgroups.exists(&kubepods) {
            cgroups.children(&kubepods)?
        } else {
            Vec::new()
        };
        let mine = |name: &String| is_restricted(name, CpuSource::Steliad) || recorded(name).is_some();
        units.extend(names.into_iter().filter(mine).map(|name| (kubepods.child(&name), name)));
    }
    let mut found = BTreeMap::new();
    for (cgroup, unit) in units {
        let Some(cpus) = read_optional_cpus(cgroups, &cgroup, File::Cpus)? else {
            continue;
        };
        // Units for which stelia.slice had no room have the attribute on their own cgroup.
        let own = || -> Result<Option<CpuSet>, CgroupError> {
            Ok(cgroups.attribute(&cgroup, OWN)?.map(|text| recorded_cpus(&text)))
        };
        let saved = match recorded(&unit) {
            Some(saved) => Some(saved),
            None if of_pods(&unit.as_str()) => own()?,
            None => None,
        };
        // Where kubelet chooses, pods' units are not restricted; they only get back what they had.
        if saved.is_none() && !is_restricted(&unit, source) {
            continue;
        }
        found.insert(unit, Outside { cpus, saved });
    }
    // A unit of the host's own may come back, restricted as it was.
    let gone = saved_pods
        .filter(of_pods)
        .filter(|unit| !found.contains_key(*unit))
        .map(str::to_owned)
        .collect();
    Ok((found, gone))
}
