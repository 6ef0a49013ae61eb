//! `verify`: whether every promise holds now. A finding is a reason of degradation, a step that a pass would take, memory
//! of a VM that is not on the NUMA nodes of its CPUs, a fault of the node, a VM that has waited too long for its vCPUs or has less than
//! is required, or an account of the ledger above what is promised.

mod blocks;
mod findings;
mod states;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::ReasonKind;

use crate::check::ledger::{self, Brief};
use crate::shared::daemon::{Client, Description, Failure, Pod, Pods, Selection, in_common, named_within, to_do};
use crate::shared::output::{self, Render, TextStyle, counted, paragraph};
use blocks::FoldedFinding;
use states::CheckedVm;
pub(crate) use states::Required;

/// What repairs a difference that the daemon knows of.
const BY_A_PASS: &str = "steliactl reconcile, or wait for the next pass";
/// The same for one of which `list` and `status` show nothing.
const NOT_REPORTED: &str = "steliad has not seen this yet: steliactl reconcile";
const PAGE: &str = "/usr/share/doc/steliad/troubleshooting.md";
/// The columns that names of VMs take in a message; the findings have more.
const MAX_NAMES_WIDTH: usize = 60;
/// How often a finding that may pass by itself is read before it counts. Daemon and guest change what is read meanwhile: the thread of a
/// vCPU that was unplugged ends before the runner attaches the others.
const READINGS: usize = 3;
/// Between two readings. Callers that are not root get a former answer of the daemon for up to a second.
const PAUSE: Duration = Duration::from_millis(1_100);

/// Where a finding is from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Node,
    /// A step that a pass would take.
    Differs,
    MemoryAway,
    Waiting,
    BelowRequired,
    Ledger,
    /// A reason of degradation, by its name on D-Bus.
    #[serde(untagged)]
    Degraded(String),
}

impl Kind {
    /// Whether the problem may go away by itself, so that it is read again.
    fn may_be_transient(&self) -> bool {
        matches!(self, Self::Degraded(_) | Self::Differs | Self::MemoryAway)
    }
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
    /// Whether the daemon knows of it: otherwise no other command shows it.
    pub seen: bool,
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
    fn new(pod: Pod, kind: Kind, problem: String, cure: impl Into<String>) -> Self {
        Self {
            vms: usize::from(pod.pod_uid != "-"),
            pod,
            kind,
            problem,
            cure: cure.into(),
            seen: true,
            section: None,
            common: None,
            since_us: None,
        }
    }

    fn in_section(self, section: &str) -> Self {
        Self {
            section: Some(section.to_owned()),
            ..self
        }
    }

    /// A step that a pass would take. One that failed the daemon knows of.
    fn step(uid: &str, step: &str, failed: bool) -> Self {
        let would = |step: &str| format!("differs: a pass would {step}");
        let cure = if failed { BY_A_PASS } else { NOT_REPORTED };
        Self {
            common: (uid != "-").then(|| would(&in_common(step))),
            seen: failed,
            ..Self::new(Pod::unnamed(uid), Kind::Differs, would(step), cure)
        }
    }

    /// A reason of degradation; its UID is `-` where it is of the whole node.
    fn degraded(pod: Pod, kind: &str, problem: String) -> Self {
        let known = ReasonKind::parse(kind);
        let cure = known.map_or_else(|| PAGE.to_owned(), |kind| to_do(kind, &problem));
        Self {
            section: known.map(|kind| kind.cure().section.to_owned()),
            ..Self::new(pod, Kind::Degraded(kind.to_owned()), problem, cure)
        }
    }

    /// That the ledger is not read or not kept.
    fn of_ledger(kind: Kind, problem: String) -> Self {
        let cure = "journalctl -u steliad; df /var/lib/stelia";
        Self::new(Pod::unnamed("-"), kind, problem, cure).in_section("the-ledger-is-not-kept")
    }
}

