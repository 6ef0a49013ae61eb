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

use crate::check::{first_few, ledger};
use crate::shared::daemon::{
    Client, Description, FORMER, Failure, Mode, NODE, Pod, Selected, lines_by_pod, reason_of, recreate,
};
use crate::shared::kernel::Roots;
use crate::shared::output::{self, natural};

/// The fix of what the dry run would change.
const REPAIR: &str = "steliactl reconcile";
/// The code of a VM that was released and may run on.
const RELEASED: &str = "former";
/// How the kernel answers whoever is not root: it refuses, or hides what is there.
const DENIED: [&str; 2] = ["Permission denied", "No such file"];
/// The time that a VM may wait: a VMM has started by then.
const MAX_WAIT_US: u64 = 60_000_000;
/// How often everything is read, at least and at most, while a finding may pass by itself. Daemon and guest change what is read meanwhile: the
/// thread of a vCPU that was unplugged ends before the runner attaches the others.
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
struct Finding {
    /// Its UID is `-` for the node.
    #[serde(flatten)]
    pod: Pod,
    kind: Kind,
    /// A reason's code, or a word of this program.
    code: String,
    text: String,
    effect: &'static str,
    fix: String,
    /// Whether the command fails because of it.
    fails: bool,
    /// Since when the VM waits, or is released, microseconds since the epoch.
    since_us: Option<u64>,
}

impl Finding {
    fn new(pod: Pod, kind: Kind, code: &str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            pod,
            kind,
            code: code.to_owned(),
            text: text.into(),
            effect: ReasonCode::parse(code).map_or("", ReasonCode::effect),
            fix: fix.into(),
            fails: true,
            since_us: None,
        }
    }

    fn of(pod: Pod, kind: Kind, reason: &Reason) -> Self {
        Self::new(pod, kind, reason.code.name(), &reason.text, &reason.fix)
    }

    fn is_of_node(&self) -> bool {
        self.pod.pod_uid == NODE
    }

    /// Failures come first, then VMs that wait, then the rest.
    fn order(&self) -> (bool, bool, Kind) {
        let is_note = !self.fails && self.kind != Kind::Waiting;
        (!self.fails, is_note, self.kind)
    }

    /// By what it is found again. Its kind may change: the daemon comes to see what the kernel had before.
    fn key(&self) -> (String, String) {
        (self.code.clone(), self.pod.pod_uid.clone())
    }

    /// Whether it may go away by itself, so that it is read again. A VM that is being released is gone in a moment, and one that is resized
    /// waits for a moment.
    fn may_be_transient(&self) -> bool {
        self.fails && !matches!(self.kind, Kind::Node | Kind::Ledger | Kind::State)
    }
}

/// What is asked of the states of VMs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub(crate) struct Demands {
    /// Also fail if a VM that does not wait is less than this, or was released: pinned or isolated
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

impl Demands {
    /// A text, behind the state that is required.
    fn required(&self, text: &str) -> String {
        self.require
            .map_or_else(|| text.to_owned(), |least| format!("{least} is required: {text}"))
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
#[derive(Debug, Serialize)]
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
pub(crate) async fn gather(
    client: &Client,
    roots: &Roots,
    selected: &Selected,
    demands: Demands,
) -> Result<Verified, Failure> {
    let mut described = selected.described.clone();
    let (demanded, named, uids) = (&selected.selection, &selected.released, selected.uids());
    let selected = uids.as_ref();
    let (mut before, mut reading) = (BTreeSet::new(), 0);
    let (mut findings, now) = loop {
        let of_selected = |uid: &PodUid| selected.is_none_or(|selected| selected.contains(uid.as_str()));
        described.node.instances.retain(|uid, _| of_selected(uid));
        // The kernel comes first: a dry run may be what makes the daemon look.
        let checked = kernel::check(&described, roots);
        let preview = client.reconcile(Mode::DryRun).await?;
        let now = output::now();
        let mut findings = one_reading(&described, &checked, &preview, demands, now);
        reading += 1;
        if is_last_reading(&mut findings, &mut before, reading) {
            break (findings, now);
        }
        tokio::time::sleep(PAUSE).await;
        described = client.describe().await?;
    };
    let former = demanded.former(&described);
    findings.extend(of_former(&described, former, named, demands));
    let mut unread = Some("the ledger is off".to_owned());
    if described.node.ledger.enabled {
        let above = ledger::above_guarantee(client, selected).await;
        // Every user may call verify, and only some may read the ledger.
        let denied = above.as_ref().err().filter(|cause| cause.is_denied());
        unread = denied.map(ToString::to_string);
        if unread.is_none() {
            findings.extend(of_ledger(above, demands));
        }
    }
    let mut verified = Verified::of(&described, findings, demands, now);
    if let Some(why) = unread {
        verified.not_checked = format!("interrupts (steliactl noise), the last 24 hours ({why})");
    }
    Ok(verified)
}

/// The reasons of an answer of the daemon's, by the UID of their pod or `-` for the node, each with its code, which may be one that only a newer
/// daemon has.
fn reasons_by_pod(answer: &Map<String, Value>) -> BTreeMap<&str, Vec<(&str, Reason)>> {
    let rows = answer.get("reasons").and_then(Value::as_array);
    by_pod(rows.into_iter().flatten().filter_map(|row| {
        let (uid, reason) = row.as_array()?.split_first()?;
        let code = reason.first()?.as_str()?;
        Some((uid.as_str()?, (code, reason_of(&Value::from(reason))?)))
    }))
}

fn by_pod<'a, V>(rows: impl Iterator<Item = (&'a str, V)>) -> BTreeMap<&'a str, Vec<V>> {
    let mut by_pod: BTreeMap<&str, Vec<V>> = BTreeMap::new();
    rows.for_each(|(uid, value)| by_pod.entry(uid).or_default().push(value));
    by_pod
}

