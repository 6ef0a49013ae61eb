//! `verify`: whether each VM is isolated in the kernel, which this program reads itself. A finding is what the kernel has otherwise, what the
//! daemon's dry run would repair, what is wrong on the node, a VM that is not isolated, remote memory, or an account of the ledger above its
//! guarantee. A VM is verified if everything of it was read and nothing was found.

mod kernel;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::{Reason, ReasonCode, State};
use stelia_kernel::locality::nodes;
use stelia_kubelet::PodUid;
use stelia_model::{Instance, PinnedReason};

use crate::check::ledger::{self, Brief};
use crate::shared::daemon::{Client, Description, Failure, Pod, Pods, Selection, lines_by_pod};
use crate::shared::kernel::Roots;
use crate::shared::output;

/// The fix of what the daemon repairs by itself as soon as it looks.
const NOT_SEEN: &str = "steliad has not seen this yet: steliactl reconcile";
const RECONCILE: &str = "steliactl reconcile";
/// How the kernel answers whoever is not root.
const DENIED: &str = "Permission denied";
/// The time that a VM may wait: a VMM has started by then.
const MAX_WAIT_US: u64 = 60_000_000;
/// How often a finding that may pass by itself is read before it counts. Daemon and guest change what is read meanwhile: the thread of a
/// vCPU that was unplugged ends before the runner attaches the others.
const READINGS: usize = 3;
/// Between two readings. Callers that are not root get a former answer of the daemon for up to a second.
const PAUSE: Duration = Duration::from_millis(1_100);

/// Where a finding is from, in the order in which findings are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The node.
    Node,
    /// The daemon's reasons, and what its dry run would repair.
    Daemon,
    /// The kernel, as this program reads it.
    Kernel,
    Memory,
    /// The VM has less than is required, or was refused a partition.
    State,
    Ledger,
    /// What could not be checked.
    Unread,
    /// The VM waits to be isolated.
    Waiting,
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Its UID is `-` for the node.
    #[serde(flatten)]
    pub pod: Pod,
    pub kind: Kind,
    /// A reason's code, or a word of this program.
    pub code: String,
    pub text: String,
    pub effect: &'static str,
    pub fix: String,
    /// Whether the command fails because of it.
    pub fails: bool,
    /// Since when the VM waits, microseconds since the epoch.
    pub since_us: Option<u64>,
}

impl Finding {
    fn new(pod: &str, kind: Kind, code: &str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            pod: Pod::unnamed(pod),
            kind,
            code: code.to_owned(),
            text: text.into(),
            effect: "",
            fix: fix.into(),
            fails: true,
            since_us: None,
        }
    }

    fn of(pod: &str, kind: Kind, reason: &Reason) -> Self {
        Self {
            effect: reason.code.effect(),
            ..Self::new(pod, kind, reason.code.name(), &reason.text, &reason.fix)
        }
    }

    /// Whether it may go away by itself, so that it is read again.
    fn may_be_transient(&self) -> bool {
        self.fails && !matches!(self.kind, Kind::Node | Kind::Ledger)
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
    /// Do not fail because of the ledger's last 24 hours
    #[arg(long)]
    now: bool,
}

/// The least that is asked of every VM that does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Required {
    /// Its vCPUs are pinned and other tasks are kept off their CPUs
    Pinned,
    /// The kernel keeps every other task off its CPUs
    Isolated,
}

impl Required {
    const fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Isolated => "isolated",
        }
    }
}

/// A VM and whether it is as its state says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct CheckedVm {
    #[serde(flatten)]
    pod: Pod,
    state: State,
    verified: bool,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Verified {
    instances: Vec<CheckedVm>,
    required: Option<Required>,
    findings: Vec<Finding>,
    /// Accounts of the last 24 hours; `None` if no ledger is kept.
    ledger: Option<Vec<Brief>>,
    #[serde(skip)]
    now: u64,
}

/// The findings of all VMs, or those of the selected ones and of the node.
///
/// # Errors
/// A pattern fits no VM, or the daemon does not answer.
pub(crate) async fn gather(
    client: &Client,
    roots: &Roots,
    selection: &Selection,
    demands: Demands,
) -> Result<Verified, Failure> {
    let mut described = client.describe().await?;
    let selected = selection.among(&described)?;
    let selected = selected.as_ref();
    if let Some(namespace) = selection.empty_namespace(Pods::of(&described).iter()) {
        output::note(&format!("no VM in namespace {namespace}"));
    }
    let mut all = Verified::default();
    for reading in 0..READINGS {
        if reading > 0 {
            if !all.findings.iter().any(Finding::may_be_transient) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            described = client.describe().await?;
        }
        // The kernel comes first: a dry run may be what makes the daemon look.
        let checked = kernel::check(&described, roots);
        let preview = client.reconcile(true).await?;
        let mut now = verified(&described, checked, &preview, demands, output::now());
        now.select(selected);
        if reading > 0 {
            now.confirm(&all);
        }
        all = now;
    }
    if described.node.ledger.enabled {
        match ledger::last_day(client, selected).await {
            // Every user may call verify, and only some may read the ledger.
            Err(denied) if denied.is_denied() => {
                output::note(&format!("the ledger's last 24 hours were not checked: {denied}"));
            }
            accounts => all.add_ledger(accounts, demands),
        }
    }
    all.settle();
    Ok(all)
}

