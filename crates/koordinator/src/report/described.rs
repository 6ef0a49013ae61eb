//! Reads back the object that `steliactl export topology` printed: JSON or YAML, either version.
//!
//! Nothing is guessed: what was read must make the same object again, so anything unknown, duplicate or contradictory
//! is an error that names the place. The object does not have everything: a scope of kubelet's topology manager that
//! v1alpha1 has no name for is read as `container`, a core's number as its rank, and huge pages that are free
//! beyond the allocatable ones not at all. Where kubelet chooses exclusive CPUs, the object has only the number of those that
//! are in no pod's list: the lowest that fit are taken.

mod difference;
mod error;
#[cfg(test)]
mod tests;
pub(crate) mod zones;

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;

use super::annotations::{
    ALLOCATOR, CPU_MANAGER_POLICY, CPU_SHARED_POOLS, CPU_TOPOLOGY, CpuDetails, CpuManagerPolicy, CpuSharedPool,
    POD_CPU_ALLOCS, PodCpuAlloc, WARNINGS,
};
use crate::allocator::CpuSource;

use super::object::KIND;
use super::{
    Alignment, Allocator, ApiVersion, Facts, Kubelet, MANAGED_BY, Managers, NodeResourceTopology, OTHERS_POLICIES,
    POLICIES, PodAllocation, name, report,
};
pub use error::DescribedError;
use stelia_cpus::text::excerpt;
use stelia_cpus::{Cpu, CpuSet, MAX_CPUS, Topology};
use stelia_kubelet::{PodName, PodUid};

pub(crate) use error::wrong;

/// The longest text, in bytes. An object of 8192 CPUs has less than 1 MiB.
pub const MAX_BYTES: usize = 4 << 20;
/// The most zones: as many NUMA nodes as a kernel can be built for.
pub const MAX_ZONES: usize = 1024;
/// The most CPUs that all lists of a text may name together.
pub const MAX_LISTED: usize = 1 << 16;

/// Reads a node's description.
///
/// # Errors
/// The error says what is wrong, and where. The text may come from anyone.
pub fn read(text: &str) -> Result<Facts, DescribedError> {
    if text.len() > MAX_BYTES {
        return Err(DescribedError::TooLarge(text.len()));
    }
    let object: NodeResourceTopology = parse(text)?;
    let facts = of_object(&object).and_then(|facts| {
        // What the type passes over.
        match difference::first(parse(text)?, &object)? {
            Some(unknown) => Err(unknown),
            None => Ok(facts),
        }
    });
    facts.map_err(|cause| match other_writer(&object) {
        Some(writer) => DescribedError::OtherWriter(writer),
        None => cause,
    })
}

/// Who wrote an object that is none of steliad's; `None` where it is one of steliad's, or no NodeResourceTopology.
fn other_writer(object: &NodeResourceTopology) -> Option<String> {
    let (label, ours) = MANAGED_BY;
    match object.metadata.labels.get(label) {
        _ if object.kind != KIND => None,
        Some(writer) if writer == ours => None,
        Some(writer) => Some(excerpt::name(writer)),
        None => Some(format!("another program (it has no label {label})")),
    }
}

/// Reads an object that has nothing but what a description has.
pub(crate) fn of_object(object: &NodeResourceTopology) -> Result<Facts, DescribedError> {
    let version = version(object)?;
    let facts = facts(object, version)?;
    let implied = report(&facts, version);
    if *object == implied {
        return Ok(facts);
    }
    match difference::first(difference::value(object)?, &implied)? {
        Some(difference) => Err(difference),
        // The annotations differ in their text only.
        None => Ok(facts),
    }
}

/// JSON where it begins as such, else YAML (not all of JSON is YAML).
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, DescribedError> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|cause| DescribedError::Text(excerpt::cause(&cause)));
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 0 },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|cause| DescribedError::Text(excerpt::cause(&cause)))
}

fn version(object: &NodeResourceTopology) -> Result<ApiVersion, DescribedError> {
    if object.kind != KIND {
        return Err(wrong("kind", &object.kind, "not a NodeResourceTopology"));
    }
    let is = |version: &ApiVersion| version.api_version() == object.api_version;
    let known = ApiVersion::ALL.into_iter().find(is);
    known.ok_or_else(|| wrong("apiVersion", &object.api_version, "that version is not known"))
}