/// One reading of everything: of the node, and of each VM. A finding is told once, as the first of these has it: the daemon's state, its dry
/// run, the kernel.
fn one_reading(
    described: &Description,
    checked: &BTreeMap<String, kernel::Checked>,
    preview: &Map<String, Value>,
    demands: Demands,
    now: u64,
) -> Vec<Finding> {
    let (steps, unseen) = (by_pod(lines_by_pod(preview, "plan")), reasons_by_pod(preview));
    let vms = described.node.instances.iter();
    let vms = vms.map(|(uid, vm)| (Pod::of(uid, vm), Some(vm)));
    let of_one = |(pod, vm): (Pod, Option<&Arc<Instance>>)| {
        let (kind, reasons) = vm.map_or((Kind::Node, &described.problems), |vm| (Kind::Daemon, &vm.degraded));
        let reasons = reasons.iter().map(|reason| Finding::of(pod.clone(), kind, reason));
        let mut found: Vec<Finding> = reasons.collect();
        let new = |kind, code: &str, text: &str, fix: String| Finding::new(pod.clone(), kind, code, text, fix);
        let own_steps = steps.get(pod.pod_uid.as_str());
        let would_change = own_steps.is_some() || steps.contains_key(NODE);
        let checked = checked.get(&pod.pod_uid);
        let of_dry_run = unseen.get(pod.pod_uid.as_str()).into_iter().flatten();
        let of_dry_run = of_dry_run.map(|(code, reason)| new(Kind::Daemon, code, &reason.text, reason.fix.clone()));
        let of_kernel = checked.into_iter().flatten().flatten().map(|(code, text)| {
            let known = ReasonCode::parse(code).unwrap_or(ReasonCode::Detail);
            new(Kind::Kernel, code, text, Reason::of_node(known, "").fix)
        });
        for unseen in [of_dry_run.collect::<Vec<_>>(), of_kernel.collect()] {
            let known: Vec<String> = found.iter().map(|one| one.code.clone()).collect();
            for mut one in unseen.into_iter().filter(|one| !known.contains(&one.code)) {
                one.text += " (steliad has not seen this yet)";
                if would_change {
                    let again = if one.fix.is_empty() { "" } else { "; if it returns: " };
                    one.fix = format!("{REPAIR}{again}{}", one.fix);
                }
                found.push(one);
            }
        }
        // The threads of unplugged vCPUs end one by one until the runner attaches those that remain.
        if vm.is_some_and(|vm| vm.pending_resize.is_some()) {
            found.retain(|one| one.code != ReasonCode::ThreadEnded.name());
        }
        if let Some(steps) = own_steps.filter(|_| vm.is_none() || found.is_empty()) {
            let text = format!("steliad would {}", first_few(steps));
            found.push(new(Kind::Daemon, "differs", &text, REPAIR.to_owned()));
        }
        if let Some(Err(cause)) = checked {
            let is_denied = DENIED.iter().any(|words| cause.contains(words));
            let fix = if is_denied { "run as root" } else { "" };
            let text = format!("not checked: {cause}");
            found.push(new(Kind::Unread, "not-checked", &text, fix.to_owned()));
        }
        if let Some(vm) = vm {
            found.extend(remote_memory(described, &pod, vm));
            found.extend(of_state(pod, vm, demands, now));
        }
        found
    };
    let node = (Pod::unnamed(NODE), None);
    std::iter::once(node).chain(vms).flat_map(of_one).collect()
}

/// Remote memory, except where the VM has had CPUs of other NUMA nodes since that was read. A remote device is no finding: kubelet chose it at
/// admission, and a restart of the VM may not change it.
fn remote_memory(described: &Description, pod: &Pod, instance: &Instance) -> Option<Finding> {
    let locality = described.locality.instances.get(&pod.pod_uid)?;
    let is_current = locality.nodes == nodes(&described.node.topology, &instance.exclusive);
    let problem = locality.memory_problem().filter(|_| is_current)?;
    let (kind, fix) = (Kind::Memory, locality.memory_cure());
    Some(Finding::new(pod.clone(), kind, "remote-memory", problem, fix))
}

