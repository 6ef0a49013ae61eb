//! The answer as text.

use kubelet_planner::merge::Policy;
use stelia_cpus::{CpuSet, NodeSet};
use stelia_kernel::locality::size;

use super::answer::{Answer, Block, Chosen, Devices, Fits, Kubelet, Rejected, Row, WhatIf};
use super::merges::{Hinted, Merged};
use crate::shared::output::{self, Column, TextStyle, column, properties};

/// The pod's `status.reason` where the Topology Manager rejects it.
const TOPOLOGY_AFFINITY_ERROR: &str = "TopologyAffinityError";

/// Has the version of `kubelet_planner::features::KUBELET`; a test compares them.
const GATE: &str = "FEATURE GATE IN 1.36";

const CONTAINERS: [Column<Row>; 7] = [
    column("CONTAINER", |row| row.container.clone()),
    column("KIND", |row| row.kind.to_owned()),
    column("CPUS", |row| match row.pool {
        "node" => "shared".to_owned(),
        "pod" => format!("{} (shared in the pod)", row.cpus),
        _ => row.cpus.to_string(),
    }),
    column("NUMA", |row| row.numa_nodes.to_string()),
    column("AFFINITY", |row| match &row.affinity {
        Some(nodes) if row.preferred => nodes.to_string(),
        Some(nodes) => format!("{nodes} (not preferred)"),
        None => String::new(),
    }),
    column("MEMORY", |row| {
        let block = |block: &Block| format!("{} {} on {}", size(block.size_bytes), block.r#type, block.nodes);
        row.memory.iter().map(block).collect::<Vec<_>>().join("; ")
    }),
    column("DEVICES", |row| {
        row.devices.iter().map(Devices::words).collect::<Vec<_>>().join("; ")
    }),
];

/// The hints for a resource, of a merge for a container or the pod.
struct Hint {
    whose: String,
    hinted: Hinted,
}

const HINTS: [Column<Hint>; 5] = [
    column("MERGED FOR", |hint: &Hint| hint.whose.clone()),
    column("RESOURCE", |hint: &Hint| hint.hinted.resource.clone()),
    column("PREFERS", |hint: &Hint| hint.hinted.words[0].clone()),
    column("ALSO ENOUGH", |hint: &Hint| hint.hinted.words[1].clone()),
    column("FREE BY NUMA NODE", |hint: &Hint| hint.hinted.words[2].clone()),
];

/// The last [`DEVICE_COLUMNS`] are shown for pods with devices.
const WHAT_IF: [Column<WhatIf>; 11] = [
    column("NOW", |other| if other.now { "yes" } else { "" }.to_owned()),
    column("TOPOLOGY", |other| other.kubelet.topology_manager_policy.to_owned()),
    column("SCOPE", |other| {
        if other.kubelet.aligns() {
            other.kubelet.topology_manager_scope.to_owned()
        } else {
            String::new()
        }
    }),
    column("CPU OPTIONS", |other| {
        other.kubelet.cpu_manager_policy_options.join(",")
    }),
    column("ADMITTED", |other| match (&other.reason, other.admitted) {
        (_, true) => "yes".to_owned(),
        (Some(reason), false) => reason.clone(),
        // The whole sentence is in the JSON.
        (None, false) => "no start".to_owned(),
    }),
    column("CPUS", |other| other.cpus.to_string()),
    column("NUMA", |other| other.numa_nodes.to_string()),
    column("FITS", |other| {
        format!("{}{}", other.fits, if other.or_more { "+" } else { "" })
    }),
    column("GATE TO TURN ON", |other| other.missing_gates.join(",")),
    column("DEVICE NUMA", |other| other.device_nodes.to_string()),
    column("TOGETHER", |other| other.locality.unwrap_or_default().to_owned()),
];
const DEVICE_COLUMNS: usize = 2;

const FEATURES: [Column<Chosen>; 3] = [
    column("SETTING", |feature| feature.name.to_owned()),
    column("STAGES", |feature| feature.stages.clone()),
    column(GATE, |feature| match (feature.feature_gate, feature.on) {
        (Some(gate), Some(false)) => format!("{gate}, which is off"),
        (Some(gate), _) => format!("{gate}, which is on"),
        (None, _) => String::new(),
    }),
];

/// Limit of the pods of `--until-full` that are listed one by one.
const MAX_LISTED_PODS: usize = 16;

pub(super) fn answer(answer: &Answer, style: TextStyle) -> String {
    let mut lines = vec![
        ("Pod", format!("{} ({})", answer.pod, answer.qos)),
        ("Node", answer.node.clone().unwrap_or_else(|| "this one".to_owned())),
        ("Kubelet", kubelet(&answer.kubelet)),
    ];
    match &answer.rejection {
        None => lines.push(("Admitted", "yes".to_owned())),
        Some(rejected) => {
            let admitted = if rejected.unknown {
                "unknown".to_owned()
            } else {
                format!("no: {}", reason(rejected))
            };
            lines.push(("Admitted", admitted));
            lines.push(("Message", rejected.message.clone()));
            let whose = [&rejected.container, &rejected.resource];
            let whose: Vec<&str> = whose.into_iter().flatten().map(String::as_str).collect();
            if !whose.is_empty() {
                lines.push(("For", whose.join(", ")));
            }
            lines.extend(rejected.because.clone().map(|because| ("Because", because)));
        }
    }
    lines.extend(answer.assumed.iter().map(|note| ("Assumed", note.clone())));
    lines.extend(answer.warnings.iter().map(|warning| ("Warning", warning.clone())));
    lines.extend(answer.faults.iter().map(|fault| ("Fault", fault.clone())));
    lines.extend(answer.why_not_better.iter().map(|why| ("Why not better", why.clone())));
    let has_devices = answer.containers.iter().any(|row| !row.devices.is_empty());
    let explains = style.wide || has_devices || answer.merges.iter().any(Merged::has_devices);
    if explains {
        lines.extend(merged(answer));
    }
    lines.extend(answer.containers.iter().filter_map(|row| {
        let words = row.locality_words.as_ref()?;
        Some(("Together", format!("{}: {words}", row.container)))
    }));
    if let Some(fits) = &answer.until_full {
        lines.extend(until_full(fits));
    }
    let mut parts = vec![properties(lines, style)];
    if !answer.containers.is_empty() {
        parts.push(output::table(&CONTAINERS, &answer.containers, style));
    }
    let hints = answer.merges.iter().flat_map(|merge| {
        let hint = |hinted: &Hinted| Hint {
            whose: merge.whose(),
            hinted: hinted.clone(),
        };
        merge.hints.iter().map(hint)
    });
    let hints: Vec<Hint> = hints.filter(|_| explains).collect();
    if !hints.is_empty() {
        parts.push(output::table(&HINTS, &hints, style));
    }
    if !answer.what_if.is_empty() {
        let shown = if answer.what_if.iter().any(|other| other.locality.is_some()) {
            &WHAT_IF[..]
        } else {
            &WHAT_IF[..WHAT_IF.len() - DEVICE_COLUMNS]
        };
        parts.push(output::table(shown, &answer.what_if, style));
        parts.push(output::table(&FEATURES, &answer.features, style));
    }
    parts.join("\n")
}

/// What each merge chose.
fn merged(answer: &Answer) -> Vec<(&'static str, String)> {
    if answer.merges.is_empty() {
        let alone = if answer.kubelet.aligns() {
            "no hints, because no resource of the pod has any"
        } else {
            "no hints: with the policy none, each manager chooses on its own"
        };
        return vec![("Merged", alone.to_owned())];
    }
    let is_rejected = |at: usize| match &answer.rejection {
        // The last merge is the one that the policy did not take.
        Some(rejected) => rejected.reason == Some(TOPOLOGY_AFFINITY_ERROR) && at + 1 == answer.merges.len(),
        None => false,
    };
    let policy = answer.kubelet.topology_manager_policy;
    let line = |(at, merge): (usize, &Merged)| {
        let words = if is_rejected(at) {
            merge.rejected_words(policy)
        } else {
            merge.words()
        };
        ("Merged", format!("{}: {words}", merge.whose()))
    };
    answer.merges.iter().enumerate().map(line).collect()
}

impl Devices {
    /// `nvidia.com/gpu (GPU-1,GPU-2) on NUMA node 0`, or `2 nvidia.com/gpu on NUMA node 0` where only the number is known.
    fn words(&self) -> String {
        let others = if self.certain { "" } else { " or others" };
        let what = if self.ids.is_empty() {
            format!("{} {}", self.count, self.resource)
        } else {
            format!("{} ({}{others})", self.resource, self.ids.join(","))
        };
        let noun = numa_noun(&self.numa_nodes);
        match self.numa_nodes.len() {
            0 => what,
            1 => format!("{what} on {noun}"),
            _ if self.same_nodes => format!("{what} on {noun}"),
            _ => format!("{what} on some of {noun}"),
        }
    }
}

/// `NUMA node 0`, `NUMA nodes 0-1`
fn numa_noun(nodes: &NodeSet) -> String {
    match nodes.len() {
        1 => format!("NUMA node {nodes}"),
        _ => format!("NUMA nodes {nodes}"),
    }
}

impl Merged {
    /// `NUMA node 0, preferred by every resource`
    fn words(&self) -> String {
        let nodes = match &self.numa_nodes {
            None => "any NUMA nodes".to_owned(),
            Some(nodes) => numa_noun(nodes),
        };
        let who = match (self.preferred, self.unplaced.is_empty()) {
            (true, true) => "preferred by every resource",
            (true, false) => "preferred by every other resource",
            (false, _) => "not preferred by every resource",
        };
        match self.unplaced.as_slice() {
            [] => format!("{nodes}, {who}"),
            unplaced => format!("{nodes}, {who}; the preference of {} is unknown", unplaced.join(", ")),
        }
    }

    /// Why a policy that admits only preferred hints rejects the pod.
    fn rejected_words(&self, policy: &str) -> String {
        let why = match &self.numa_nodes {
            _ if policy == Policy::SingleNumaNode.name() => {
                "no single NUMA node is preferred by every resource".to_owned()
            }
            Some(nodes) => format!("the best hint is {}, not preferred by every resource", numa_noun(nodes)),
            None => "no NUMA nodes have enough of every resource".to_owned(),
        };
        format!("{why}; kubelet rejects the pod ({TOPOLOGY_AFFINITY_ERROR})")
    }

    fn whose(&self) -> String {
        self.container.clone().unwrap_or_else(|| "the pod".to_owned())
    }

    fn has_devices(&self) -> bool {
        self.hints.iter().any(|hinted| hinted.resource.contains('/'))
    }
}

fn kubelet(told: &Kubelet) -> String {
    let mut cpus = format!("CPU manager {}", told.cpu_manager_policy);
    if !told.cpu_manager_policy_options.is_empty() {
        cpus += &format!(" ({})", told.cpu_manager_policy_options.join(", "));
    }
    if !told.reserved_cpus.is_empty() {
        cpus += &format!(", CPUs {} reserved", told.reserved_cpus);
    }
    let scope = if told.aligns() {
        format!(", scope {}", told.topology_manager_scope)
    } else {
        String::new()
    };
    format!(
        "{cpus}; memory manager {}; Topology Manager {}{scope}",
        told.memory_manager_policy, told.topology_manager_policy
    )
}

fn reason(rejected: &Rejected) -> &'static str {
    if rejected.unknown {
        "not predicted"
    } else {
        rejected
            .reason
            .unwrap_or("kubelet never answers, the pod stays pending")
    }
}