/// What is asked of the states of VMs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub(crate) struct Demands {
    /// Also fail if the state of a VM is less than this
    #[arg(long, value_name = "STATE")]
    require: Option<Required>,
    /// Do not fail because of VMs that wait for their vCPUs. Without it, a VM that has waited for more than a minute is a failure
    #[arg(long)]
    allow_waiting: bool,
    /// Do not fail because of the ledger. Its accounts of the last 24 hours are still printed
    #[arg(long)]
    now: bool,
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
    demands: Demands,
    #[serde(skip)]
    now: u64,
}

/// The findings of all instances, or those of the selected ones and of what all share.
///
/// # Errors
/// A pattern fits no instance, or the daemon does not answer.
pub(crate) async fn gather(client: &Client, selection: &Selection, demands: Demands) -> Result<Verified, Failure> {
    let preview = client.reconcile(true).await?;
    let mut described = client.describe().await?;
    let selected = selection.among(&described)?;
    let selected = selected.as_ref();
    if let Some(namespace) = selection.empty_namespace(Pods::of(&described).iter()) {
        output::note(&format!("no VM in namespace {namespace}"));
    }
    let mut all = verified(&described, &preview, selected, demands, output::now());
    for _ in 1..READINGS {
        if !all.findings.iter().any(|one| one.kind.may_be_transient()) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        let preview = client.reconcile(true).await?;
        described = client.describe().await?;
        all = verified(&described, &preview, selected, demands, output::now()).confirmed_by(&all);
    }
    if described.node.ledger.enabled {
        match ledger::last_day(client, selected).await {
            // Every user may call verify, and only some may read the ledger.
            Err(denied) if denied.is_denied() => {
                output::note(&format!("the ledger's last 24 hours were not checked: {denied}"));
            }
            accounts => all.add_ledger(accounts),
        }
    }
    Ok(all)
}

fn verified(
    described: &Description,
    preview: &Map<String, Value>,
    selected: Option<&BTreeSet<String>>,
    demands: Demands,
    now: u64,
) -> Verified {
    let has = |uid: &str| selected.is_none_or(|selected| selected.contains(uid));
    let instances = described.node.instances.iter();
    let instances = instances.filter(|(uid, _)| has(uid.as_str()));
    let instances: Vec<CheckedVm> = instances.map(|(uid, one)| CheckedVm::at(uid, one)).collect();
    let mut findings = findings::of(described, preview);
    findings.retain(|one| one.pod.pod_uid == "-" || has(&one.pod.pod_uid));
    findings.extend(instances.iter().filter_map(|one| one.short_of(demands, now)));
    findings.sort_by_cached_key(|one| (group(&one.kind), one.pod.pod_uid != "-", one.pod.to_string()));
    Verified {
        instances,
        required: demands.require,
        findings,
        ledger: None,
        demands,
        now,
    }
}

/// The order of findings: first what is wrong with VMs and the node, then what a pass would do.
fn group(kind: &Kind) -> u8 {
    match kind {
        Kind::Degraded(_) | Kind::Node => 0,
        Kind::Differs => 1,
        Kind::MemoryAway => 2,
        Kind::Waiting | Kind::BelowRequired | Kind::Ledger => 3,
    }
}

impl Verified {
    /// Without what may pass and was not there at the reading before.
    fn confirmed_by(mut self, before: &Self) -> Self {
        let was_there = |one: &Finding| {
            let mut former = before.findings.iter();
            former.any(|other| other.kind == one.kind && other.pod.pod_uid == one.pod.pod_uid)
        };
        self.findings
            .retain(|one| !one.kind.may_be_transient() || was_there(one));
        self
    }

