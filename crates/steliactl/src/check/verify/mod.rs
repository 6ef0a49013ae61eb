//! `verify`: whether each VM is isolated in the kernel, which this program reads itself. A finding is what the kernel has otherwise, what the
//! daemon's dry run would repair, what is wrong on the node, a VM that is not isolated, remote memory, or an account of the ledger above its
//! guarantee. A VM is verified if everything of it was read and nothing was found.

mod kernel;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::{Reason, ReasonCode, State};
use stelia_kernel::locality::nodes;
use stelia_kubelet::PodUid;
use stelia_model::{Instance, PinnedReason};

pub(crate) use text::subject;

use crate::change::reconcile::reasons;
use crate::check::ledger;
use crate::shared::daemon::{Client, Description, FORMER, Failure, Pod, Pods, Selected, lines_by_pod, restart};
use crate::shared::kernel::Roots;
use crate::shared::output::{self, natural};

/// The UID of what is of the whole node.
pub(crate) const NODE: &str = "-";
/// The fix of what the dry run would change.
const REPAIR: &str = "steliactl reconcile";
/// How the kernel answers whoever is not root: it refuses, or hides what is there.
const DENIED: [&str; 2] = ["Permission denied", "No such file"];
/// The time that a VM may wait: a VMM has started by then.
pub(crate) const MAX_WAIT_US: u64 = 60_000_000;
/// How often everything is read again, at least and at most, while a finding may pass by itself. Daemon and guest change what is read
/// meanwhile: the thread of a vCPU that was unplugged ends before the runner attaches the others.
const READINGS: [usize; 2] = [3, 5];
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

/// Kind, code and UID, by which a finding is found again.
type Key = (Kind, String, String);

impl Finding {
    fn new(pod: &str, kind: Kind, code: &str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            pod: Pod::unnamed(pod),
            kind,
            code: code.to_owned(),
            text: text.into(),
            effect: ReasonCode::parse(code).map_or("", ReasonCode::effect),
            fix: fix.into(),
            fails: true,
            since_us: None,
        }
    }

    fn of(pod: &str, kind: Kind, reason: &Reason) -> Self {
        Self::new(pod, kind, reason.code.name(), &reason.text, &reason.fix)
    }

    /// Failures come first, then VMs that wait, then the rest.
    fn order(&self) -> (u8, Kind) {
        let rank = match self.kind {
            _ if self.fails => 0,
            Kind::Waiting => 1,
            _ => 2,
        };
        (rank, self.kind)
    }

    fn key(&self) -> Key {
        (self.kind, self.code.clone(), self.pod.pod_uid.clone())
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
    findings: Vec<Finding>,
    /// What was not looked at; empty where the ledger was read.
    not_checked: String,
    #[serde(skip)]
    allow_waiting: bool,
    #[serde(skip)]
    now: u64,
}

/// The findings of all VMs, or those of the selected ones and of the node.
///
/// # Errors
/// The daemon does not answer.
pub(crate) async fn gather(
    client: &Client,
    roots: &Roots,
    selected: &Selected,
    demands: Demands,
) -> Result<Verified, Failure> {
    let mut described = selected.described.clone();
    let (former, former_fix) = (selected.former.iter().cloned(), restart(&described));
    let uids = selected.uids();
    let selected = uids.as_ref();
    let (mut reading, mut before) = (0, BTreeSet::new());
    let mut all = loop {
        let of_selected = |uid: &PodUid| selected.is_none_or(|selected| selected.contains(uid.as_str()));
        described.node.instances.retain(|uid, _| of_selected(uid));
        // The kernel comes first: a dry run may be what makes the daemon look.
        let checked = kernel::check(&described, roots);
        let preview = client.reconcile(true).await?;
        let mut all = one_reading(&described, checked, &preview, demands, output::now());
        reading += 1;
        if all.is_last_reading(&before, reading) {
            break all;
        }
        before = all.transient();
        tokio::time::sleep(PAUSE).await;
        described = client.describe().await?;
    };
    let unread = if described.node.ledger.enabled {
        let above = ledger::above_guarantee(client, selected).await;
        // Every user may call verify, and only some may read the ledger.
        let denied = above
            .as_ref()
            .err()
            .filter(|cause| cause.is_denied())
            .map(ToString::to_string);
        if denied.is_none() {
            all.add_ledger(above, demands);
        }
        denied
    } else {
        Some("the ledger is off".to_owned())
    };
    let unread = unread.map(|why| format!("interrupts (steliactl noise), the last 24 hours ({why})"));
    all.not_checked = unread.unwrap_or_default();
    all.findings.extend(former.map(|(pod, _)| Finding {
        pod,
        fails: false,
        ..Finding::new("", Kind::State, "former", FORMER, former_fix)
    }));
    all.sort_and_mark_verified();
    Ok(all)
}

