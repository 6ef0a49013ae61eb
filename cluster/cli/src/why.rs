//! `why`: why a pod has room on no node, or on which it has; and who has the CPUs that it needs.

mod closest;
#[cfg(test)]
mod tests;

use serde::Serialize;
use stelia_api::VM_RESOURCE;
use stelia_node_plan::planned_nodes;
use stelia_table::{Column, Meaning, Render, TextStyle, column, counted, properties, table};

use crate::cluster::{Cluster, Member, each};
use crate::objects::{Problem, own_cpus};
use crate::pod_request::PodRequest;
use crate::prose;
use crate::reasons::{self, Group, Refusal, groups, listed, table_of};
use crate::verdict::{Basis, Verdict};
use closest::CpuShortage;
pub use closest::{Closest, Held};

/// Limit of the nodes with room that are named.
const MAX_NAMED_NODES: usize = 5;
/// Assumptions that hold for every answer.
const ASSUMED: &str = "kubelet's Memory Manager, other pods' affinity, volumes and quotas are not considered";

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhyAnswer {
    pub pod: String,
    /// Kubernetes' QoS class.
    pub qos: &'static str,
    /// CPUs of its own that it would have.
    pub cpus: u64,
    /// Set for a pod of the cluster.
    pub phase: Option<String>,
    pub node: Option<String>,
    pub status_reason: Option<String>,
    pub status_message: Option<String>,
    /// How many nodes were asked.
    pub asked: u64,
    /// How many have room.
    pub room: u64,
    /// How many cannot tell.
    pub unknown: u64,
    /// How many of those with room have its CPUs and devices on the same NUMA nodes; null without devices whose NUMA nodes are published.
    pub together: Option<u64>,
    pub reasons: Vec<Group>,
    /// Where CPUs and devices would be on nodes with room that are not among these.
    pub apart: Vec<Group>,
    /// The nodes that lack the fewest CPUs.
    pub closest: Vec<Closest>,
    pub nodes: Vec<Answer>,
    pub assumed: Vec<String>,
    pub problems: Vec<Problem>,
}

/// A node's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    pub name: String,
    /// Null where it is not known.
    pub room: Option<bool>,
    /// How exact that is; null without a description.
    pub profile: Option<&'static str>,
    /// Whether its CPUs and devices would be on the same NUMA nodes ([`planned_nodes::NodesVerdict::name`]); null without room, devices or their NUMA nodes.
    pub locality: Option<&'static str>,
    pub reasons: Vec<Refusal>,
}

impl WhyAnswer {
    pub fn of(pod_request: &PodRequest, cluster: &Cluster) -> Self {
        let answered = each(&cluster.members, |member| {
            let chooser = member.chooser();
            let verdict = Verdict::of(pod_request, member, &chooser);
            let short = CpuShortage::of(pod_request, &verdict, &chooser);
            (verdict, short)
        });
        let (verdicts, short): (Vec<Verdict>, Vec<Option<CpuShortage>>) = answered.into_iter().unzip();
        let room = |wanted: Option<bool>| verdicts.iter().filter(|verdict| verdict.has_room() == wanted).count() as u64;
        let answers = cluster.members.iter().zip(&verdicts).map(|(member, verdict)| Answer {
            name: member.name.clone(),
            room: verdict.has_room(),
            profile: member.report.as_ref().map(|report| report.stored.profile.name()),
            locality: verdict.locality().map(planned_nodes::NodesVerdict::name),
            reasons: verdict.refusals(),
        });
        let answers: Vec<Answer> = answers.collect();
        let localities: Vec<planned_nodes::NodesVerdict> = verdicts.iter().filter_map(Verdict::locality).collect();
        let together = localities.iter().filter(|verdict| verdict.is_together()).count() as u64;
        let apart: Vec<Option<Refusal>> = verdicts.iter().map(Verdict::apart).collect();
        let apart = cluster.members.iter().zip(&apart);
        let apart = groups(apart.filter_map(|(member, apart)| Some((member.name.as_str(), apart.as_ref()?))));
        let reasons = answers.iter().flat_map(|answer| {
            let name = answer.name.as_str();
            answer.reasons.iter().map(move |refusal| (name, refusal))
        });
        let node = pod_request.key.as_ref().and(pod_request.spec.node_name.clone());
        Self {
            pod: pod_request.name.clone(),
            qos: pod_request.pod.qos().name(),
            cpus: own_cpus(&pod_request.pod),
            phase: pod_request.status.phase.clone(),
            node: node.filter(|node| !node.is_empty()),
            status_reason: pod_request.status.reason.clone(),
            status_message: pod_request.status.message.clone(),
            asked: verdicts.len() as u64,
            room: room(Some(true)),
            unknown: room(None),
            together: (!localities.is_empty()).then_some(together),
            reasons: groups(reasons),
            apart,
            closest: closest::of(pod_request, cluster, &short),
            nodes: answers,
            assumed: assumed(pod_request, cluster, &verdicts),
            problems: cluster.problems.stored().to_vec(),
        }
    }
}

