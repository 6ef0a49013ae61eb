//! What each pod is told of its VM, and which changes of it are events that have no number yet. Pure: the former file's pods and the engine's view give the new ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use stelia_api::publication::{Event, EventKind, PublishedPod};
use stelia_api::reason::{joined, visible_to};
use stelia_api::{Reason, ReasonCode, State};
use stelia_kubelet::PodUid;
use stelia_model as model;
use stelia_settings::Isolation;

use super::event_log::from_change;

/// How long an instance may wait for its vCPUs before that is an event, microseconds: no runner needs half of it.
const MAX_WAIT_US: u64 = 120_000_000;
/// The reason after that time.
const WAITING_TOO_LONG: &str = "WaitingTooLong";

/// Why a container waits: its partition is not made yet.
const WITHOUT_PARTITION: &str =
    "its container has no partition yet: it runs on the CPUs of its cgroup, as without steliad";

pub(super) type Instances = BTreeMap<PodUid, Arc<model::Instance>>;

/// The state of an instance, as its pod may read it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodState {
    isolated: bool,
    reason: &'static str,
    message: String,
    /// The kind of the event that a change to this state makes; `None` where it makes none.
    event: Option<EventKind>,
}

/// The pods as they are now, by UID, and the events since `before`.
pub(super) fn update(before: &[PublishedPod], instances: &Instances, now_us: u64) -> (Vec<PublishedPod>, Vec<Event>) {
    let mut new_events = Vec::new();
    let mut formers: BTreeMap<&str, &PublishedPod> = before.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
    let pods = instances.values().filter_map(|instance| {
        let former = formers.remove(instance.pod.as_str());
        let state = state(instance, now_us);
        let pod = pod(instance, former, &state, now_us)?;
        let same = |former: &&PublishedPod| former.reason == pod.reason && former.message == pod.message;
        if let Some(kind) = state.event.filter(|_| former.filter(same).is_none()) {
            new_events.push(from_change(&pod, kind, now_us));
        }
        Some(pod)
    });
    let pods: Vec<PublishedPod> = pods.collect();
    for gone in formers.into_values() {
        let pod = PublishedPod {
            reason: "Released".to_owned(),
            message: if gone.isolation == Isolation::Container.name() {
                "it ended or was deregistered".to_owned()
            } else {
                "it ended or was deregistered: it has no CPUs of its own any more".to_owned()
            },
            ..gone.clone()
        };
        new_events.push(from_change(&pod, EventKind::Normal, now_us));
    }
    (pods, new_events)
}

/// How many instances have waited for longer than a start takes.
pub(super) fn waiting_too_long(instances: &Instances, now_us: u64) -> u64 {
    let states = instances.values().map(|instance| state(instance, now_us));
    states.filter(|state| state.reason == WAITING_TOO_LONG).count() as u64
}

/// The pod's entry; `None` where its name is unknown. A name that `former` has stays.
fn pod(
    instance: &model::Instance,
    former: Option<&PublishedPod>,
    state: &PodState,
    now_us: u64,
) -> Option<PublishedPod> {
    let named = instance.pod_name.as_ref();
    let named = named.map(|name| (name.namespace().to_owned(), name.name().to_owned()));
    let (namespace, name) = named.or_else(|| former.map(|former| (former.namespace.clone(), former.name.clone())))?;
    let since_us = match former {
        Some(former) if former.isolated == state.isolated && former.reason == state.reason => former.since_us,
        Some(_) => now_us,
        None => instance.registered_us.max(instance.isolated_us),
    };
    Some(PublishedPod {
        uid: instance.pod.to_string(),
        namespace,
        name,
        container: instance.container.clone(),
        isolation: instance.isolation.name().to_owned(),
        state: instance.state.to_string(),
        isolated: state.isolated,
        reason: state.reason.to_owned(),
        message: state.message.clone(),
        since_us,
    })
}