/// One reading of everything.
fn verified(
    described: &Description,
    checked: BTreeMap<String, kernel::Checked>,
    preview: &Map<String, Value>,
    demands: Demands,
    now: u64,
) -> Verified {
    let instances = &described.node.instances;
    let mut findings: Vec<Finding> = described
        .problems
        .iter()
        .map(|problem| Finding::of("-", Kind::Node, problem))
        .collect();
    findings.extend(reported(described, preview));
    for (pod, checked) in checked {
        let instance = instances.get(pod.as_str());
        let is_degraded = instance.is_some_and(|one| !one.degraded.is_empty());
        let fix = if is_degraded { RECONCILE } else { NOT_SEEN };
        let is_new = |code: &str| {
            let mut known = findings.iter().filter(|one| one.pod.pod_uid == pod);
            !known.any(|one| one.code == code) && !is_of_resize(instance, code)
        };
        let found: Vec<Finding> = match checked {
            Ok(differences) => differences
                .into_iter()
                .filter(|(code, _)| is_new(code))
                .map(|(code, text)| Finding::new(&pod, Kind::Kernel, code, text, fix))
                .collect(),
            Err(cause) => {
                let fix = if cause.contains(DENIED) { "run as root" } else { "" };
                let text = format!("not checked: {cause}");
                vec![Finding::new(&pod, Kind::Unread, "not-checked", text, fix)]
            }
        };
        findings.extend(found);
    }
    findings.extend(steps(preview, &findings));
    for (uid, instance) in instances {
        findings.extend(remote_memory(described, uid, instance));
        findings.extend(of_state(uid, instance, demands, now));
    }
    let pods = Pods::of(described);
    // A VM that was released meanwhile has none.
    findings.retain(|one| one.pod.pod_uid == "-" || pods.has(&one.pod.pod_uid));
    for finding in &mut findings {
        finding.pod = pods.get(&finding.pod.pod_uid);
    }
    let instances = instances.iter().map(|(uid, instance)| CheckedVm {
        pod: Pod::of(uid, instance),
        state: instance.state,
        verified: false,
    });
    Verified {
        instances: instances.collect(),
        required: demands.require,
        findings,
        ledger: None,
        now,
    }
}

