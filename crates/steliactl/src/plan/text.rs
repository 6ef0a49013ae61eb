//! The answer as text.

use stelia_cpus::CpuSet;
use stelia_kernel::locality::size;
use stelia_node_plan::hints::{ResourceHints, free_words};

use super::answer::{Answer, Block, Devices, Fits, Kubelet, Placement, Row, WhatIf};
use crate::shared::output::{Column, TextStyle, column, properties, table};

/// The containers' columns, where this one assigns the CPUs.
fn containers(by_kubelet: bool) -> Vec<Column<Row>> {
    let common = [
        column("CONTAINER", |row: &Row| row.container.clone())
            .yields(1)
            .shortens(),
        column("KIND", |row| row.kind.to_owned()),
        column("CPUS", |row| match row.pool {
            "node" => "shared".to_owned(),
            "pod" => format!("{} (shared in the pod)", row.cpus),
            _ => row.cpus.to_string(),
        }),
        column("NUMA", |row| row.numa_nodes.to_string()),
    ];
    let own = if by_kubelet {
        [
            column("AFFINITY", |row: &Row| match &row.affinity {
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
        ]
    } else {
        [
            column("CLASS", |row| of_steliad(row, |placed| placed.class.to_owned())),
            column("RUNS ON", |row| of_steliad(row, |placed| placed.runs_on.to_string())),
            column("SCORE", |row| of_steliad(row, |placed| placed.score.to_string())),
        ]
    };
    common.into_iter().chain(own).collect()
}

fn of_steliad(row: &Row, text: fn(&Placement) -> String) -> String {
    row.placement.as_ref().map(text).unwrap_or_default()
}

/// The hints for a resource, of a merge for a container or the pod.
type Hint<'a> = (&'a str, &'a ResourceHints);

/// The last one is shown for pods with devices.
const WHAT_IF: [Column<WhatIf>; 10] = [
    column("NOW", |other| if other.now { "yes" } else { "" }.to_owned()),
    column("TOPOLOGY", |other| other.kubelet.topology_manager_policy.to_owned()),
    column("SCOPE", |other| {
        let scope = other.kubelet.topology_manager_scope;
        if other.kubelet.aligns() { scope } else { "" }.to_owned()
    }),
    column("CPU OPTIONS", |other| {
        other.kubelet.cpu_manager_policy_options.join(",")
    }),
    column("ADMITTED", |other| match &other.reason {
        _ if other.admitted => "yes".to_owned(),
        // The whole sentence is in the JSON.
        reason => reason.clone().unwrap_or_else(|| "no start".to_owned()),
    }),
    column("CPUS", |other| other.cpus.to_string()),
    column("NUMA", |other| other.numa_nodes.to_string()),
    column("FITS", |other| {
        format!("{}{}", other.fits, if other.or_more { "+" } else { "" })
    }),
    column("GATE TO TURN ON", |other| other.missing_gates.join(",")),
    column("TOGETHER", |other| other.locality.unwrap_or_default().to_owned()),
];

/// Limit of the pods of `--until-full` that are listed one by one.
const MAX_LISTED_PODS: usize = 16;

pub(super) fn answer(answer: &Answer, style: TextStyle) -> String {
    let node = answer.node.as_deref().unwrap_or("this one");
    let mut lines = vec![
        ("Pod", format!("{} ({})", answer.pod, answer.qos)),
        ("Node", format!("{node}, CPUs assigned by {}", answer.assigned_by)),
    ];
    match &answer.rejection {
        None => lines.push(("Admitted", "yes".to_owned())),
        Some(rejected) => {
            let admitted = if rejected.unknown {
                "unknown".to_owned()
            } else {
                format!("no: {}", rejected.short())
            };
            lines.extend([("Admitted", admitted), ("Message", rejected.message.clone())]);
            let whose = [&rejected.container, &rejected.resource];
            let whose: Vec<&str> = whose.into_iter().flatten().map(String::as_str).collect();
            lines.extend((!whose.is_empty()).then(|| ("For", whose.join(", "))));
            lines.extend(rejected.because.clone().map(|because| ("Because", because)));
        }
    }
    for (name, texts) in [
        ("Fault", &answer.faults),
        ("Warning", &answer.warnings),
        ("Why not better", &answer.why_not_better),
    ] {
        lines.extend(texts.iter().map(|text| (name, text.clone())));
    }
    let together = answer.containers.iter().filter_map(|row| {
        let words = row.locality_words.as_ref()?;
        Some(("Together", format!("{}: {words}", row.container)))
    });
    lines.extend(together);
    lines.extend(answer.until_full.iter().flat_map(until_full));
    lines.extend(answer.kubelet.as_ref().map(|settings| ("Kubelet", kubelet(settings))));
    lines.extend(answer.assumed.iter().map(|note| ("Assumed", note.clone())));
    let mut parts = vec![properties(lines, style)];
    if !answer.containers.is_empty() {
        parts.push(table(&containers(answer.kubelet.is_some()), &answer.containers, style));
    }
    let hints = answer.merges.iter().flat_map(|merge| {
        let whose = merge.container.as_deref().unwrap_or("the pod");
        merge.resources.iter().map(move |hints| (whose, hints))
    });
    let hints: Vec<Hint<'_>> = hints.collect();
    let have_devices = hints.iter().any(|(_, hints)| hints.resource.contains('/'));
    if have_devices || style.wide && !hints.is_empty() {
        let columns = [
            column("MERGED FOR", |(whose, _): &Hint<'_>| (*whose).to_owned()),
            column("RESOURCE", |(_, hints)| hints.resource.clone()),
            column("PREFERS", |(_, hints)| hints.preferred.words()),
            column("ALSO ENOUGH", |(_, hints)| hints.others.words()),
            column("FREE BY NUMA NODE", |(_, hints)| {
                free_words(&hints.resource, &hints.free)
            }),
        ];
        parts.push(table(&columns, &hints, style));
    }
    if !answer.what_if.is_empty() {
        let places_devices = answer.what_if.iter().any(|other| other.locality.is_some());
        let shown = &WHAT_IF[..WHAT_IF.len() - usize::from(!places_devices)];
        parts.push(table(shown, &answer.what_if, style));
    }
    parts.join("\n")
}

impl Devices {
    /// `nvidia.com/gpu (GPU-1,GPU-2) on NUMA 0`, or `2 nvidia.com/gpu on NUMA 0` where only the number is known.
    fn words(&self) -> String {
        let others = if self.certain { "" } else { " or others" };
        let what = if self.ids.is_empty() {
            format!("{} {}", self.count, self.resource)
        } else {
            format!("{} ({}{others})", self.resource, self.ids.join(","))
        };
        let some = if self.same_nodes { "" } else { "some of " };
        match &self.numa_nodes {
            nodes if nodes.is_empty() => what,
            nodes => format!("{what} on {some}NUMA {nodes}"),
        }
    }
}

fn kubelet(settings: &Kubelet) -> String {
    let mut words = format!("CPU manager {}", settings.cpu_manager_policy);
    if !settings.cpu_manager_policy_options.is_empty() {
        words += &format!(" ({})", settings.cpu_manager_policy_options.join(", "));
    }
    if !settings.reserved_cpus.is_empty() {
        words += &format!(", CPUs {} reserved", settings.reserved_cpus);
    }
    words += &format!(
        "; memory manager {}; Topology Manager {}",
        settings.memory_manager_policy, settings.topology_manager_policy
    );
    if settings.aligns() {
        words += &format!(", scope {}", settings.topology_manager_scope);
    }
    words
}

fn until_full(fits: &Fits) -> Vec<(&'static str, String)> {
    let more = if fits.or_more { " or more" } else { "" };
    let mut lines = vec![("Fit", format!("{}{more}", fits.count))];
    if fits.cpus.iter().any(|cpus| !cpus.is_empty()) {
        let mut cpus: Vec<String> = fits.cpus.iter().take(MAX_LISTED_PODS).map(CpuSet::to_string).collect();
        cpus.extend((fits.cpus.len() > MAX_LISTED_PODS).then(|| "…".to_owned()));
        lines.push(("One by one", cpus.join(" | ")));
    }
    let then = fits.then.iter();
    lines.extend(then.map(|then| ("The next", format!("{}: {}", then.short(), then.message))));
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
        let shown = [headings(&containers(true)), headings(&containers(false)[4..])].concat();
        assert_eq!(columns("plan"), shown);
        assert_eq!(columns("plan: other settings"), headings(&WHAT_IF));
    }
}
