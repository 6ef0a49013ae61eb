//! What a scheduler chose for a pod before it came here (Koordinator's annotation `scheduling.koordinator.sh/resource-status`).
//! It comes from the pod, so it is a request like any other option: followed where possible, else refused with the
//! reason.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use stelia_cpus::{CpuSet, NodeSet};

/// A scheduler's choice, empty where it made none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Schedule {
    #[serde(rename = "scheduled-cpuset", deserialize_with = "list")]
    pub cpus: Option<CpuSet>,
    /// The NUMA nodes from which the CPUs, or the pool, must be taken.
    #[serde(
        rename = "scheduled-numa-nodes",
        serialize_with = "as_list",
        deserialize_with = "list"
    )]
    pub nodes: Option<NodeSet>,
}

/// A list such as `0-3,8`, with something in it.
fn list<'de, D: Deserializer<'de>, T: FromIterator<u32>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let numbers: Option<CpuSet> = Option::deserialize(deserializer)?;
    match numbers {
        Some(numbers) if numbers.is_empty() => Err(D::Error::custom("the list is empty")),
        numbers => Ok(numbers.map(|numbers| numbers.iter().collect())),
    }
}

fn as_list<S: Serializer>(nodes: &Option<NodeSet>, serializer: S) -> Result<S::Ok, S::Error> {
    let nodes: Option<CpuSet> = nodes.as_ref().map(|nodes| nodes.iter().copied().collect());
    nodes.serialize(serializer)
}

impl Schedule {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// How the container's CPUs differ from the choice; `None` where they do not. `nodes_of`: the NUMA nodes of CPUs, asked for only where
    /// the scheduler named some.
    pub fn contradicts(&self, given: &CpuSet, nodes_of: impl FnOnce(&CpuSet) -> NodeSet) -> Option<String> {
        if let Some(chosen) = self.cpus.as_ref().filter(|chosen| *chosen != given) {
            return Some(format!(
                "the scheduler chose the CPUs {chosen}, the container has {given}"
            ));
        }
        let nodes = self.nodes.as_ref()?;
        let on = nodes_of(given);
        (!on.is_subset(nodes)).then(|| {
            format!(
                "the scheduler named NUMA nodes {}, the CPUs {given} are of {}",
                numbers(nodes),
                numbers(&on)
            )
        })
    }
}

/// `0,2`.
pub(crate) fn numbers(nodes: &NodeSet) -> String {
    let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
    nodes.join(",")
}