/// The reasons of the dry run, which looks at the kernel too: what the daemon shows already, and what it has not seen yet.
fn reported(described: &Description, preview: &Map<String, Value>) -> Vec<Finding> {
    let rows = preview.get("reasons").and_then(Value::as_array);
    let mut findings: Vec<Finding> = Vec::new();
    for row in rows.into_iter().flatten() {
        let field = |at: usize| row.get(at).and_then(Value::as_str).unwrap_or_default();
        let (pod, code, text, fix) = (field(0), field(1), field(2), field(3));
        let instance = described.node.instances.get(pod);
        let is_shown = match instance {
            Some(instance) => instance.degraded.iter().any(|reason| reason.code.name() == code),
            None => described.problems.iter().any(|reason| reason.code.name() == code),
        };
        if (pod == "-" && is_shown) || is_of_resize(instance, code) {
            continue;
        }
        let fix = match pod == "-" || is_shown {
            true => fix.to_owned(),
            false => format!("{NOT_SEEN}; then: {fix}"),
        };
        let finding = Finding {
            effect: ReasonCode::parse(code).map_or("", ReasonCode::effect),
            ..Finding::new(pod, Kind::Daemon, code, text, fix)
        };
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}

/// Whether it belongs to a resize under way: the threads of unplugged vCPUs end one by one until the runner attaches those that remain.
fn is_of_resize(instance: Option<&Arc<Instance>>, code: &str) -> bool {
    instance.is_some_and(|one| one.pending_resize.is_some()) && code == ReasonCode::ThreadEnded.name()
}

/// What the daemon would do that repairs nothing found so far, each VM's steps together.
fn steps(preview: &Map<String, Value>, findings: &[Finding]) -> Vec<Finding> {
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for (pod, step) in lines_by_pod(preview, "plan") {
        match steps.iter_mut().find(|(other, _)| *other == pod) {
            Some((_, of_pod)) => of_pod.push(step),
            None => steps.push((pod, vec![step])),
        }
    }
    let is_known = |pod: &str| {
        let mut of_kernel = findings
            .iter()
            .filter(|one| matches!(one.kind, Kind::Daemon | Kind::Kernel));
        of_kernel.any(|one| one.pod.pod_uid == pod || pod == "-")
    };
    let new = steps.into_iter().filter(|(pod, _)| !is_known(pod));
    let finding = |(pod, steps): (&str, Vec<&str>)| {
        let more = match steps.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let text = format!("steliad would {}{more}", steps.first().unwrap_or(&""));
        Finding::new(pod, Kind::Daemon, "differs", text, NOT_SEEN)
    };
    new.map(finding).collect()
}

/// Remote memory, except where the VM has had CPUs of other NUMA nodes since that was read. A remote device is no finding: kubelet chose it at
/// admission, and a restart of the VM may not change it.
fn remote_memory(described: &Description, uid: &PodUid, instance: &Instance) -> Option<Finding> {
    let locality = described.locality.instances.get(uid.as_str())?;
    let is_current = locality.nodes == nodes(&described.node.topology, &instance.exclusive);
    let problem = locality.memory_problem().filter(|_| is_current)?;
    Some(Finding::new(
        uid.as_str(),
        Kind::Memory,
        "remote-memory",
        problem,
        locality.memory_cure(),
    ))
}

/// What the VM has less than isolation. One that lost its CPUs has a reason of its own.
fn of_state(uid: &PodUid, instance: &Instance, demands: Demands, now: u64) -> Option<Finding> {
    let waits = matches!(instance.state, State::Waiting | State::Releasing);
    let has = match instance.state {
        State::Isolated => Some(Required::Isolated),
        State::Pinned => Some(Required::Pinned),
        _ => None,
    };
    let below = demands.require.filter(|least| !waits && has < Some(*least));
    let is_refused = instance.pinned_reason == Some(PinnedReason::Refused);
    if !waits && below.is_none() && !is_refused {
        return None;
    }
    let kind = if waits { Kind::Waiting } else { Kind::State };
    let mut finding = match &instance.not_isolated {
        Some(reason) => Finding::of(uid.as_str(), kind, reason),
        None => {
            let (state, text) = (instance.state.name(), format!("its state is {}", instance.state));
            Finding::new(uid.as_str(), kind, state, text, "steliactl why VM")
        }
    };
    if let Some(least) = below {
        finding.text = format!("{} is required: {}", least.name(), finding.text);
    }
    if waits {
        let has_waited = now.saturating_sub(instance.registered_us) > MAX_WAIT_US;
        finding.fails = has_waited && !demands.allow_waiting;
        finding.since_us = Some(instance.registered_us);
    }
    Some(finding)
}

impl Verified {
    /// Keeps what is of these VMs and of the node.
    fn select(&mut self, selected: Option<&BTreeSet<String>>) {
        let has = |pod: &Pod| selected.is_none_or(|selected| selected.contains(&pod.pod_uid));
        self.instances.retain(|one| has(&one.pod));
        self.findings.retain(|one| one.pod.pod_uid == "-" || has(&one.pod));
    }

    /// Drops what may pass and was not there at the reading before.
    fn confirm(&mut self, before: &Self) {
        let was_there = |one: &Finding| {
            let same = |other: &Finding| {
                (other.kind, &other.code, &other.pod.pod_uid) == (one.kind, &one.code, &one.pod.pod_uid)
            };
            before.findings.iter().any(same)
        };
        self.findings.retain(|one| !one.may_be_transient() || was_there(one));
    }

    /// Adds the accounts, and a finding for each above its guarantee, or one that they cannot be read.
    fn add_ledger(&mut self, accounts: Result<Vec<Brief>, Failure>, demands: Demands) {
        let finding = |pod: &Pod, text: String, fix: &str| Finding {
            pod: pod.clone(),
            fails: !demands.now,
            ..Finding::new("-", Kind::Ledger, "ledger", text, fix)
        };
        match accounts {
            Ok(accounts) => {
                let above = accounts.iter().filter_map(|account| {
                    let text = format!("{} in the last 24 hours, 0 is guaranteed", account.above_promise()?);
                    Some(finding(&account.pod, text, "steliactl ledger VM; steliactl noise VM"))
                });
                self.findings.extend(above);
                self.ledger = Some(accounts);
            }
            Err(cause) => {
                let text = format!("the ledger's last 24 hours cannot be read: {cause}");
                self.findings
                    .push(finding(&Pod::unnamed("-"), text, "journalctl -u steliad"));
            }
        }
    }

    /// Orders the findings, and says which VMs are verified: the ledger is about the past.
    fn settle(&mut self) {
        self.findings
            .sort_by_cached_key(|one| (!one.fails && one.kind != Kind::Waiting, one.kind, one.pod.to_string()));
        for vm in &mut self.instances {
            let mut own = self
                .findings
                .iter()
                .filter(|one| one.pod == vm.pod && one.kind != Kind::Ledger);
            vm.verified = own.next().is_none() && vm.state != State::Evicted;
        }
    }
}
