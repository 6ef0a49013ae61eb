//! What kubelet's managers decide by: fields of the attribute that are there only where kubelet differs from its defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stelia_cpus::{CpuSet, NodeSet};

use super::{CompactError, set, set_text, wrong};
use crate::report::Managers;

/// The most NUMA nodes whose memory is read.
const MAX_GROUPS: usize = 1024;
/// The most L3 caches that are read.
const MAX_CACHES: usize = 4096;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Fields {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    closest: bool,
    #[serde(rename = "pod-level", skip_serializing_if = "std::ops::Not::not")]
    pod_level: bool,
    #[serde(rename = "reserved-count", skip_serializing_if = "is_zero")]
    reserved_count: u32,
    /// A NUMA node that is in use, a colon and its cells where these are not itself alone; with blanks between them. A text
    /// without any where nothing is assigned yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
    /// The cache's id, a colon and its CPUs; caches with blanks between them.
    #[serde(skip_serializing_if = "String::is_empty")]
    caches: String,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Fields {
    /// `None` where there is nothing to say.
    pub(super) fn of(managers: &Managers) -> Option<Self> {
        let Managers {
            prefer_closest,
            pod_level,
            reserved_count,
            memory_groups,
            caches,
        } = managers;
        if *managers == Managers::default() {
            return None;
        }
        let group = |(node, cells): (&u32, &NodeSet)| {
            let cells: CpuSet = cells.iter().copied().collect();
            if cells.len() == 1 && cells.contains(*node) {
                node.to_string()
            } else {
                format!("{node}:{cells}")
            }
        };
        let mut by_cache: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for (cpu, cache) in caches {
            by_cache.entry(*cache).or_default().insert(*cpu);
        }
        let cache = |(id, cpus): (&u32, &CpuSet)| format!("{id}:{}", set_text(cpus));
        Some(Self {
            closest: *prefer_closest,
            pod_level: *pod_level,
            reserved_count: *reserved_count,
            memory: memory_groups
                .as_ref()
                .map(|groups| groups.iter().map(group).collect::<Vec<_>>().join(" ")),
            caches: by_cache.iter().map(cache).collect::<Vec<_>>().join(" "),
        })
    }

    pub(super) fn read(self) -> Result<Managers, CompactError> {
        let groups = |text: String| -> Result<_, CompactError> {
            let mut groups = BTreeMap::new();
            for (at, word) in words(&text).enumerate() {
                let (node, cells) = word.split_once(':').unwrap_or((word, word));
                let id = node.parse().ok().filter(|_| at < MAX_GROUPS);
                let id: u32 = id.ok_or_else(|| wrong("memory", word, "not a NUMA node and its cells"))?;
                if groups.insert(id, set("memory", cells)?.iter().collect()).is_some() {
                    return Err(wrong("memory", word, "the NUMA node is there twice"));
                }
            }
            Ok(groups)
        };
        Ok(Managers {
            prefer_closest: self.closest,
            pod_level: self.pod_level,
            reserved_count: self.reserved_count,
            memory_groups: self.memory.map(groups).transpose()?,
            caches: caches(&self.caches)?,
        })
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ').filter(|word| !word.is_empty())
}

fn caches(text: &str) -> Result<BTreeMap<u32, u32>, CompactError> {
    let mut caches = BTreeMap::new();
    for (at, word) in words(text).enumerate() {
        let cache = word
            .split_once(':')
            .and_then(|(id, cpus)| Some((id.parse::<u32>().ok()?, cpus)));
        let Some((id, cpus)) = cache.filter(|_| at < MAX_CACHES) else {
            return Err(wrong("caches", word, "not an L3 cache and its CPUs"));
        };
        for cpu in set("caches", cpus)?.iter() {
            if caches.insert(cpu, id).is_some() {
                return Err(wrong("caches", word, "a CPU has two L3 caches"));
            }
        }
    }
    Ok(caches)
}