/// One reading of everything; which VMs are verified is not decided yet.
fn one_reading(
    described: &Description,
    checked: BTreeMap<String, kernel::Checked>,
    preview: &Map<String, Value>,
    demands: Demands,
    now: u64,
) -> Verified {
    let instances = &described.node.instances;
    let of_vms = instances.iter().flat_map(|(uid, one)| {
        let reasons = one.degraded.iter();
        reasons.map(|reason| Finding::of(uid.as_str(), Kind::Daemon, reason))
    });
    let of_node = described.problems.iter().map(|one| Finding::of(NODE, Kind::Node, one));
    let mut findings: Vec<Finding> = of_node.chain(of_vms).collect();
    let mut steps: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (uid, step) in lines_by_pod(preview, "plan") {
        steps.entry(uid).or_default().push(step);
    }
    // A finding is told once, as the first of these has it: the daemon's state, its dry run, the kernel.
    let unread = checked.iter();
    let unread = unread.filter_map(|(uid, one)| Some(not_checked(uid, one.as_ref().err()?)));
    let of_dry_run =
        reasons(preview).map(|(uid, code, reason)| Finding::new(uid, Kind::Daemon, code, reason.text, reason.fix));
    let of_kernel = checked.iter().flat_map(|(uid, one)| {
        let differences = one.iter().flatten();
        differences.map(|(code, text)| {
            let known = ReasonCode::parse(code).unwrap_or(ReasonCode::Detail);
            Finding::new(uid, Kind::Kernel, code, text, Reason::of_node(known, "").fix)
        })
    });
    for new in [of_dry_run.collect::<Vec<_>>(), of_kernel.collect()] {
        let is_told = |new: &Finding| findings.iter().any(|one| one.pod == new.pod && one.code == new.code);
        let mut new: Vec<Finding> = new.into_iter().filter(|new| !is_told(new)).collect();
        for one in &mut new {
            one.text += " (steliad has not seen this yet)";
            if [NODE, &one.pod.pod_uid].iter().any(|uid| steps.contains_key(uid)) {
                let again = if one.fix.is_empty() { "" } else { "; if it returns: " };
                one.fix = format!("{REPAIR}{again}{}", one.fix);
            }
        }
        findings.append(&mut new);
    }
    // The threads of unplugged vCPUs end one by one until the runner attaches those that remain.
    let resized = |uid: &str| instances.get(uid).is_some_and(|one| one.pending_resize.is_some());
    findings.retain(|one| one.code != ReasonCode::ThreadEnded.name() || !resized(&one.pod.pod_uid));
    for (uid, steps) in steps {
        if uid == NODE || !findings.iter().any(|one| one.pod.pod_uid == uid) {
            findings.push(would_change(uid, &steps));
        }
    }
    findings.extend(unread);
    for (uid, instance) in instances {
        findings.extend(remote_memory(described, uid, instance));
        findings.extend(of_state(uid, instance, demands, now));
    }
    let pods = Pods::of(described);
    // A VM that was released meanwhile has none.
    findings.retain(|one| one.pod.pod_uid == NODE || pods.has(&one.pod.pod_uid));
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
        findings,
        not_checked: String::new(),
        allow_waiting: demands.allow_waiting,
        now,
    }
}

