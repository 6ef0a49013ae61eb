//! The object as the API server keeps it, of whatever profile: with fields of its own, and with labels, annotations and
//! attributes of others. What others add is passed over; what was written here is read as strictly as in [`described`].

mod amounts;
mod koordinator;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use stelia_api::publication::SUMMARY;
use stelia_cpus::CpuSet;
use stelia_cpus::quantity::Quantity;
use stelia_cpus::text::excerpt;
use stelia_kubelet::{PodName, PodUid};

use crate::report::annotations::{
    ALLOCATOR, CPU_MANAGER_POLICY, CPU_SHARED_POOLS, CPU_TOPOLOGY, POD_CPU_ALLOCS, WARNINGS,
};
use crate::report::compact::{self, Compact};
use crate::report::described::{self, ALIGNMENT, DescribedError, MAX_ZONES};
use crate::report::meta::ObjectMeta;
use crate::report::numa::KernelNumaNode;
use crate::report::object::{ApiVersion, Attribute, KIND, NodeResourceTopology};
use crate::report::profile::Profile;
use crate::report::{Alignment, Facts, MANAGED_BY, labels, name};
use amounts::amounts;
pub use stelia_api::publication::Summary;

/// The attribute in which a node says that it must not be used, and why, in a word; who publishes the object sets it.
pub const STATE: &str = "isolation.stelia.io/state";
/// The annotations that a description has.
const DESCRIBED: [&str; 6] = [
    CPU_MANAGER_POLICY,
    CPU_TOPOLOGY,
    POD_CPU_ALLOCS,
    CPU_SHARED_POOLS,
    ALLOCATOR,
    WARNINGS,
];

/// A node as its stored object describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub name: String,
    /// By what was read: `Nrt` has no more than amounts by zone, `Stelia` every CPU, `Koordinator` also whose each is.
    pub profile: Profile,
    /// Every CPU of the node; `None` where the object has amounts only.
    pub facts: Option<Facts>,
    /// The topology manager's configuration.
    pub alignment: Option<Alignment>,
    /// The amounts of each NUMA node.
    pub zones: BTreeMap<u32, BTreeMap<String, Amounts>>,
    /// The pods that have CPUs of their own.
    pub holders: Vec<Holder>,
    /// [`STATE`].
    pub state: Option<String>,
    /// The node's version, readiness and counts of instances, where the publisher writes them ([`SUMMARY`]).
    pub summary: Option<Summary>,
    /// Why the summary that is there cannot be read.
    pub summary_problem: Option<String>,
    /// Who is named as the object's writer (`app.kubernetes.io/managed-by`).
    pub manager: Option<String>,
    /// The writer's warnings.
    pub warnings: Vec<String>,
    /// Why the object tells less than its profile would.
    pub problem: Option<String>,
}

/// A resource of a NUMA node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    pub capacity: Quantity,
    pub allocatable: Quantity,
    pub available: Quantity,
}

/// A pod that has CPUs of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pod: PodUid,
    /// `None` where the object does not tell it.
    pub name: Option<PodName>,
    /// `None` where the object does not tell it.
    pub cpus: Option<CpuSet>,
    /// Whether its instance is a container without a VM; `None` where the object does not tell it.
    pub is_container: Option<bool>,
}

/// Why an object is not read at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoredError {
    #[error("the object has {0} bytes, more than {max}", max = described::MAX_BYTES)]
    TooLarge(usize),
    #[error("not a NodeResourceTopology: {0}")]
    Text(String),
    #[error(transparent)]
    Name(#[from] name::NameError),
    #[error("it has {0} zones, more than {MAX_ZONES}")]
    TooManyZones(usize),
    #[error("{place} is {found:?}: {why}")]
    Value { place: String, found: String, why: String },
}

impl Stored {
    /// Reads an object, JSON.
    ///
    /// # Errors
    /// What is wrong with it. It may come from anyone.
    pub fn read(text: &str) -> Result<Self, StoredError> {
        if text.len() > described::MAX_BYTES {
            return Err(StoredError::TooLarge(text.len()));
        }
        let mut object: NodeResourceTopology =
            serde_json::from_str(text).map_err(|cause| StoredError::Text(excerpt::cause(&cause)))?;
        let name = name::check(object.metadata.name.clone())?;
        if object.zones.len() > MAX_ZONES {
            return Err(StoredError::TooManyZones(object.zones.len()));
        }
        // Zones of another type are others'.
        object.zones.retain(|zone| zone.kind == "Node");
        let (labels, annotations) = (&object.metadata.labels, &object.metadata.annotations);
        let attributes = &object.attributes;
        let is_ours = labels.get(MANAGED_BY.0).map(String::as_str) == Some(MANAGED_BY.1);
        let summary = value_of(attributes, SUMMARY).or_else(|| annotations.get(SUMMARY).cloned());
        let (summary, summary_problem) = match summary.map(|text| read_summary(&text)).transpose() {
            Ok(summary) => (summary, None),
            Err(problem) => (None, Some(problem)),
        };
        let mut stored = Self {
            profile: Profile::Nrt,
            facts: None,
            alignment: None,
            zones: amounts(&object.zones)?,
            holders: Vec::new(),
            // v1alpha1 has no attributes: there both are annotations.
            state: value_of(attributes, STATE).or_else(|| annotations.get(STATE).cloned()),
            summary,
            summary_problem,
            manager: labels.get(MANAGED_BY.0).cloned(),
            warnings: annotations.get(WARNINGS).map(|text| warnings(text)).unwrap_or_default(),
            problem: None,
            name,
        };
        let own = value_of(attributes, compact::ATTRIBUTE);
        let is_described = [CPU_TOPOLOGY, POD_CPU_ALLOCS]
            .iter()
            .any(|name| annotations.contains_key(*name));
        let object = described_part(object);
        stored.alignment = if object.api_version == ApiVersion::V1Alpha1.api_version() {
            described::of_policies(object.topology_policies.as_deref())
        } else {
            described::of_attributes(&object)
        }
        .ok()
        .flatten();
        match own {
            Some(value) => stored.take_compact(&value, object),
            None if is_described && is_ours => stored.take_described(&object),
            None if is_described => stored.take_koordinators(object),
            None => {}
        }
        Ok(stored)
    }

