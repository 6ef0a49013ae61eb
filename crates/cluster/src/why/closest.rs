//! The nodes that lack the fewest CPUs, and who has these.

use serde::Serialize;
use stelia_cpus::CpuSet;
use stelia_table::counted;

use crate::ask::Ask;
use crate::cluster::{Cluster, Member};
use crate::nodes::{Numa, Row};
use crate::objects::own_cpus;
use crate::verdict::Verdict;

/// At most this many nodes.
const NODES: usize = 3;
/// At most this many pods of a node.
const PODS: usize = 4;

/// A node that has almost enough.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Closest {
    pub node: String,
    pub needed_cpus: u64,
    /// How many the largest VM could have there.
    pub largest_vm_cpus: u64,
    /// Whether they must be of one NUMA node.
    pub one_numa_node: bool,
    pub numa: Vec<Numa>,
    /// The pods that have its CPUs: first those each of which has as many as are missing, the smallest first.
    pub held_by: Vec<Held>,
    /// Pods that are not listed.
    pub more: u64,
}

/// A pod that has CPUs of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Held {
    pub pod_uid: String,
    pub pod_namespace: String,
    pub pod_name: String,
    /// Null where that is not known.
    pub cpus: Option<u64>,
    /// Which; empty where that is not known.
    pub exclusive_cpus: String,
}

impl Held {
    fn called(&self) -> String {
        match self.pod_name.is_empty() {
            true => self.pod_uid.clone(),
            false => format!("{}/{}", self.pod_namespace, self.pod_name),
        }
    }
}

pub(super) fn of(ask: &Ask, cluster: &Cluster, verdicts: &[Verdict]) -> Vec<Closest> {
    let needed = own_cpus(&ask.pod);
    let mut found: Vec<(u64, &Member, &Verdict)> = Vec::new();
    for (member, verdict) in cluster.members.iter().zip(verdicts) {
        if needed == 0 || !verdict.fixed.is_empty() || verdict.placement.is_ok() {
            continue;
        }
        if let Some(largest) = verdict.chooser.largest().filter(|largest| *largest < needed) {
            found.push((largest, member, verdict));
        }
    }
    found.sort_by(|(one, first, _), (other, second, _)| other.cmp(one).then_with(|| first.name.cmp(&second.name)));
    let closest = found.into_iter().take(NODES);
    closest
        .map(|(largest, member, verdict)| one(needed, largest, cluster, member, verdict))
        .collect()
}

fn one(needed: u64, largest: u64, cluster: &Cluster, member: &Member, verdict: &Verdict) -> Closest {
    let row = Row::of(member, 0);
    let one_numa_node = verdict.chooser.is_single_node();
    // Where one NUMA node must have them all: the CPUs of the one with the most free.
    let near = one_numa_node.then(|| {
        row.numa
            .iter()
            .max_by_key(|numa| (numa.free_cpus, std::cmp::Reverse(numa.node)))
    });
    let near = near.flatten().and_then(|numa| {
        let facts = member.report.as_ref()?.stored.facts.as_ref()?;
        let here = facts.topology.cpus.iter().filter(|(_, cpu)| cpu.node == numa.node);
        Some(here.map(|(number, _)| *number).collect::<CpuSet>())
    });
    let mut held_by = held(cluster, member, near.as_ref());
    let missing = needed - largest;
    held_by.sort_by_key(|held| {
        let cpus = held.cpus.unwrap_or(0);
        (
            cpus < missing,
            if cpus < missing { u64::MAX - cpus } else { cpus },
            held.called(),
        )
    });
    let more = held_by.len().saturating_sub(PODS) as u64;
    held_by.truncate(PODS);
    Closest {
        node: member.name.clone(),
        needed_cpus: needed,
        largest_vm_cpus: largest,
        one_numa_node,
        numa: row.numa,
        held_by,
        more,
    }
}

/// Who has CPUs of the node; where their lists are known, only of those `near`.
fn held(cluster: &Cluster, member: &Member, near: Option<&CpuSet>) -> Vec<Held> {
    let holders = member.report.iter().flat_map(|report| &report.stored.holders);
    let held = holders.filter_map(|holder| {
        let known = cluster.pods.get(holder.pod.as_str());
        let (namespace, name) = match (&holder.name, known) {
            (_, Some(((namespace, name), _))) => (namespace.clone(), name.clone()),
            (Some(name), None) => (name.namespace().to_owned(), name.name().to_owned()),
            (None, None) => Default::default(),
        };
        let cpus = match (&holder.cpus, near) {
            (Some(cpus), Some(near)) => Some(cpus.intersection(near)),
            (Some(cpus), None) => Some(cpus.clone()),
            (None, _) => None,
        };
        if cpus.as_ref().is_some_and(CpuSet::is_empty) {
            return None;
        }
        Some(Held {
            pod_uid: holder.pod.to_string(),
            pod_namespace: namespace,
            pod_name: name,
            cpus: cpus
                .as_ref()
                .map(|cpus| cpus.len() as u64)
                .or(known.map(|(_, own)| *own)),
            exclusive_cpus: cpus.map(|cpus| cpus.to_string()).unwrap_or_default(),
        })
    });
    held.collect()
}

impl Closest {
    /// A sentence: what is there, what is needed, who has it.
    pub fn in_words(&self) -> String {
        let on_one = if self.one_numa_node { " on one NUMA node" } else { "" };
        let mut words = format!(
            "{} has room for {} of {} CPUs{on_one}",
            self.node, self.largest_vm_cpus, self.needed_cpus
        );
        let cores: Vec<String> = self
            .numa
            .iter()
            .filter_map(|numa| Some(format!("{} on NUMA node {}", numa.free_cores?, numa.node)))
            .take(8)
            .collect();
        if !cores.is_empty() {
            words += &format!(" (free whole cores: {})", cores.join(", "));
        }
        let held: Vec<String> = self
            .held_by
            .iter()
            .map(|held| match (held.cpus, held.exclusive_cpus.as_str()) {
                (Some(cpus), "") => format!("{} has {cpus}", held.called()),
                (Some(cpus), list) => format!("{} has {cpus} ({list})", held.called()),
                (None, _) => format!("{} has some", held.called()),
            })
            .collect();
        if !held.is_empty() {
            let more = if self.more > 0 {
                format!(", and {}", counted(self.more, "other pod"))
            } else {
                String::new()
            };
            words += &format!(": {}{more}", held.join(", "));
        }
        words
    }
}
