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

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
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
/// How the kernel answers whoever is not root: it refuses, or hides what is there.
const DENIED: [&str; 2] = ["Permission denied", "No such file"];
/// The time that a VM may wait: a VMM has started by then.
const MAX_WAIT_US: u64 = 60_000_000;
/// So often everything is read, at least, before a finding that may pass by itself counts. Daemon and guest change what is read meanwhile:
/// the thread of a vCPU that was unplugged ends before the runner attaches the others.
const LEAST_READINGS: usize = 3;
/// So often it is read while there is something new each time, which counts then.
const MOST_READINGS: usize = 6;
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
        match self.kind {
            Kind::Node | Kind::Ledger | Kind::State => false,
            // A VM that is being released is gone in a moment, and one that is resized waits for a moment.
            Kind::Daemon | Kind::Kernel | Kind::Memory | Kind::Unread | Kind::Waiting => self.fails,
        }
    }
}

/// What is asked of the states of VMs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub(crate) struct Demands {
    /// Also fail if a VM that does not wait is less than this: pinned or isolated
    #[arg(long, value_name = "STATE", value_parser = required())]
    require: Option<State>,
    /// Do not fail because of VMs that wait for their vCPUs. Without it, a VM that has waited for more than a minute is a failure
    #[arg(long)]
    allow_waiting: bool,
    /// Do not fail because of the ledger's last 24 hours
    #[arg(long)]
    now: bool,
}

