//! `verify`: whether every promise holds now. A finding is a reason of degradation, a step that a pass would take, memory
//! of a VM that is not on the NUMA nodes of its CPUs, a fault of the node, or a VM with less than is required.

mod rows;
mod states;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::ReasonKind;
use stelia_node::locality::Localities;

use crate::explain_and_check::ledger::{self, Brief};
use crate::shared::daemon::{
    Client, Description, Failure, Pod, Pods, Selection, in_common, lines_by_pod, named_within, to_do, writes_partition,
};
use crate::shared::output::{self, Render, TextStyle, counted, paragraph, table};
use rows::FoldedFinding;
pub(crate) use rows::columns;
use states::CheckedVm;
pub(crate) use states::Required;

/// What a pass would repair.
const BY_A_PASS: &str = "steliactl reconcile, or wait for the next pass";
const PAGE: &str = "/usr/share/doc/steliad/troubleshooting.md";
/// The columns that names of VMs take in a message; the table has more.
const MAX_NAMES_WIDTH: usize = 60;

/// Where a finding is from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A step that a pass would take.
    Differs,
    MemoryAway,
    Node,
    BelowRequired,
    /// A reason of degradation, by its name on D-Bus.
    #[serde(untagged)]
    Degraded(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Its UID is `-` for what concerns the whole node.
    #[serde(flatten)]
    pub pod: Pod,
    /// How many VMs it concerns; 0 where it is of the node alone.
    pub vms: usize,
    pub kind: Kind,
    pub problem: String,
    pub cure: String,
    /// The section of `docs/troubleshooting.md` with more.
    pub section: Option<String>,
    /// The problem without what is of this VM alone, such as for how long it waits; `None` where all of it is the same of other VMs.
    #[serde(skip)]
    pub common: Option<String>,
    /// Since when it waits, microseconds since the epoch.
    #[serde(skip)]
    pub since_us: Option<u64>,
}

impl Finding {
    /// A step that a pass would take.
    fn step(uid: &str, step: &str) -> Self {
        Self {
            pod: Pod::unnamed(uid),
            vms: usize::from(uid != "-"),
            kind: Kind::Differs,
            problem: format!("differs: a pass would {step}"),
            cure: BY_A_PASS.to_owned(),
            section: None,
            common: Some(format!("differs: a pass would {}", in_common(step))).filter(|_| uid != "-"),
            since_us: None,
        }
    }

    /// A reason of degradation that is of the whole node.
    fn of_kind(kind: ReasonKind, problem: String) -> Self {
        Self {
            vms: 0,
            ..Self::degraded(Pod::unnamed("-"), kind.name(), problem)
        }
    }

    /// A reason of degradation.
    fn degraded(pod: Pod, kind: &str, problem: String) -> Self {
        let known = ReasonKind::parse(kind);
        let cure = known.map_or_else(|| PAGE.to_owned(), |kind| to_do(kind, &problem));
        Self {
            pod,
            vms: 1,
            kind: Kind::Degraded(kind.to_owned()),
            problem,
            cure,
            section: known.map(|kind| kind.cure().section.to_owned()),
            common: None,
            since_us: None,
        }
    }