fn facts(object: &NodeResourceTopology, version: ApiVersion) -> Result<Facts, DescribedError> {
    let name = name::check(object.metadata.name.clone()).map_err(|_| {
        wrong(
            "metadata.name",
            &object.metadata.name,
            "not a name that a Node can have",
        )
    })?;
    if object.zones.len() > MAX_ZONES {
        return Err(DescribedError::TooManyZones(object.zones.len()));
    }
    let mut lists = Lists::default();
    let policy: CpuManagerPolicy = annotation(object, CPU_MANAGER_POLICY)?;
    let topology = topology(annotation(object, CPU_TOPOLOGY)?)?;
    let online = topology.online();
    let mut allocations = Vec::new();
    for (at, one) in annotation::<Vec<PodCpuAlloc>>(object, POD_CPU_ALLOCS)?
        .into_iter()
        .enumerate()
    {
        let place = format!("annotation {POD_CPU_ALLOCS}[{at}]");
        let name = match (one.namespace.as_str(), one.name.as_str()) {
            ("", "") => None,
            (namespace, name) => {
                let unnamed = || wrong(&format!("{place}.name"), name, "no pod is called that in its namespace");
                Some(PodName::new(namespace, name).ok_or_else(unnamed)?)
            }
        };
        allocations.push(PodAllocation {
            pod: PodUid::parse(&one.uid).map_err(|_| wrong(&format!("{place}.uid"), &one.uid, "not a pod UID"))?,
            name,
            cpus: lists.parse(&format!("{place}.cpuset"), &one.cpuset)?,
            by_kubelet: one.managed_by_kubelet,
        });
    }
    let mut shared = CpuSet::new();
    let pools: Vec<CpuSharedPool> = annotation(object, CPU_SHARED_POOLS)?;
    for (at, pool) in pools.into_iter().enumerate() {
        let place = format!("annotation {CPU_SHARED_POOLS}[{at}].cpuset");
        let cpus = lists.parse(&place, &pool.cpuset)?;
        if !cpus.is_disjoint(&shared) {
            return Err(wrong(
                &place,
                &pool.cpuset,
                "another NUMA node's pool has some of these CPUs",
            ));
        }
        shared = shared.union(&cpus);
    }
    let has = |name: &str| object.metadata.annotations.contains_key(name);
    let allocator: Option<Allocator> = has(ALLOCATOR).then(|| annotation(object, ALLOCATOR)).transpose()?;
    // What the warnings have that does not follow from the rest.
    let problems: Option<Vec<String>> = has(WARNINGS).then(|| annotation(object, WARNINGS)).transpose()?;
    let problems = problems.unwrap_or_default();
    if allocator.as_ref().is_some_and(|own| !own.policies.source.allocates()) {
        return Err(wrong(
            &format!("annotation {ALLOCATOR}: policies.source"),
            CpuSource::Kubelet.name(),
            "it is of steliad",
        ));
    }
    let reserved = match &allocator {
        Some(allocator) => allocator.policies.reserved.clone(),
        None => policy.reserved.clone(),
    };
    let allocated: CpuSet = allocations.iter().flat_map(|one| one.cpus.iter()).collect();
    let both = shared.intersection(&allocated);
    if !both.is_empty() {
        let place = format!("annotation {CPU_SHARED_POOLS}");
        return Err(wrong(&place, &both.to_string(), "these CPUs are a pod's own"));
    }
    let exclusive = match &allocator {
        Some(_) => online.difference(&shared),
        None => zones::exclusive(object, &topology, &reserved, &shared, &allocated)?,
    };
    Ok(Facts {
        name,
        numa: zones::numa(object)?,
        topology,
        reserved,
        exclusive,
        shared,
        allocations,
        containers: BTreeSet::new(),
        kubelet: Kubelet {
            cpu_policy: policy.policy,
            cpu_options: policy.options,
            reserved: policy.reserved,
            alignment: match version {
                ApiVersion::V1Alpha1 => of_policies(object.topology_policies.as_deref())?,
                ApiVersion::V1Alpha2 => of_attributes(object)?,
            },
            max_numa_nodes: None,
            managers: Managers::default(),
        },
        allocator,
        pods: None,
        devices: BTreeMap::new(),
        problems,
    })
}

