//! `plan`: how many more of a pod fit, by node and in all, and what stops the next one.

#[cfg(test)]
mod tests;

use serde::Serialize;
use stelia_table::{Column, Render, TextStyle, column, counted, properties, table};

use crate::cluster::{Cluster, Member, each};
use crate::eligible;
use crate::nodes::number;
use crate::objects::{Problem, own_cpus};
use crate::pod_request::PodRequest;
use crate::reasons::{Group, Refusal, groups, table_of};
use crate::verdict::{Basis, Verdict};
use crate::why::{assumed, no_room};

/// Limit of the pods of one node: more than any node runs (`maxPods` is 110 by default).
pub const MAX_PODS_PER_NODE: u64 = 256;

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub pod: String,
    /// Kubernetes' QoS class.
    pub qos: &'static str,
    /// CPUs of its own that each would have.
    pub cpus: u64,
    /// Whether nodes were filled; else each was asked for one.
    pub until_full: bool,
    /// How many fit on all nodes together, each filled by itself.
    pub fits: u64,
    /// There is a node that may have room for more.
    pub or_more: bool,
    /// How many of these have CPUs and devices on the same NUMA nodes; null for a pod without devices whose NUMA nodes are published.
    pub together: Option<u64>,
    /// Nodes of which it is not known.
    pub unknown: u64,
    pub nodes: Vec<Filled>,
    /// What stops the next one.
    pub stops: Vec<Group>,
    pub assumed: Vec<String>,
    pub problems: Vec<Problem>,
}

/// A node, filled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Filled {
    pub name: String,
    /// Null where it is not known.
    pub fits: Option<u64>,
    pub or_more: bool,
    /// Null where the devices' NUMA nodes are not published.
    pub together: Option<u64>,
    /// How exact that is; null without a description.
    pub profile: Option<&'static str>,
    /// What stops the next one; null where nothing was found that does.
    pub stop: Option<Refusal>,
}

impl Plan {
    pub fn of(pod_request: &PodRequest, cluster: &Cluster, until_full: bool) -> Self {
        let filled = each(&cluster.members, |member| fill(pod_request, member, until_full));
        let (verdicts, nodes): (Vec<Verdict>, Vec<Filled>) = filled.into_iter().unzip();
        let stops = nodes.iter();
        let stops = groups(stops.filter_map(|node| Some((node.name.as_str(), node.stop.as_ref()?))));
        Self {
            pod: pod_request.name.clone(),
            qos: pod_request.pod.qos().name(),
            cpus: own_cpus(&pod_request.pod),
            until_full,
            fits: nodes.iter().filter_map(|node| node.fits).fold(0, u64::saturating_add),
            or_more: nodes.iter().any(|node| node.or_more),
            together: nodes
                .iter()
                .filter_map(|node| node.together)
                .reduce(u64::saturating_add),
            unknown: nodes.iter().filter(|node| node.fits.is_none()).count() as u64,
            stops,
            assumed: assumed(pod_request, cluster, &verdicts),
            nodes,
            problems: cluster.problems.stored().to_vec(),
        }
    }
}

/// A node's answer to one pod, how many it has room for, and what stops the next one.
fn fill(pod_request: &PodRequest, member: &Member, until_full: bool) -> (Verdict, Filled) {
    let most = if until_full { MAX_PODS_PER_NODE } else { 1 };
    let chooser = member.chooser();
    let verdict = Verdict::of(pod_request, member, &chooser);
    let refused = verdict.fixed.first().or(verdict.requests.first());
    let (fits, together, stop) = match (refused, verdict.basis) {
        (Some(refusal), _) => {
            let none = chooser.until_full(pod_request, 0);
            (Some(0), none.together, Some(refusal.clone()))
        }
        (None, Basis::Nothing) => (None, None, verdict.placement.clone().err()),
        (None, _) => {
            let node = member.node.as_ref();
            let by_requests = node.map(|node| eligible::fit(&pod_request.requests, node, &member.used));
            let bound = by_requests.as_ref().map_or(most, |(count, _)| most.min(*count));
            let fits = chooser.until_full(pod_request, bound);
            let stop = fits.then.or_else(|| {
                let (count, resource) = by_requests.filter(|(count, _)| *count < most || *count == fits.count)?;
                (count == fits.count).then(|| eligible::too_little(&resource))
            });
            (Some(fits.count), fits.together, stop)
        }
    };
    // Where the question is for one, nobody asks what would stop a second.
    let stop = stop.filter(|_| until_full || fits.is_none_or(|fits| fits == 0));
    let filled = Filled {
        name: member.name.clone(),
        fits,
        or_more: until_full && fits.is_some() && stop.is_none(),
        together,
        profile: member.report.as_ref().map(|report| report.stored.profile.name()),
        stop,
    };
    (verdict, filled)
}

impl Filled {
    fn has_room(&self) -> bool {
        self.fits.is_some_and(|fits| fits > 0)
    }
}

/// The columns of the table.
pub const COLUMNS: [Column<Filled>; 6] = [
    column("NODE", |node: &Filled| node.name.clone()).yields(1).shortens(),
    column("FIT", |node: &Filled| match (node.fits, node.or_more) {
        (Some(fits), true) => format!("{fits}+"),
        (Some(fits), false) => fits.to_string(),
        (None, _) => "?".to_owned(),
    })
    .right(),
    column(TOGETHER, |node: &Filled| number(node.together)).right(),
    column("PROFILE", |node: &Filled| node.profile.unwrap_or_default().to_owned()).wide(),
    column("STOPPED BY", |node: &Filled| {
        node.stop.clone().map(|stop| stop.what).unwrap_or_default()
    })
    .wraps(),
    column("DETAIL", |node: &Filled| {
        node.stop.clone().map(|stop| stop.detail).unwrap_or_default()
    })
    .wide()
    .wraps(),
];

/// The column of pods with devices alone.
const TOGETHER: &str = "TOGETHER";

impl Render for Plan {
    fn text(&self, style: TextStyle) -> String {
        let or_more = if self.or_more { " or more" } else { "" };
        let count = if self.until_full {
            format!("{}{or_more}", self.fits)
        } else {
            "one".to_owned()
        };
        let all = counted(self.nodes.len() as u64, "node");
        let with_room = self.nodes.iter().filter(|node| node.has_room()).count();
        let mut fit = format!("{count} on {with_room} of {all}");
        if self.unknown > 0 {
            fit += &format!("; {} cannot tell", self.unknown);
        }
        let pod = format!("{} ({}, {} exclusive CPUs)", self.pod, self.qos, self.cpus);
        let mut lines = vec![("Pod", pod), ("Fit", fit)];
        if let Some(together) = self.together {
            let words = format!("{together} with CPUs and devices on the same NUMA nodes");
            lines.push(("Together", words));
        }
        lines.extend(self.assumed.iter().map(|assumed| ("Assumed", assumed.clone())));
        let mut parts = vec![properties(lines, style)];
        let is_shown = |node: &&Filled| style.wide || node.has_room();
        let shown: Vec<Filled> = self.nodes.iter().filter(is_shown).cloned().collect();
        if !shown.is_empty() {
            let is_shown = |column: &Column<Filled>| self.together.is_some() || column.heading() != TOGETHER;
            let columns: Vec<Column<Filled>> = COLUMNS.into_iter().filter(is_shown).collect();
            parts.push(table(&columns, &shown, style));
        }
        parts.push(table_of(&self.stops, "NODES", style));
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn failure(&self) -> Option<String> {
        (self.fits == 0).then(|| no_room(&self.pod, self.unknown))
    }
}