    /// Memory on other NUMA nodes than the CPUs'.
    fn memory(uid: &str, problem: String, cure: String) -> Self {
        Self {
            pod: Pod::unnamed(uid),
            vms: 1,
            kind: Kind::MemoryAway,
            problem,
            cure,
            section: Some("a-vm-is-slow-although-it-is-isolated".to_owned()),
            common: None,
            since_us: None,
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Verified {
    instances: Vec<CheckedVm>,
    /// What every VM was required to be.
    required: Option<Required>,
    findings: Vec<Finding>,
    /// Accounts of the last 24 hours; `None` if no ledger is kept.
    ledger: Option<Vec<Brief>>,
    #[serde(skip)]
    now: u64,
}

/// The findings of all instances, or those of the selected ones and of what all share.
///
/// # Errors
/// A pattern fits no instance, or the daemon does not answer.
pub(crate) async fn gather(
    client: &Client,
    selection: &Selection,
    required: Option<Required>,
) -> Result<Verified, Failure> {
    let preview = client.reconcile(true).await?;
    let described = client.describe().await?;
    let selected = selection.among(&described)?;
    let selected = selected.as_ref();
    if let Some(namespace) = selection.empty_namespace(Pods::of(&described).iter()) {
        output::note(&format!("no VM in namespace {namespace}"));
    }
    let ledger = match described.node.ledger.enabled {
        true => Some(ledger::last_day(client, selected).await),
        false => None,
    };
    let verified = verified(&described, &preview, selected, required, output::now());
    Ok(Verified { ledger, ..verified })
}

fn verified(
    described: &Description,
    preview: &Map<String, Value>,
    selected: Option<&BTreeSet<String>>,
    required: Option<Required>,
    now: u64,
) -> Verified {
    let has = |uid: &str| selected.is_none_or(|selected| selected.contains(uid));
    let instances = described.node.instances.iter();
    let instances = instances.filter(|(uid, _)| has(uid.as_str()));
    let instances: Vec<CheckedVm> = instances.map(|(uid, one)| CheckedVm::at(uid, one)).collect();
    let mut findings = degraded(preview);
    // Those of the node that its VMs have as reasons are there already.
    let known: Vec<Kind> = findings.iter().map(|finding| finding.kind.clone()).collect();
    findings.extend(
        states::of_node(&described.node)
            .into_iter()
            .filter(|one| !known.contains(&one.kind)),
    );
    let steps = steps(preview, &mut findings);
    findings.extend(steps);
    findings.extend(remote_memory(&described.locality));
    let pods = Pods::of(described);
    findings.retain(|one| one.pod.pod_uid == "-" || has(&one.pod.pod_uid));
    for finding in &mut findings {
        finding.pod = pods.get(&finding.pod.pod_uid);
    }
    findings.sort_by_cached_key(|one| {
        let group = match one.kind {
            Kind::Differs => 1,
            Kind::MemoryAway => 2,
            _ => 0,
        };
        (group, one.pod.pod_uid != "-", one.pod.to_string())
    });
    let below = required.map(|required| instances.iter().filter_map(move |one| one.below(required, now)));
    findings.extend(below.into_iter().flatten());
    Verified {
        instances,
        required,
        findings,
        ledger: None,
        now,
    }
}

/// The steps that a pass would take. One that repairs a partition which is a finding already is the cure of that finding.
fn steps(preview: &Map<String, Value>, reasons: &mut [Finding]) -> Vec<Finding> {
    let differs = Kind::Degraded(ReasonKind::PartitionDiffers.name().to_owned());
    let mut others = Vec::new();
    for (uid, step) in lines_by_pod(preview, "plan") {
        let mut same = reasons
            .iter_mut()
            .filter(|one| one.kind == differs && one.pod.pod_uid == uid);
        match same.next().filter(|_| writes_partition(step)) {
            Some(finding) => {
                let if_it_returns = ReasonKind::PartitionDiffers.cure().text;
                finding.cure = format!("{BY_A_PASS}; if it is changed again: {if_it_returns}");
            }
            None => others.push(Finding::step(uid, step)),
        }
    }
    others
}

/// Findings about remote memory. A remote device is not a finding: kubelet chose it at admission, and a restart of the VM may not
/// change it.
fn remote_memory(localities: &Localities) -> Vec<Finding> {
    let all = localities.instances.iter();
    let found = all
        .filter_map(|(uid, locality)| Some(Finding::memory(uid, locality.memory_problem()?, locality.memory_cure())));
    found.collect()
}

/// The reasons of degradation. One that is of the whole node is a finding once, with the number of VMs that have it.
fn degraded(preview: &Map<String, Value>) -> Vec<Finding> {
    let of_vms: Vec<&str> = lines_by_pod(preview, "degraded")
        .filter(|(pod, _)| *pod != "-")
        .map(|(_, text)| text)
        .collect();
    let rows = preview.get("reasons").and_then(Value::as_array);
    let mut findings: Vec<Finding> = Vec::new();
    for (pod, kind, text) in rows.into_iter().flatten().filter_map(reason) {
        let vms = match pod {
            "-" => of_vms.iter().filter(|one| **one == text).count(),
            _ => 1,
        };
        let finding = Finding {
            vms,
            ..Finding::degraded(Pod::unnamed(pod), kind, text.to_owned())
        };
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}

/// A row of `reasons`: the pod, the kind, the text.
fn reason(row: &Value) -> Option<(&str, &str, &str)> {
    let field = |at: usize| row.get(at)?.as_str();
    Some((field(0)?, field(1)?, field(2)?))
}

impl Render for Verified {
    /// Those of which a promise does not hold.
    fn names(&self) -> Vec<String> {
        let pods = self.findings.iter().map(|finding| &finding.pod);
        let pods: BTreeSet<&Pod> = pods.filter(|pod| pod.pod_uid != "-").collect();
        pods.into_iter().map(Pod::to_string).collect()
    }

    fn text(&self, style: TextStyle) -> String {
        let summary = match states::summary(&self.instances, self.now) {
            none if none.is_empty() => "No instances.".to_owned(),
            summary => output::printable(&summary),
        };
        let summary = paragraph(&summary, style);
        let holds = "Every promise of these states holds: CPU lists, partitions, pinning, limits, and the NUMA nodes of the memory";
        let text = match (self.findings.is_empty(), self.instances.is_empty()) {
            (true, true) => summary,
            (true, false) => summary + &paragraph(holds, style),
            (false, _) => format!(
                "{summary}\n{}",
                table(&columns(), &FoldedFinding::all(&self.findings), style)
            ),
        };
        // A VM that has just started, or that ended before it was read twice, has no account.
        let ledger = self.ledger.iter().flatten().filter(|account| account.covered_us > 0);
        let mut lines: Vec<String> = ledger
            .map(|account| format!("{}: {}\n", output::printable(&account.pod.to_string()), account.line()))
            .collect();
        lines.sort();
        let lines = lines.concat();
        match lines.is_empty() {
            true => text,
            false => format!("{text}\nThe last 24 hours by the ledger:\n{lines}"),
        }
    }

    fn failure(&self) -> Option<String> {
        let is_below = |finding: &&Finding| finding.kind == Kind::BelowRequired;
        let below: Vec<&Pod> = self.findings.iter().filter(is_below).map(|one| &one.pod).collect();
        let broken = match self.findings.len() - below.len() {
            0 => None,
            1 => Some("1 promise does not hold".to_owned()),
            count => Some(format!("{} do not hold", counted(count as u64, "promise"))),
        };
        let (count, names) = (
            counted(below.len() as u64, "instance"),
            named_within(&below, MAX_NAMES_WIDTH),
        );
        let below = (!below.is_empty()).then(|| format!("{count} below what is required: {names}"));
        let parts: Vec<String> = broken.into_iter().chain(below).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}