/// Bounds CPU lists: a short text can name thousands of CPUs.
pub(crate) struct Lists {
    /// CPUs that the lists not read yet may name.
    remaining: usize,
}

impl Default for Lists {
    fn default() -> Self {
        Self { remaining: MAX_LISTED }
    }
}

impl Lists {
    pub(crate) fn parse(&mut self, place: &str, text: &str) -> Result<CpuSet, DescribedError> {
        let cpus: CpuSet = text.parse().map_err(|_| wrong(place, text, "not a CPU list"))?;
        self.remaining = self.remaining.checked_sub(cpus.len()).ok_or(DescribedError::TooMany)?;
        Ok(cpus)
    }
}

fn annotation<T: DeserializeOwned>(object: &NodeResourceTopology, name: &'static str) -> Result<T, DescribedError> {
    annotation_of(&object.metadata.annotations, name)
}

/// The annotation of this name, parsed.
pub(crate) fn annotation_of<T: DeserializeOwned>(
    annotations: &BTreeMap<String, String>,
    name: &'static str,
) -> Result<T, DescribedError> {
    let text = annotations.get(name);
    let text = text.ok_or(DescribedError::Missing(name))?;
    serde_json::from_str(text).map_err(|cause| DescribedError::Annotation {
        name,
        cause: excerpt::cause(&cause),
    })
}

pub(crate) fn topology(annotation: CpuDetails) -> Result<Topology, DescribedError> {
    let mut cpus = BTreeMap::new();
    let mut cores: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for (at, info) in annotation.detail.into_iter().enumerate() {
        let wrong = |field: &str, found: u32, why| {
            wrong(
                &format!("annotation {CPU_TOPOLOGY}: detail[{at}].{field}"),
                &found.to_string(),
                why,
            )
        };
        if info.id >= MAX_CPUS {
            return Err(wrong("id", info.id, "no CPU has so high a number"));
        }
        let cpu = Cpu {
            package: info.socket,
            core: info.core,
            node: info.node,
        };
        if cpus.insert(info.id, cpu).is_some() {
            return Err(wrong("id", info.id, "the CPU is there twice"));
        }
        if *cores.entry(info.core).or_insert((info.socket, info.node)) != (info.socket, info.node) {
            return Err(wrong(
                "core",
                info.core,
                "its CPUs are of several sockets or NUMA nodes",
            ));
        }
    }
    Ok(Topology { cpus })
}

pub(crate) fn of_policies(policies: Option<&[String]>) -> Result<Option<Alignment>, DescribedError> {
    match policies {
        None | Some([]) => Ok(None),
        Some([name]) => match POLICIES
            .iter()
            .chain(&OTHERS_POLICIES)
            .find(|(known, ..)| known == name)
        {
            Some((_, policy, scope)) => Ok(Some(Alignment {
                policy: (*policy).to_owned(),
                scope: (*scope).to_owned(),
            })),
            None => Err(wrong("topologyPolicies[0]", name, "that policy is not known")),
        },
        Some([_, second, ..]) => Err(wrong("topologyPolicies[1]", second, "there can be one only")),
    }
}

/// v1alpha2's attributes of the topology manager.
pub(crate) const ALIGNMENT: [&str; 2] = ["topologyManagerPolicy", "topologyManagerScope"];

/// The topology manager's policy and scope, from v1alpha2's attributes.
pub(crate) fn of_attributes(object: &NodeResourceTopology) -> Result<Option<Alignment>, DescribedError> {
    let names = ALIGNMENT;
    let mut found = BTreeMap::new();
    for (at, attribute) in object.attributes.iter().enumerate() {
        let wrong = |why| wrong(&format!("attributes[{at}].name"), &attribute.name, why);
        if !names.contains(&attribute.name.as_str()) {
            return Err(wrong("that attribute is not known"));
        }
        if found.insert(attribute.name.as_str(), attribute.value.clone()).is_some() {
            return Err(wrong("the attribute is there twice"));
        }
    }
    match names.map(|name| found.remove(name)) {
        [None, None] => Ok(None),
        [Some(policy), Some(scope)] => Ok(Some(Alignment { policy, scope })),
        _ => Err(wrong("attributes", "1", "policy and scope go together")),
    }
}