/// The least that may be asked of a VM.
fn required() -> impl TypedValueParser<Value = State> {
    let states = [State::Pinned, State::Isolated].map(State::name);
    PossibleValuesParser::new(states).try_map(|word| State::parse(&word).ok_or("not a state"))
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
    required: Option<State>,
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
    for reading in 1..=MOST_READINGS {
        if reading > 1 {
            tokio::time::sleep(PAUSE).await;
            described = client.describe().await?;
        }
        // The kernel comes first: a dry run may be what makes the daemon look.
        let checked = kernel::check(&described, roots);
        let preview = client.reconcile(true).await?;
        let mut now = verified(&described, checked, &preview, demands, output::now());
        now.select(selected);
        let is_enough = now.is_enough(&all, reading);
        all = now;
        if is_enough {
            break;
        }
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
    let problems = described.problems.iter();
    let mut findings: Vec<Finding> = problems.map(|one| Finding::of("-", Kind::Node, one)).collect();
    findings.extend(reported(described, preview));
    for (pod, checked) in checked {
        let of_kernel = of_kernel(&pod, checked, instances.get(pod.as_str()), &findings);
        findings.extend(of_kernel);
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

/// The reasons of the dry run, which looks at the kernel too: what the daemon shows already, and what it has not seen yet. Then what only the
/// daemon shows, such as interrupts: a dry run does not look for those.
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
        let fix = if pod == "-" || is_shown {
            fix.to_owned()
        } else {
            format!("{NOT_SEEN}; then: {fix}")
        };
        let finding = Finding {
            effect: ReasonCode::parse(code).map_or("", ReasonCode::effect),
            ..Finding::new(pod, Kind::Daemon, code, text, fix)
        };
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    for (uid, instance) in &described.node.instances {
        for reason in &instance.degraded {
            let code = reason.code.name();
            let is_told = |one: &Finding| one.pod.pod_uid == uid.as_str() && one.code == code;
            if !findings.iter().any(is_told) && !is_of_resize(Some(instance), code) {
                findings.push(Finding::of(uid.as_str(), Kind::Daemon, reason));
            }
        }
    }
    findings
}

/// What the kernel has otherwise, without what the daemon's dry run found too.
fn of_kernel(pod: &str, checked: kernel::Checked, instance: Option<&Arc<Instance>>, known: &[Finding]) -> Vec<Finding> {
    let differences = match checked {
        Ok(differences) => differences,
        Err(cause) => {
            let is_denied = DENIED.iter().any(|words| cause.contains(words));
            let fix = if is_denied { "run as root" } else { "" };
            let text = format!("not checked: {cause}");
            return vec![Finding::new(pod, Kind::Unread, "not-checked", text, fix)];
        }
    };
    let is_degraded = instance.is_some_and(|one| !one.degraded.is_empty());
    let fix = if is_degraded { RECONCILE } else { NOT_SEEN };
    let is_known = |code: &str| known.iter().any(|one| one.pod.pod_uid == pod && one.code == code);
    let new = differences
        .into_iter()
        .filter(|(code, _)| !is_known(code) && !is_of_resize(instance, code));
    new.map(|(code, text)| Finding::new(pod, Kind::Kernel, code, text, fix))
        .collect()
}

/// Whether it belongs to a resize under way: the threads of unplugged vCPUs end one by one until the runner attaches those that remain.
fn is_of_resize(instance: Option<&Arc<Instance>>, code: &str) -> bool {
    instance.is_some_and(|one| one.pending_resize.is_some()) && code == ReasonCode::ThreadEnded.name()
}

/// What the daemon would do for VMs of which nothing was found so far, each VM's steps together, and for all VMs together.
fn steps(preview: &Map<String, Value>, findings: &[Finding]) -> Vec<Finding> {
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for (pod, step) in lines_by_pod(preview, "plan") {
        match steps.iter_mut().find(|(other, _)| *other == pod) {
            Some((_, of_pod)) => of_pod.push(step),
            None => steps.push((pod, vec![step])),
        }
    }
    let is_found = |one: &&Finding| matches!(one.kind, Kind::Daemon | Kind::Kernel);
    let found: BTreeSet<&str> = findings
        .iter()
        .filter(is_found)
        .map(|one| one.pod.pod_uid.as_str())
        .collect();
    let new = steps.into_iter().filter(|(pod, _)| *pod == "-" || !found.contains(pod));
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
    let (kind, fix) = (Kind::Memory, locality.memory_cure());
    Some(Finding::new(uid.as_str(), kind, "remote-memory", problem, fix))
}

/// What the VM has less than isolation. One that lost its CPUs has a reason of its own.
fn of_state(uid: &PodUid, instance: &Instance, demands: Demands, now: u64) -> Option<Finding> {
    let waits = matches!(instance.state, State::Waiting | State::Releasing);
    let has = |least: &State| match instance.state {
        State::Isolated => true,
        state => state == State::Pinned && *least == State::Pinned,
    };
    let below = demands.require.filter(|least| !waits && !has(least));
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
        finding.text = format!("{least} is required: {}", finding.text);
    }
    if waits {
        let since = instance.registered_us.max(instance.isolated_us);
        finding.fails = now.saturating_sub(since) > MAX_WAIT_US && !demands.allow_waiting;
        finding.since_us = Some(since);
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

    /// What may pass by itself.
    fn transient(&self) -> BTreeSet<(Kind, &str, &str)> {
        let findings = self.findings.iter().filter(|one| one.may_be_transient());
        findings
            .map(|one| (one.kind, one.code.as_str(), one.pod.pod_uid.as_str()))
            .collect()
    }

    /// Whether this reading, the first, second or so on, can be the last: nothing may pass, or it was there at the reading before too.
    fn is_enough(&self, before: &Self, reading: usize) -> bool {
        let transient = self.transient();
        transient.is_empty() || (reading >= LEAST_READINGS && transient.is_subset(&before.transient()))
    }

    /// Adds the accounts, and a finding for each above its guarantee, or one that they cannot be read.
    fn add_ledger(&mut self, accounts: Result<Vec<Brief>, Failure>, demands: Demands) {
        let mut add = |pod: Pod, text: String, fix: &str| {
            let finding = Finding::new("-", Kind::Ledger, "ledger", text, fix);
            let fails = !demands.now;
            self.findings.push(Finding { pod, fails, ..finding });
        };
        match accounts {
            Ok(accounts) => {
                for account in &accounts {
                    if let Some(above) = &account.above {
                        let text = format!("{above} in the last 24 hours, 0 is guaranteed");
                        add(account.pod.clone(), text, "steliactl ledger VM; steliactl noise VM");
                    }
                }
                self.ledger = Some(accounts);
            }
            Err(cause) => {
                let text = format!("the ledger's last 24 hours cannot be read: {cause}");
                add(Pod::unnamed("-"), text, "journalctl -u steliad");
            }
        }
    }

    /// Orders the findings, and says which VMs are verified: the ledger is about the past.
    fn settle(&mut self) {
        let is_note = |one: &Finding| !one.fails && one.kind != Kind::Waiting;
        self.findings
            .sort_by_cached_key(|one| (is_note(one), one.kind, one.pod.to_string()));
        for vm in &mut self.instances {
            let is_own = |one: &Finding| one.pod == vm.pod && one.kind != Kind::Ledger;
            // Then it is not known who else may run on the CPUs of partitions.
            let is_unread = |one: &Finding| one.pod.pod_uid == "-" && one.kind == Kind::Unread;
            let counts = |one: &Finding| is_own(one) || (vm.state == State::Isolated && is_unread(one));
            vm.verified = vm.state != State::Evicted && !self.findings.iter().any(counts);
        }
    }
}