    /// Adds the accounts, and a finding for each that is above what is promised, or one that they cannot be read.
    fn add_ledger(&mut self, accounts: Result<Vec<Brief>, Failure>) {
        let accounts = match accounts {
            Ok(accounts) => accounts,
            Err(cause) => {
                let problem = format!("the ledger's last 24 hours cannot be read: {cause}");
                self.findings.push(Finding::of_ledger(Kind::Ledger, problem));
                return;
            }
        };
        let above = accounts.iter().filter_map(|account| {
            let problem = format!("{} in the last 24 hours, 0 is promised", account.above_promise()?);
            let cure = "steliactl ledger VM: when; steliactl quiet VM: which interrupts remain";
            Some(Finding {
                common: Some("more than the promised 0 in the last 24 hours, by the ledger".to_owned()),
                ..Finding::new(account.pod.clone(), Kind::Ledger, problem, cure)
            })
        });
        self.findings.extend(above);
        self.ledger = Some(accounts);
    }

    /// The findings that make the command fail.
    fn failing(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|one| self.is_failing(one))
    }

    fn is_failing(&self, finding: &Finding) -> bool {
        match finding.kind {
            Kind::Waiting => !self.demands.allow_waiting,
            Kind::Ledger => !self.demands.now,
            _ => true,
        }
    }

    /// "1 VM waits for its vCPUs: team-a/vm".
    fn named(&self, kind: Kind, one: &str, several: &str) -> Option<String> {
        let pods: Vec<&Pod> = self
            .failing()
            .filter(|one| one.kind == kind)
            .map(|one| &one.pod)
            .collect();
        let what = match pods.len() {
            0 => return None,
            1 => one,
            _ => several,
        };
        let count = counted(pods.len() as u64, "VM");
        Some(format!("{count} {what}: {}", named_within(&pods, MAX_NAMES_WIDTH)))
    }
}

impl Render for Verified {
    /// The VMs for which a promise does not hold.
    fn names(&self) -> Vec<String> {
        let pods = self.failing().map(|finding| &finding.pod);
        let pods: BTreeSet<&Pod> = pods.filter(|pod| pod.pod_uid != "-").collect();
        pods.into_iter().map(Pod::to_string).collect()
    }

    fn text(&self, style: TextStyle) -> String {
        let summary = match states::summary(&self.instances, self.now) {
            none if none.is_empty() => "No instances.".to_owned(),
            summary => output::printable(&summary),
        };
        let mut text = paragraph(&summary, style);
        if self.failing().next().is_none() && !self.instances.is_empty() {
            let holds = "Every promise of these states holds: CPU lists, partitions, pinning, limits, and the NUMA nodes of the memory";
            text += &paragraph(holds, style);
        }
        if !self.findings.is_empty() {
            text.push('\n');
        }
        for folded in FoldedFinding::all(&self.findings, style) {
            text += &folded.text(self.is_failing(folded.finding), style);
        }
        // A VM that has just started, or that ended before it was read twice, has no account.
        let ledger = self.ledger.iter().flatten().filter(|account| account.covered_us > 0);
        let mut lines: Vec<String> = ledger
            .map(|account| format!("{}: {}\n", output::printable(&account.pod.to_string()), account.line()))
            .collect();
        lines.sort();
        let lines = lines.concat();
        if lines.is_empty() {
            text
        } else {
            format!("{text}\nThe last 24 hours by the ledger:\n{lines}")
        }
    }

    fn failure(&self) -> Option<String> {
        let waiting = self.named(Kind::Waiting, "waits for its vCPUs", "wait for their vCPUs");
        let below = "is below what is required";
        let below = self.named(Kind::BelowRequired, below, "are below what is required");
        let of_states = |one: &&Finding| matches!(one.kind, Kind::Waiting | Kind::BelowRequired);
        let broken = match self.failing().filter(|one| !of_states(one)).count() {
            0 => None,
            1 => Some("1 promise does not hold".to_owned()),
            count => Some(format!("{} do not hold", counted(count as u64, "promise"))),
        };
        let parts: Vec<String> = [broken, waiting, below].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}
