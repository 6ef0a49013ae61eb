//! What an order is checked against.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_node::cgroup::{CgroupError, CgroupPath, Cgroups, populated};
use stelia_node::containers::{all, of_pod};
use stelia_quiet::files::Files;
use stelia_quiet::order::Order;
use stelia_record::{Record, SCHEMA_ATTRIBUTE, Tree};

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// What the node itself says of what an order names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// By pod UID: the CPUs recorded as its vCPUs' of each live instance that is ordered, or why its record cannot be used.
    pub recorded: BTreeMap<String, Result<CpuSet, String>>,
    pub online: CpuSet,
}

impl Facts {
    /// Read what this order is to be checked against.
    ///
    /// # Errors
    /// The online CPUs cannot be read; with the path.
    pub fn read(order: &Order, cgroups: &dyn Cgroups, files: &dyn Files) -> Result<Self, String> {
        let mut facts = Self {
            online: online(files)?,
            ..Self::default()
        };
        for pod in order.vms.keys() {
            // What is none is told by the check.
            let Ok(uid) = PodUid::parse(pod) else { continue };
            let recorded = live(cgroups, &uid).transpose();
            let recorded = recorded.map(|record| record.map(|record| record.exclusive));
            facts.recorded.extend(recorded.map(|cpus| (pod.clone(), cpus)));
        }
        Ok(facts)
    }
}

/// The exclusive CPUs of every live instance. A record that cannot be used has none: it must not keep the others from what is
/// theirs.
///
/// # Errors
/// The cgroups cannot be listed.
pub fn exclusive(cgroups: &dyn Cgroups) -> Result<CpuSet, String> {
    let mut exclusive = CpuSet::new();
    let slice = CgroupPath::slice();
    let scopes = match cgroups.children(&slice) {
        Err(error) if error.is_gone() => Vec::new(),
        names => names.map_err(|error| error.to_string())?,
    };
    let scopes = scopes.iter().map(|name| slice.child(name));
    let containers = all(cgroups).map_err(|error| error.to_string())?;
    for cgroup in scopes.chain(containers.into_iter().map(|(container, _)| container)) {
        if let Ok(Some(record)) = live_record(cgroups, &cgroup) {
            exclusive.union_with(&record.exclusive);
        }
    }
    Ok(exclusive)
}

fn online(files: &dyn Files) -> Result<CpuSet, String> {
    let text = files.read(ONLINE).map_err(|cause| format!("read {ONLINE}: {cause}"))?;
    let list = text.trim().parse();
    list.map_err(|cause| format!("read {ONLINE}: {cause}"))
}

/// The record of a pod's instance, in its scope or in place, while it has processes.
fn live(cgroups: &dyn Cgroups, pod: &PodUid) -> Result<Option<Record>, String> {
    let scope = CgroupPath::slice().child(&pod.scope());
    if let Some(record) = record(cgroups, pod, &scope)? {
        return Ok(Some(record));
    }
    for (container, _) in of_pod(cgroups, pod).map_err(|error| error.to_string())? {
        if let Some(record) = record(cgroups, pod, &container)? {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

/// The pod's record on this cgroup; `None` where there is none, or it is not of what is there.
fn record(cgroups: &dyn Cgroups, pod: &PodUid, cgroup: &CgroupPath) -> Result<Option<Record>, String> {
    let record = live_record(cgroups, cgroup)?;
    Ok(record.filter(|record| record.pod == *pod))
}

/// Whichever pod's it is.
fn live_record(cgroups: &dyn Cgroups, cgroup: &CgroupPath) -> Result<Option<Record>, String> {
    let read = || -> Result<_, CgroupError> {
        let attributes = cgroups.attributes(cgroup)?;
        let is_live = attributes.contains_key(SCHEMA_ATTRIBUTE) && populated(cgroups, cgroup)?;
        Ok(is_live.then_some(attributes))
    };
    let attributes = match read() {
        Err(error) if error.is_gone() => return Ok(None),
        result => result.map_err(|error| error.to_string())?,
    };
    let Some(attributes) = attributes else { return Ok(None) };
    let record = Record::parse(&attributes).map_err(|error| format!("{cgroup}: {error}"))?;
    Ok((Tree::of(&record).scope() == cgroup).then_some(record))
}
