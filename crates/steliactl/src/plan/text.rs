//! The answer as text.

use kubelet_planner::merge::Policy;
use kubelet_planner::{CpuManager, Cpus, MemoryManager, Settings};
use stelia_cpus::CpuSet;
use stelia_kernel::locality::size;
use stelia_koordinator::allocator::evaluate;
use stelia_node_plan::hints::free_words;
use stelia_node_plan::settings::options_on;

use super::answer::{Answer, Fits, Rejected, Row, UNKNOWN};
use crate::shared::output::{Column, TextStyle, column, properties, table};

const CONTAINERS: [Column<Row>; 6] = [
    column("CONTAINER", |row: &Row| row.given.container.clone())
        .yields(1)
        .shortens(),
    column("KIND", |row| row.kind.to_string()),
    column("CPUS", |row: &Row| match &row.given.cpus {
        Cpus::Shared => "shared".to_owned(),
        Cpus::PodShared(cpus) => format!("{cpus} (shared in the pod)"),
        Cpus::Exclusive(cpus) => cpus.to_string(),
    })
    .wraps(),
    column("NUMA", |row| row.numa_nodes.to_string()),
    column("MEMORY", |row: &Row| {
        let blocks = row.given.memory.iter().map(|block| {
            let nodes: CpuSet = block.nodes.iter().copied().collect();
            format!("{} {} on {nodes}", size(block.size), block.kind)
        });
        blocks.collect::<Vec<_>>().join(", ")
    })
    .wraps(),
    column("DEVICES", |row: &Row| {
        let devices = row.given.devices.iter();
        let devices = devices.map(|(resource, chosen)| format!("{} {resource}", chosen.ids.len()));
        devices.collect::<Vec<_>>().join(", ")
    })
    .wraps(),
];

/// Limit of the pods of `--until-full` that are listed one by one.
const MAX_LISTED_PODS: usize = 16;

type Line = (&'static str, String);

pub(super) fn answer(answer: &Answer, style: TextStyle) -> String {
    let node = answer.node.as_deref().unwrap_or("this node");
    let mut lines = vec![
        ("Pod", format!("{} ({})", answer.pod, answer.qos)),
        ("Node", format!("{node}, CPUs assigned by {}", answer.assigned_by)),
    ];
    lines.extend(match answer.why() {
        None => vec![("Admitted", "yes".to_owned())],
        Some(why) => rejected(why),
    });
    let named = |name, texts: &[String]| texts.iter().map(|text| (name, text.clone())).collect::<Vec<Line>>();
    lines.extend(named("Exclusive CPUs", &answer.not_exclusive));
    lines.extend(answer.placement.iter().flat_map(placement));
    lines.extend(named("Fault", &answer.faults));
    lines.extend(named("Warning", &answer.warnings));
    lines.extend(named("Why not better", &answer.why_not_better));
    lines.extend(answer.containers.iter().filter_map(|row| {
        let sentence = row.locality.as_ref()?.sentence();
        Some(("Locality", format!("{} is {sentence}", row.given.container)))
    }));
    let free = answer.free.iter();
    lines.extend(free.map(|(resource, free)| ("Free", free_words(resource, free))));
    lines.extend(answer.until_full.iter().flat_map(until_full));
    let settings = answer.settings.iter();
    lines.extend(settings.map(|settings| ("Kubelet", kubelet(settings, &answer.reserved_cpus))));
    lines.extend(named("Assumed", &answer.assumed));
    let mut parts = vec![properties(lines, style)];
    if !answer.containers.is_empty() {
        parts.push(format!("\n{}", table(&CONTAINERS, &answer.containers, style)));
    }
    parts.concat()
}

/// Kubelet's reason and message.
fn refusal(rejected: &Rejected) -> String {
    format!("{}: {}", rejected.reason, rejected.message)
}

fn rejected(rejected: &Rejected) -> Vec<Line> {
    let admitted = match rejected.reason.as_str() {
        UNKNOWN => UNKNOWN.to_owned(),
        reason => format!("no: {reason}"),
    };
    let parts = [
        ("Admitted", Some(&admitted)),
        ("Message", Some(&rejected.message)),
        ("Container", rejected.container.as_ref()),
        ("Resource", rejected.resource.as_ref()),
        ("Because", rejected.because.as_ref()),
        ("Fix", rejected.fix.as_ref()),
    ];
    let known = parts.into_iter().filter_map(|(name, text)| Some((name, text?.clone())));
    known.collect()
}

/// What steliad would assign.
fn placement(fit: &evaluate::Fit) -> [Line; 2] {
    let (score, class) = (&fit.score, fit.qos);
    let own = if class.is_exclusive() { "exclusive" } else { "shared" };
    let cpus = format!("{} on NUMA {}, {own} (class {class})", fit.runs_on, fit.numa_nodes);
    let parts = format!("{} for NUMA nodes, {} for CPUs", score.numa, score.cpus);
    [("CPUs", cpus), ("Score", format!("{} ({parts})", score.sum))]
}

fn until_full(fits: &Fits) -> Vec<Line> {
    let mut lines = vec![("Fits", count(fits))];
    if fits.cpus.iter().any(|cpus| !cpus.is_empty()) {
        let mut cpus: Vec<String> = fits.cpus.iter().take(MAX_LISTED_PODS).map(CpuSet::to_string).collect();
        cpus.extend((fits.cpus.len() > MAX_LISTED_PODS).then(|| "…".to_owned()));
        lines.push(("Their CPUs", cpus.join(" | ")));
    }
    let then = fits.then.iter();
    lines.extend(then.map(|then| ("Next pod", refusal(then))));
    lines
}

fn count(fits: &Fits) -> String {
    format!("{}{}", fits.count, if fits.then.is_none() { " or more" } else { "" })
}

fn kubelet(settings: &Settings, reserved: &CpuSet) -> String {
    let cpus = match settings.cpu_manager {
        CpuManager::None => "none".to_owned(),
        CpuManager::Static { .. } => format!("static, CPUs {reserved} reserved"),
    };
    let cpus = [vec![cpus.as_str()], options_on(&settings.cpu_manager)].concat();
    let has_memory = settings.memory_manager != MemoryManager::None;
    let memory = if has_memory { "Static" } else { "None" };
    format!(
        "CPU manager {}; memory manager {memory}; Topology Manager {}",
        cpus.join(", "),
        topology(settings)
    )
}

/// The Topology Manager's policy, with its scope where it merges hints.
fn topology(settings: &Settings) -> String {
    match settings.topology_policy {
        Policy::None => Policy::None.to_string(),
        policy => format!("{policy}, scope {}", settings.topology_scope),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::output::manual::explained;
    use crate::tests::fixtures::headings;

    #[test]
    fn every_column_is_explained() {
        assert_eq!(explained("COLUMNS", Some("plan")), headings(&CONTAINERS));
    }
}
