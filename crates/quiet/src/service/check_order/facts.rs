//! Reads the facts that an order is checked against.

use std::collections::BTreeMap;

use crate::files::Files;
use crate::online;
use crate::order::Order;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, populated};
use stelia_kernel::containers::{all_containers, container_scope, pod_containers};
use stelia_kubelet::PodUid;
use stelia_model::record::{Record, RecordPlace, SCHEMA_ATTRIBUTE, Tree};

/// The node's state of the CPUs and VMs in an order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderFacts {
    /// By pod UID: the recorded exclusive CPUs of each live instance in the order, or why its record cannot be used.
    pub recorded: BTreeMap<String, Result<CpuSet, String>>,
    pub online: CpuSet,
}

impl OrderFacts {
    /// Read the facts about this order.
    ///
    /// # Errors
    /// The online CPUs cannot be read; with the path.
    pub fn read(order: &Order, cgroups: &dyn Cgroups, files: &dyn Files) -> Result<Self, String> {
        let mut facts = Self {
            online: online(files)?,
            ..Self::default()
        };
        for pod in order.vms.keys() {
            // The check refuses a text that is not a UID.
            let Ok(uid) = PodUid::parse(pod) else { continue };
            let recorded = live_record(cgroups, &uid).transpose();
            let recorded = recorded.map(|record| record.map(|record| record.exclusive));
            facts.recorded.extend(recorded.map(|cpus| (pod.clone(), cpus)));
        }
        Ok(facts)
    }
}

/// The exclusive CPUs of all live instances. Records that cannot be used are left out: one of them must not stop a request about
/// the others.
pub fn exclusive(cgroups: &dyn Cgroups) -> Result<CpuSet, String> {
    let mut exclusive = CpuSet::new();
    let slice = CgroupPath::slice();
    let scopes = match cgroups.children(&slice) {
        Err(error) if error.is_gone() => Vec::new(),
        names => names.map_err(|error| error.to_string())?,
    };
    let scopes = scopes.iter().map(|name| in_scope(cgroups, &slice.child(name)));
    let containers = all_containers(cgroups).map_err(|error| error.to_string())?;
    let in_place = containers.iter().map(|(origin, _)| in_place(cgroups, origin));
    for record in scopes.chain(in_place).filter_map(Result::ok).flatten() {
        exclusive.union_with(&record.exclusive);
    }
    Ok(exclusive)
}

/// The record of a pod's instance, in its scope or in place; `None` if it has no processes.
fn live_record(cgroups: &dyn Cgroups, pod: &PodUid) -> Result<Option<Record>, String> {
    let scope = CgroupPath::slice().child(&pod.scope());
    let own = |record: Option<Record>| record.filter(|record| record.pod == *pod);
    if let Some(record) = own(in_scope(cgroups, &scope)?) {
        return Ok(Some(record));
    }
    for (origin, _) in pod_containers(cgroups, pod).map_err(|error| error.to_string())? {
        if let Some(record) = own(in_place(cgroups, &origin)?) {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

/// The record on one of steliad's scopes; `None` if there is none, or it is not that of this scope.
fn in_scope(cgroups: &dyn Cgroups, scope: &CgroupPath) -> Result<Option<Record>, String> {
    let Some(attributes) = live_attributes(cgroups, scope, RecordPlace::on_scope(scope.clone()))? else {
        return Ok(None);
    };
    let record = Record::parse(&attributes).map_err(|error| format!("{scope}: {error}"))?;
    Ok((Tree::of(&record).scope() == scope).then_some(record))
}

/// The record of an instance in place. It is on the pod's cgroup, because a container can write any attributes on its own.
fn in_place(cgroups: &dyn Cgroups, origin: &CgroupPath) -> Result<Option<Record>, String> {
    let container = container_scope(origin);
    let Some(attributes) = live_attributes(cgroups, &container, RecordPlace::on_pod(&container))? else {
        return Ok(None);
    };
    Record::of_container(&container, &attributes).map_err(|error| format!("{container}: {error}"))
}

/// The attributes of `place`, if it has a record and the instance in `cgroup` has processes.
fn live_attributes(
    cgroups: &dyn Cgroups,
    cgroup: &CgroupPath,
    place: RecordPlace,
) -> Result<Option<BTreeMap<String, String>>, String> {
    let read = || -> Result<_, CgroupError> {
        let attributes = cgroups.attributes(place.cgroup())?;
        let is_live = attributes.contains_key(&place.name(SCHEMA_ATTRIBUTE)) && populated(cgroups, cgroup)?;
        Ok(is_live.then_some(attributes))
    };
    match read() {
        Err(error) if error.is_gone() => Ok(None),
        result => result.map_err(|error| error.to_string()),
    }
}