/// What the VM has less than isolation. One that lost its CPUs has a reason of its own.
fn of_state(pod: Pod, instance: &Instance, demands: Demands, now: u64) -> Option<Finding> {
    let state = instance.state;
    let waits = matches!(state, State::Waiting | State::Releasing);
    let is_enough = |least: State| [State::Isolated, least].contains(&state);
    let is_below = !waits && demands.require.is_some_and(|least| !is_enough(least));
    if !waits && !is_below && instance.pinned_reason != Some(PinnedReason::Refused) {
        return None;
    }
    let kind = if waits { Kind::Waiting } else { Kind::State };
    let why = format!("steliactl why {pod}");
    let finding = match &instance.not_isolated {
        Some(reason) => Finding::of(pod, kind, reason),
        None => Finding::new(pod, kind, state.name(), format!("its state is {state}"), why),
    };
    let is_late = now.saturating_sub(instance.state_since_us) > MAX_WAIT_US;
    Some(Finding {
        text: if is_below {
            demands.required(&finding.text)
        } else {
            finding.text
        },
        fails: !waits || is_late && !demands.allow_waiting,
        since_us: waits.then_some(instance.state_since_us),
        ..finding
    })
}

/// The VMs that were released and may run on: less than any state that may be required, or than is expected of one that is named.
fn of_former(
    described: &Description,
    former: Vec<(Pod, u64)>,
    named: &[(Pod, u64)],
    demands: Demands,
) -> impl Iterator<Item = Finding> {
    former.into_iter().map(move |one| {
        let fix = recreate(described, std::slice::from_ref(&one));
        let (pod, ended_us) = one;
        let is_named = named.iter().any(|(one, _)| *one == pod);
        Finding {
            fails: demands.require.is_some() || is_named,
            since_us: Some(ended_us).filter(|us| *us > 0),
            ..Finding::new(pod, Kind::State, RELEASED, demands.required(FORMER), fix)
        }
    })
}

/// A finding for each account above its guarantee, or one that they cannot be read.
fn of_ledger(above: Result<Vec<(Pod, String)>, Failure>, demands: Demands) -> Vec<Finding> {
    let new = |pod: Pod, text: String, fix: &str| Finding {
        fails: !demands.now,
        ..Finding::new(pod, Kind::Ledger, "ledger", text, fix)
    };
    let above = above.map(|above| {
        let each = above.into_iter().map(|(pod, text)| {
            let fix = format!("steliactl ledger {pod}; steliactl noise {pod}");
            new(pod, format!("{text} in the last 24 hours, 0 is guaranteed"), &fix)
        });
        each.collect()
    });
    above.unwrap_or_else(|cause| {
        let text = format!("the ledger's last 24 hours cannot be read: {cause}");
        vec![new(Pod::unnamed(NODE), text, "journalctl -eu steliad")]
    })
}

/// Whether this reading is the last; then what may pass by itself counts only if the reading before had it too. What could not be read the
/// last time is not verified, whatever was read before. `before` follows.
fn is_last_reading(findings: &mut Vec<Finding>, before: &mut BTreeSet<(String, String)>, reading: usize) -> bool {
    let [least, most] = READINGS;
    let transient = findings.iter().filter(|one| one.may_be_transient());
    let now: BTreeSet<_> = transient.map(Finding::key).collect();
    let is_last = now.is_empty() || reading == most || reading >= least && now.is_subset(before);
    if is_last {
        let stays = |one: &Finding| one.kind == Kind::Unread || before.contains(&one.key());
        findings.retain(|one| !one.may_be_transient() || stays(one));
    }
    *before = now;
    is_last
}

impl Verified {
    /// The findings in order, and which VMs are verified: the ledger is about the past.
    fn of(described: &Description, mut findings: Vec<Finding>, demands: Demands, now: u64) -> Self {
        findings.sort_by_cached_key(|one| (one.order(), natural(&one.pod.to_string())));
        // Then it is not known who else may run on the VMs' CPUs.
        let is_unread = findings.iter().any(|one| one.is_of_node() && one.kind == Kind::Unread);
        let instances = described.node.instances.iter().map(|(uid, one)| {
            let (pod, state) = (Pod::of(uid, one), one.state);
            let is_found = |other: &Finding| other.pod == pod && other.kind != Kind::Ledger;
            CheckedVm {
                verified: state != State::Evicted && !is_unread && !findings.iter().any(is_found),
                pod,
                state,
            }
        });
        Self {
            instances: instances.collect(),
            findings,
            not_checked: String::new(),
            allow_waiting: demands.allow_waiting,
            now,
        }
    }
}