fn state(instance: &model::Instance, now_us: u64) -> PodState {
    let cpus = &instance.exclusive;
    let of = |reason, message: &str, event| PodState {
        isolated: false,
        reason,
        message: message.to_owned(),
        event,
    };
    if instance.state == State::Releasing {
        return of("Releasing", "it is being deregistered", None);
    }
    if let Some(broken) = broken(instance) {
        return broken;
    }
    let is_container = instance.isolation == Isolation::Container;
    let why = instance.not_isolated.as_ref().map_or("", |why| why.text.as_str());
    match instance.state {
        State::Isolated => isolated(instance, is_container),
        State::Pinned => {
            let is_wanted = instance.pinned_reason.is_none_or(model::PinnedReason::is_wanted);
            let kind = if is_wanted {
                EventKind::Normal
            } else {
                EventKind::Warning
            };
            let who = if is_container {
                "its container has"
            } else {
                "its vCPUs are pinned to"
            };
            let (more, event) = unfinished_resize(instance);
            let message = format!("{who} the CPUs {cpus}, without a partition that keeps others off: {why}{more}");
            of("Pinned", &message, Some(event.unwrap_or(kind)))
        }
        State::Shared => of("Shared", why, None),
        _ if is_container => of("Waiting", WITHOUT_PARTITION, None),
        _ if now_us.saturating_sub(instance.state_since_us) > MAX_WAIT_US => of(
            WAITING_TOO_LONG,
            "its vCPUs have had no CPUs of their own for more than 120 s: it runs on shared CPUs",
            Some(EventKind::Warning),
        ),
        _ => of("Waiting", why, None),
    }
}

/// The state of an isolated instance, with what a resize left undone.
fn isolated(instance: &model::Instance, is_container: bool) -> PodState {
    let cpus = &instance.exclusive;
    let who = if is_container {
        format!("its container has the CPUs {cpus} to itself")
    } else {
        format!("its vCPUs have the CPUs {cpus} to themselves")
    };
    let (more, event) = unfinished_resize(instance);
    PodState {
        isolated: true,
        reason: "Isolated",
        message: format!("{who}{more}"),
        event: Some(event.unwrap_or(EventKind::Normal)),
    }
}

/// What the message of an instance's condition says of a resize that waits or was not followed, and the kind of its event.
fn unfinished_resize(instance: &model::Instance) -> (String, Option<EventKind>) {
    let mut reasons = instance.degraded.iter();
    let crowded = reasons.find(|reason| reason.code == ReasonCode::TooManyVcpus);
    match (instance.pending_resize, crowded) {
        (Some(resize), _) => (
            format!(
                "; {} of these {} CPUs remain, and vCPUs are being unplugged",
                resize.to, resize.from
            ),
            None,
        ),
        (None, Some(reason)) => (format!("; {}", reason.text), Some(EventKind::Warning)),
        (None, None) => (String::new(), None),
    }
}

/// The first of its reasons of degradation that the promise does not survive, with all such reasons in words.
fn broken(instance: &model::Instance) -> Option<PodState> {
    let breaking = |reason: &&Reason| breaks(reason.code, reason.pod.as_ref() == Some(&instance.pod)).is_some();
    let reasons: Vec<Reason> = instance.degraded.iter().filter(breaking).cloned().collect();
    let first = reasons.first()?;
    Some(PodState {
        isolated: false,
        reason: breaks(first.code, true)?,
        message: joined(&visible_to(&reasons, &instance.pod)),
        event: Some(EventKind::Warning),
    })
}

/// What it is called where, for this reason, others may run on the vCPUs' CPUs, or they elsewhere. `own`: the reason is of this pod alone.
fn breaks(code: ReasonCode, own: bool) -> Option<&'static str> {
    match code {
        ReasonCode::Evicted | ReasonCode::CpusInUse => Some("Evicted"),
        ReasonCode::CpusOffline => Some("CpusOffline"),
        ReasonCode::PartitionChanged => Some("PartitionInvalid"),
        ReasonCode::ThreadMoved => Some("ThreadMoved"),
        // The code does not tell which step it was. For a step that all instances share, the partition shows whether it matters.
        ReasonCode::StepFailed if own => Some("StepFailed"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