fn not_checked(uid: &str, cause: &str) -> Finding {
    let is_denied = DENIED.iter().any(|words| cause.contains(words));
    let fix = if is_denied { "run as root" } else { "" };
    Finding::new(uid, Kind::Unread, "not-checked", format!("not checked: {cause}"), fix)
}

/// What the daemon would do where nothing was found.
fn would_change(uid: &str, steps: &[&str]) -> Finding {
    let more = match steps.len() {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let text = format!("steliad would {}{more}", steps.first().unwrap_or(&""));
    Finding::new(uid, Kind::Daemon, "differs", text, REPAIR)
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
    let state = instance.state;
    let below = demands
        .require
        .filter(|least| !waits && state != State::Isolated && state != *least);
    let is_refused = instance.pinned_reason == Some(PinnedReason::Refused);
    if !waits && below.is_none() && !is_refused {
        return None;
    }
    let kind = if waits { Kind::Waiting } else { Kind::State };
    let mut finding = match &instance.not_isolated {
        Some(reason) => Finding::of(uid.as_str(), kind, reason),
        None => {
            let text = format!("its state is {state}");
            let fix = format!("steliactl why {}", Pod::of(uid, instance));
            Finding::new(uid.as_str(), kind, state.name(), text, fix)
        }
    };
    if let Some(least) = below {
        finding.text = format!("{least} is required: {}", finding.text);
    }
    if waits {
        finding.fails = now.saturating_sub(instance.state_since_us) > MAX_WAIT_US && !demands.allow_waiting;
        finding.since_us = Some(instance.state_since_us);
    }
    Some(finding)
}

impl Verified {
    /// What may pass by itself.
    fn transient(&self) -> BTreeSet<Key> {
        let findings = self.findings.iter().filter(|one| one.may_be_transient());
        findings.map(Finding::key).collect()
    }

    /// Whether this reading is the last. What may pass counts only if it was there at the reading before too.
    fn is_last_reading(&mut self, before: &BTreeSet<Key>, reading: usize) -> bool {
        let ([least, most], now) = (READINGS, self.transient());
        if reading == most {
            // What could not be read this time is not verified, whatever was read before.
            let stays = |one: &Finding| one.kind == Kind::Unread || before.contains(&one.key());
            self.findings.retain(|one| !one.may_be_transient() || stays(one));
        }
        reading == most || now.is_empty() || reading >= least && now.is_subset(before)
    }

    /// Adds a finding for each account above its guarantee, or one that they cannot be read.
    fn add_ledger(&mut self, above: Result<Vec<(Pod, String)>, Failure>, demands: Demands) {
        let add = |pod: Pod, text: String, fix: String| Finding {
            fails: !demands.now,
            pod,
            ..Finding::new(NODE, Kind::Ledger, "ledger", text, fix)
        };
        match above {
            Ok(above) => self.findings.extend(above.into_iter().map(|(pod, text)| {
                let fix = format!("steliactl ledger {pod}; steliactl noise {pod}");
                add(pod, format!("{text} in the last 24 hours, 0 is guaranteed"), fix)
            })),
            Err(cause) => {
                let text = format!("the ledger's last 24 hours cannot be read: {cause}");
                self.findings
                    .push(add(Pod::unnamed(NODE), text, "journalctl -eu steliad".to_owned()));
            }
        }
    }

    /// Orders the findings, and says which VMs are verified: the ledger is about the past.
    fn sort_and_mark_verified(&mut self) {
        self.findings
            .sort_by_cached_key(|one| (one.order(), natural(&one.pod.to_string())));
        for vm in &mut self.instances {
            let is_own = |one: &Finding| one.pod == vm.pod && one.kind != Kind::Ledger;
            // Then it is not known who else may run on the CPUs of partitions.
            let is_unread = |one: &Finding| one.pod.pod_uid == NODE && one.kind == Kind::Unread;
            let counts = |one: &Finding| is_own(one) || (vm.state == State::Isolated && is_unread(one));
            vm.verified = vm.state != State::Evicted && !self.findings.iter().any(counts);
        }
    }
}