/// What the answer takes for granted.
pub(crate) fn assumed(pod_request: &PodRequest, cluster: &Cluster, verdicts: &[Verdict]) -> Vec<String> {
    let mut assumed = vec![ASSUMED.to_owned()];
    assumed.extend(pod_request.assumed.iter().cloned());
    if !cluster.has_nodes {
        assumed.push("no Nodes were read: labels, taints and what pods request are not considered".to_owned());
    }
    if cluster.pods.is_empty() && cluster.has_nodes {
        assumed.push("no pods were read: what they request is not considered".to_owned());
    }
    let amounts = verdicts.iter().filter(|verdict| verdict.basis == Basis::Amounts);
    let amounts = amounts.count();
    if amounts > 0 {
        let nodes = counted(amounts as u64, "node");
        let told = "published as amounts only (profile nrt): whether they are whole cores is not known";
        assumed.push(format!("the free CPUs of {nodes} are {told}"));
    }
    assumed.extend(unplaced(pod_request, cluster));
    let gates = pod_request.spec.scheduling_gates.as_ref();
    if gates.is_some_and(|gates| !gates.is_empty()) {
        assumed.push("the pod has scheduling gates: it is not scheduled before they are removed".to_owned());
    }
    assumed
}

/// Why the command fails: no node has room, and some cannot tell.
pub(crate) fn no_room(pod: &str, unknown: u64) -> String {
    match unknown {
        0 => format!("no node has room for {pod}"),
        unknown => format!("no node is known to have room for {pod}; {unknown} cannot tell"),
    }
}

/// That the devices' NUMA nodes are not known everywhere.
fn unplaced(pod_request: &PodRequest, cluster: &Cluster) -> Option<String> {
    let has = |member: &&Member, resource: &str| {
        let zones = member.report.as_ref().map(|report| &report.stored.zones);
        zones.is_some_and(|zones| zones.values().any(|resources| resources.contains_key(resource)))
    };
    let offers = |member: &&Member, resource: &str| {
        let node = member.node.as_ref();
        node.is_some_and(|node| node.allocatable.get(resource).is_some_and(|amount| amount.value() > 0))
    };
    let counts = pod_request.requests.devices.keys().map(|resource| {
        let offering = cluster.members.iter().filter(|member| offers(member, resource));
        let unplaced = offering.filter(|member| !has(member, resource)).count() as u64;
        (resource, unplaced)
    });
    let counts = counts.filter(|(resource, unplaced)| *unplaced > 0 && *resource != VM_RESOURCE);
    let words = counts.map(|(resource, unplaced)| {
        let nodes = counted(unplaced, "node");
        format!("the NUMA nodes of {resource} on {nodes} are not published: it is only counted there")
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// The columns of the table.
pub const COLUMNS: [Column<Answer>; 5] = [
    column("NODE", |node: &Answer| node.name.clone()).yields(1).shortens(),
    column("ROOM", |node: &Answer| room(node).0.to_owned()).means(|node| room(node).1),
    column("PROFILE", |node: &Answer| node.profile.unwrap_or_default().to_owned()),
    column("TOGETHER", |node: &Answer| node.locality.unwrap_or_default().to_owned()),
    column("WHY NOT", |node: &Answer| reasons::in_words(&node.reasons))
        .wraps()
        .or_nothing(),
];

fn room(node: &Answer) -> (&'static str, Meaning) {
    match node.room {
        Some(true) => ("yes", Meaning::Good),
        Some(false) => ("no", Meaning::Broken),
        None => ("?", Meaning::Attention),
    }
}

impl Render for WhyAnswer {
    fn text(&self, style: TextStyle) -> String {
        let pod = format!("{} ({}, {} exclusive CPUs)", self.pod, self.qos, self.cpus);
        let mut lines = vec![("Pod", pod)];
        if let Some(phase) = &self.phase {
            let node = self.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
            lines.push(("Phase", format!("{phase}{node}")));
        }
        let texts = [&self.status_reason, &self.status_message].into_iter().flatten();
        let texts: Vec<&str> = texts.map(String::as_str).filter(|text| !text.is_empty()).collect();
        if !texts.is_empty() {
            lines.push(("Message", texts.join(": ")));
        }
        lines.push(("Room", self.room_in_words()));
        if let Some(together) = self.together {
            let nodes = counted(self.room, "node");
            let words = format!("on {together} of these {nodes}, CPUs and devices would be on the same NUMA nodes");
            lines.push(("Together", words));
        }
        lines.extend(self.assumed.iter().map(|assumed| ("Assumed", assumed.clone())));
        let mut parts = vec![properties(lines, style)];
        if style.wide {
            parts.push(table(&COLUMNS, &self.nodes, style));
        } else {
            parts.push(table_of(&self.reasons, "NODES", style));
            parts.push(table_of(&self.apart, "NODES", style));
        }
        parts.push(self.closest.iter().map(|one| prose(&one.in_words(), style)).collect());
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn failure(&self) -> Option<String> {
        (self.room == 0).then(|| no_room(&self.pod, self.unknown))
    }
}

impl WhyAnswer {
    /// The names of the nodes with room.
    fn with_room(&self) -> Vec<String> {
        let with_room = self.nodes.iter().filter(|answer| answer.room == Some(true));
        with_room.map(|answer| answer.name.clone()).collect()
    }

    fn room_in_words(&self) -> String {
        let mut words = format!("on {} of {} nodes", self.room, self.asked);
        let names = self.with_room();
        if !names.is_empty() {
            let named = names.get(..MAX_NAMED_NODES).unwrap_or(&names);
            words += &format!(": {}", listed(named, self.room));
        }
        if self.unknown > 0 {
            words += &format!("; {} cannot tell", self.unknown);
        }
        words
    }
}