    fn take_compact(&mut self, value: &str, object: NodeResourceTopology) {
        let compact = match Compact::parse(value) {
            Ok(compact) => compact,
            Err(cause) => {
                self.problem = Some(cause.to_string());
                return;
            }
        };
        let holder = |(pod, cpus): (&PodUid, &CpuSet)| Holder {
            pod: pod.clone(),
            name: None,
            cpus: Some(cpus.clone()).filter(|cpus| !cpus.is_empty()),
            is_container: Some(compact.containers.contains(pod)),
        };
        self.holders = compact.pods.iter().map(holder).collect();
        let devices = amounts::devices(&self.zones);
        let numa = self.numa(object);
        let facts = compact.facts(self.name.clone(), self.alignment.clone(), numa);
        self.facts = Some(Facts { devices, ..facts });
        self.profile = Profile::Stelia;
    }

    fn take_described(&mut self, object: &NodeResourceTopology) {
        match described::of_object(object) {
            Ok(facts) => {
                let holders = facts.allocations.iter().map(|one| Holder {
                    pod: one.pod.clone(),
                    name: one.name.clone(),
                    cpus: Some(one.cpus.clone()),
                    is_container: None,
                });
                self.holders = holders.collect();
                self.facts = Some(facts);
                self.profile = Profile::Koordinator;
            }
            Err(cause) => self.distrust_cpu_amounts(&cause),
        }
    }

    fn take_koordinators(&mut self, mut object: NodeResourceTopology) {
        let annotations = std::mem::take(&mut object.metadata.annotations);
        let numa = self.numa(object);
        match koordinator::read(self.name.clone(), &annotations, self.alignment.clone(), numa) {
            Ok((facts, holders)) => {
                self.holders = holders;
                self.facts = Some(facts);
                self.profile = Profile::Koordinator;
            }
            Err(cause) => self.distrust_cpu_amounts(&cause),
        }
    }

    /// Records why the annotations cannot be read, and removes the amounts of CPUs: it is the annotations that say which are free.
    fn distrust_cpu_amounts(&mut self, cause: &DescribedError) {
        self.problem = Some(cause.to_string());
        for resources in self.zones.values_mut() {
            resources.remove("cpu");
        }
    }

    /// Memory and distances of the NUMA nodes; without them the CPUs are still reported.
    fn numa(&mut self, mut object: NodeResourceTopology) -> BTreeMap<u32, KernelNumaNode> {
        for zone in &mut object.zones {
            let is_memory = |name: &str| ["cpu", "memory"].contains(&name) || name.starts_with("hugepages-");
            zone.resources.retain(|resource| is_memory(&resource.name));
        }
        described::zones::numa(&object).unwrap_or_else(|cause| {
            self.problem = Some(cause.to_string());
            BTreeMap::new()
        })
    }
}

fn value_of(attributes: &[Attribute], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.name == name);
    found.map(|attribute| attribute.value.clone())
}

/// A member of a newer version is passed over.
fn read_summary(text: &str) -> Result<Summary, String> {
    // A list would be read as the members in their order.
    if !text.trim_start().starts_with('{') {
        return Err("it is not a JSON object".to_owned());
    }
    let summary: Summary = serde_json::from_str(text).map_err(|cause| excerpt::cause(&cause))?;
    let count = |state: &str| summary.instances.get(state).copied().unwrap_or(0);
    let all = summary
        .instances
        .values()
        .fold(0, |sum: u64, count| sum.saturating_add(*count));
    if summary.waiting_too_long > count("waiting") {
        return Err("more instances float for too long than float".to_owned());
    }
    if summary.degraded > all {
        Err("more instances are degraded than exist".to_owned())
    } else {
        Ok(summary)
    }
}

fn warnings(text: &str) -> Vec<String> {
    serde_json::from_str(text).unwrap_or_else(|_| vec![excerpt::name(text)])
}

/// The object without what others added. A description that was written as v1alpha1 keeps its policies when it is asked for as
/// v1alpha2, because the API server converts nothing but the version's name.
fn described_part(mut object: NodeResourceTopology) -> NodeResourceTopology {
    let ObjectMeta {
        name, mut annotations, ..
    } = object.metadata;
    annotations.retain(|name, _| DESCRIBED.contains(&name.as_str()));
    object.kind = KIND.to_owned();
    object.metadata = ObjectMeta {
        name,
        labels: labels(),
        annotations,
        ..ObjectMeta::default()
    };
    object.attributes.retain(|one| ALIGNMENT.contains(&one.name.as_str()));
    if object.topology_policies.is_some() {
        let version = if object.attributes.is_empty() {
            ApiVersion::V1Alpha1
        } else {
            object.topology_policies = None;
            ApiVersion::V1Alpha2
        };
        object.api_version = version.api_version();
    }
    for resource in object.zones.iter_mut().flat_map(|zone| &mut zone.resources) {
        resource.allocatable = Some(resource.allocatable().to_owned());
    }
    object
}
