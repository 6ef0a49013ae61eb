//! For readers.

use kubelet_planner::features;
use stelia_cpus::CpuSet;

use super::answer::{Answer, Chosen, Fits, Kubelet, Other, Rejected, Row};
use crate::view::{or_dash, printable, table};

/// The pods of `--until-full` that are listed one by one.
const LISTED: usize = 16;

pub(super) fn answer(answer: &Answer, legend: bool) -> String {
    let mut lines = vec![
        ("Pod", format!("{} ({})", answer.pod, answer.qos)),
        ("Node", answer.node.clone().unwrap_or_else(|| "this one".to_owned())),
        ("Kubelet", kubelet(&answer.kubelet)),
    ];
    match &answer.rejection {
        None => lines.push(("Admitted", "yes".to_owned())),
        Some(rejected) => {
            lines.push(("Admitted", format!("no: {}", reason(rejected))));
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
    lines.extend(answer.faults.iter().map(|fault| ("Fault", fault.clone())));
    lines.extend(answer.why_not_better.iter().map(|why| ("Not better", why.clone())));
    if let Some(fits) = &answer.until_full {
        lines.extend(until_full(fits));
    }
    let rows = lines
        .into_iter()
        .map(|(name, value)| vec![format!("{name}:"), or_dash(&value)]);
    let mut parts = vec![table(&[], rows.collect(), false, None)];
    if !answer.containers.is_empty() {
        let header = ["CONTAINER", "KIND", "CPUS", "NUMA", "AFFINITY", "MEMORY", "DEVICES"];
        parts.push(table(
            &header,
            answer.containers.iter().map(row).collect(),
            legend,
            None,
        ));
    }
    if !answer.what_if.is_empty() {
        let header = [
            "NOW",
            "TOPOLOGY",
            "SCOPE",
            "CPU OPTIONS",
            "ADMITTED",
            "CPUS",
            "NUMA",
            "FITS",
            "GATE TO TURN ON",
        ];
        parts.push(table(&header, answer.what_if.iter().map(other).collect(), legend, None));
        let gate = format!("FEATURE GATE IN 1.{}", features::KUBELET);
        let header = ["SETTING", "STAGES", &gate];
        parts.push(table(
            &header,
            answer.features.iter().map(chosen).collect(),
            legend,
            None,
        ));
    }
    parts.join("\n")
}

fn kubelet(told: &Kubelet) -> String {
    let mut cpus = format!("CPU manager {}", told.cpu_policy);
    if !told.cpu_options.is_empty() {
        cpus += &format!(" ({})", told.cpu_options.join(", "));
    }
    if !told.reserved.is_empty() {
        cpus += &format!(", CPUs {} reserved", told.reserved);
    }
    let scope = match told.aligns() {
        true => format!(", scope {}", told.topology_scope),
        false => String::new(),
    };
    format!(
        "{cpus}; memory manager {}; Topology Manager {}{scope}",
        told.memory_policy, told.topology_policy
    )
}

fn reason(rejected: &Rejected) -> &'static str {
    rejected
        .reason
        .unwrap_or("kubelet never answers, the pod stays pending")
}

fn until_full(fits: &Fits) -> Vec<(&'static str, String)> {
    let more = if fits.or_more { " or more" } else { "" };
    let mut lines = vec![("Fit", format!("{}{more}", fits.count))];
    if fits.cpus.iter().any(|cpus| !cpus.is_empty()) {
        let mut cpus: Vec<String> = fits.cpus.iter().take(LISTED).map(CpuSet::to_string).collect();
        if fits.cpus.len() > LISTED {
            cpus.push("…".to_owned());
        }
        lines.push(("One by one", cpus.join(" | ")));
    }
    if let Some(then) = &fits.then {
        lines.push(("The next", format!("{}: {}", reason(then), then.message)));
    }
    lines
}

fn row(row: &Row) -> Vec<String> {
    let cpus = match row.pool {
        "node" => "shared".to_owned(),
        "pod" => format!("{} (shared in the pod)", row.cpus),
        _ => row.cpus.to_string(),
    };
    let affinity = row.affinity.as_ref().map(|nodes| match row.preferred {
        true => nodes.to_string(),
        false => format!("{nodes} (not preferred)"),
    });
    let memory = row
        .memory
        .iter()
        .map(|block| format!("{} {} on {}", block.size, block.r#type, block.nodes));
    let devices = row.devices.iter().map(|one| {
        format!(
            "{}: {}{}",
            one.resource,
            one.ids.join(","),
            if one.certain { "" } else { " or others" }
        )
    });
    vec![
        printable(&row.container),
        row.kind.to_owned(),
        cpus,
        or_dash(&row.nodes.to_string()),
        or_dash(&affinity.unwrap_or_default()),
        or_dash(&memory.collect::<Vec<_>>().join("; ")),
        or_dash(&devices.collect::<Vec<_>>().join("; ")),
    ]
}

fn other(other: &Other) -> Vec<String> {
    let scope = match other.kubelet.aligns() {
        true => other.kubelet.topology_scope,
        false => "-",
    };
    let admitted = match (&other.reason, other.admitted) {
        (_, true) => "yes".to_owned(),
        (Some(reason), false) => or_dash(reason),
        // The JSON has the whole sentence.
        (None, false) => "no start".to_owned(),
    };
    let more = if other.or_more { "+" } else { "" };
    vec![
        if other.now { "yes" } else { "-" }.to_owned(),
        other.kubelet.topology_policy.to_owned(),
        scope.to_owned(),
        or_dash(&other.kubelet.cpu_options.join(",")),
        admitted,
        or_dash(&other.cpus.to_string()),
        or_dash(&other.nodes.to_string()),
        format!("{}{more}", other.fits),
        or_dash(&other.missing_gates.join(",")),
    ]
}

fn chosen(feature: &Chosen) -> Vec<String> {
    let gate = feature.feature_gate.map(|gate| match feature.on {
        Some(false) => format!("{gate}, which is off"),
        _ => format!("{gate}, which is on"),
    });
    vec![
        feature.name.to_owned(),
        feature.stages.clone(),
        or_dash(&gate.unwrap_or_default()),
    ]
}