fn until_full(fits: &Fits) -> Vec<(&'static str, String)> {
    let more = if fits.or_more { " or more" } else { "" };
    let mut lines = vec![("Fit", format!("{}{more}", fits.count))];
    if fits.cpus.iter().any(|cpus| !cpus.is_empty()) {
        let mut cpus: Vec<String> = fits.cpus.iter().take(MAX_LISTED_PODS).map(CpuSet::to_string).collect();
        if fits.cpus.len() > MAX_LISTED_PODS {
            cpus.push("…".to_owned());
        }
        lines.push(("One by one", cpus.join(" | ")));
    }
    if let Some(then) = &fits.then {
        lines.push(("The next", format!("{}: {}", reason(then), then.message)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::output::manual::explained;
    use crate::tests::fixtures::headings;

    #[test]
    fn every_column_is_explained() {
        let columns = |part| explained("COLUMNS", Some(part));
        assert_eq!(columns("plan"), headings(&CONTAINERS));
        assert_eq!(columns("plan: hints"), headings(&HINTS));
        assert_eq!(columns("plan: other settings"), headings(&WHAT_IF));
    }

    #[test]
    fn the_gates_are_those_of_the_kubelet_that_is_predicted() {
        assert_eq!(
            GATE,
            format!("FEATURE GATE IN 1.{}", kubelet_planner::features::KUBELET)
        );
    }
}
