//! The nodes that lack the fewest CPUs, and who has these.

use std::cmp::Reverse;

use serde::Serialize;
use stelia_cpus::CpuSet;
use stelia_table::counted;

use crate::chooser::Chooser;
use crate::cluster::{Cluster, Member, called};
use crate::nodes::{Numa, Row};
use crate::objects::own_cpus;
use crate::pod_request::PodRequest;
use crate::verdict::Verdict;

/// Limit of the nodes that are listed.
const MAX_CLOSEST_NODES: usize = 3;
/// Limit of the pods that are listed for a node.
const MAX_HOLDERS: usize = 4;

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
        called(&self.pod_namespace, &self.pod_name, &self.pod_uid)
    }
}

/// A node that lacks CPUs, and nothing else that more room would not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CpuShortage {
    /// The CPUs of the largest VM that has room.
    largest: u64,
    one_numa_node: bool,
}

impl CpuShortage {
    pub(super) fn of(pod_request: &PodRequest, verdict: &Verdict, chooser: &Chooser) -> Option<Self> {
        let needed = own_cpus(&pod_request.pod);
        if needed == 0 || !verdict.fixed.is_empty() || verdict.placement.is_ok() {
            return None;
        }
        let largest = chooser.largest().filter(|largest| *largest < needed)?;
        Some(Self {
            largest,
            one_numa_node: chooser.is_single_node(),
        })
    }
}

pub(super) fn of(pod_request: &PodRequest, cluster: &Cluster, short: &[Option<CpuShortage>]) -> Vec<Closest> {
    let short = cluster.members.iter().zip(short);
    let mut short: Vec<(&Member, CpuShortage)> =
        short.filter_map(|(member, short)| Some((member, (*short)?))).collect();
    // Equal ones keep the nodes' order, by name.
    short.sort_by_key(|(_, short)| Reverse(short.largest));
    let closest = short.into_iter().take(MAX_CLOSEST_NODES);
    let needed = own_cpus(&pod_request.pod);
    closest
        .map(|(member, short)| one(needed, short, cluster, member))
        .collect()
}

fn one(needed: u64, short: CpuShortage, cluster: &Cluster, member: &Member) -> Closest {
    let row = Row::of(member, 0);
    // Where one NUMA node must have them all: the CPUs of the one with the most free.
    let most_free = row.numa.iter().max_by_key(|numa| (numa.free_cpus, Reverse(numa.node)));
    let near = most_free.filter(|_| short.one_numa_node).and_then(|numa| {
        let facts = member.report.as_ref()?.stored.facts.as_ref()?;
        let here = facts.topology.cpus.iter().filter(|(_, cpu)| cpu.node == numa.node);
        Some(here.map(|(number, _)| *number).collect::<CpuSet>())
    });
    let missing = needed - short.largest;
    let held = held(cluster, member, near.as_ref()).into_iter();
    let (mut enough, mut few): (Vec<Held>, Vec<Held>) =
        held.partition(|held| held.cpus.is_some_and(|cpus| cpus >= missing));
    enough.sort_by_key(|held| (held.cpus, held.called()));
    few.sort_by_key(|held| (Reverse(held.cpus), held.called()));
    let mut held_by = [enough, few].concat();
    let more = held_by.len().saturating_sub(MAX_HOLDERS) as u64;
    held_by.truncate(MAX_HOLDERS);
    Closest {
        node: member.name.clone(),
        needed_cpus: needed,
        largest_vm_cpus: short.largest,
        one_numa_node: short.one_numa_node,
        numa: row.numa,
        held_by,
        more,
    }
}

/// Who has CPUs of the node; where their lists are known, only of those `near`.
fn held(cluster: &Cluster, member: &Member, near: Option<&CpuSet>) -> Vec<Held> {
    let holders = member.report.iter().flat_map(|report| &report.stored.holders);
    let held = holders.filter_map(|holder| {
        let cpus = match (&holder.cpus, near) {
            (Some(cpus), Some(near)) => Some(cpus.intersection(near)),
            (Some(cpus), None) => Some(cpus.clone()),
            (None, _) => None,
        };
        if cpus.as_ref().is_some_and(CpuSet::is_empty) {
            return None;
        }
        let (namespace, name) = cluster.holder(holder);
        let own = || cluster.pod(holder.pod.as_str()).map(|(_, pod)| pod.own_cpus);
        Some(Held {
            pod_uid: holder.pod.to_string(),
            pod_namespace: namespace,
            pod_name: name,
            cpus: cpus.as_ref().map(|cpus| cpus.len() as u64).or_else(own),
            exclusive_cpus: cpus.map(|cpus| cpus.to_string()).unwrap_or_default(),
        })
    });
    held.collect()
}

impl Closest {
    /// A sentence: what is there, what is needed, who has it.
    pub fn in_words(&self) -> String {
        let on_one = if self.one_numa_node { " on one NUMA node" } else { "" };
        let (node, room, needed) = (&self.node, self.largest_vm_cpus, self.needed_cpus);
        let mut words = format!("{node} has room for {room} of {needed} CPUs{on_one}");
        let on_node = |numa: &Numa| Some(format!("{} on NUMA node {}", numa.free_cores?, numa.node));
        let cores: Vec<String> = self.numa.iter().filter_map(on_node).take(8).collect();
        if !cores.is_empty() {
            words += &format!(" (free whole cores: {})", cores.join(", "));
        }
        let held = self
            .held_by
            .iter()
            .map(|held| match (held.cpus, held.exclusive_cpus.as_str()) {
                (Some(cpus), "") => format!("{} has {cpus}", held.called()),
                (Some(cpus), list) => format!("{} has {cpus} ({list})", held.called()),
                (None, _) => format!("{} has some", held.called()),
            });
        let held: Vec<String> = held.collect();
        if !held.is_empty() {
            let more = || format!(", and {}", counted(self.more, "other pod"));
            let more = (self.more > 0).then(more).unwrap_or_default();
            words += &format!(": {}{more}", held.join(", "));
        }
        words
    }
}
