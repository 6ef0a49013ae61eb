//! How many VMs are in which state, and why those that are not isolated are not.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Serialize;
use stelia_api::State;
use stelia_kubelet::PodUid;
use stelia_model::Instance;
use stelia_settings::Isolation;

use super::{Demands, Finding, Kind};
use crate::shared::daemon::{Pod, Why, named, not_isolated};

/// The time that a VM may wait for its vCPUs: a VMM has started by then.
const MAX_WAIT_US: u64 = 60_000_000;

/// The least that is asked of every VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Required {
    /// The VM is registered, on whatever CPUs its vCPUs run
    Floating,
    /// Its vCPUs are pinned and other tasks are kept off their CPUs
    Pinned,
    /// The kernel keeps every other task off its CPUs
    Isolated,
}

impl Required {
    fn name(self) -> &'static str {
        let state = match self {
            Self::Floating => State::Waiting,
            Self::Pinned => State::Pinned,
            Self::Isolated => State::Isolated,
        };
        state.name()
    }

    /// What a state amounts to; `None`: less than floating.
    fn of(state: State) -> Option<Self> {
        match state {
            State::Waiting => Some(Self::Floating),
            State::Pinned => Some(Self::Pinned),
            State::Isolated => Some(Self::Isolated),
            State::Shared | State::Evicted | State::Releasing => None,
        }
    }
}

/// A VM that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct CheckedVm {
    #[serde(flatten)]
    pub(super) pod: Pod,
    pub(super) state: State,
    isolation: Isolation,
    /// Why it is not isolated; `None` where it is.
    why: Option<String>,
    /// Since when it waits.
    waits_since_us: Option<u64>,
    #[serde(skip)]
    reason: Option<Why>,
}

impl CheckedVm {
    pub(super) fn at(uid: &PodUid, instance: &Instance) -> Self {
        let reason = not_isolated(instance);
        Self {
            pod: Pod::of(uid, instance),
            state: instance.state,
            isolation: instance.isolation,
            why: reason.as_ref().map(|why| why.text.clone()),
            waits_since_us: reason.as_ref().and_then(|why| why.since_us),
            reason,
        }
    }

    /// A finding if it has less than is required, or has waited too long. An evicted VM has one already, of its CPUs.
    pub(super) fn short_of(&self, demands: Demands, now: u64) -> Option<Finding> {
        let below = demands.require.filter(|least| Required::of(self.state) < Some(*least));
        let below = below.filter(|_| !demands.allow_waiting || self.waits_since_us.is_none());
        let (kind, state) = match (below, self.waits_since_us) {
            (Some(least), _) => {
                let state = format!("{}, {} is required", self.state, least.name());
                (Kind::BelowRequired, state)
            }
            (None, Some(since)) if now.saturating_sub(since) > MAX_WAIT_US => (Kind::Waiting, self.state.to_string()),
            _ => return None,
        };
        let why = self.reason.as_ref();
        let because = |words: fn(&Why, u64) -> String| match why {
            Some(why) => format!("{state}: {}", words(why, now)),
            None => state.clone(),
        };
        let cure = why.map_or("steliactl why VM: where it is in its life", |why| &why.cure);
        Some(Finding {
            common: Some(because(|why, _| why.text.clone())),
            since_us: self.waits_since_us,
            section: (kind == Kind::Waiting).then(|| "an-instance-stays-floating".to_owned()),
            ..Finding::new(self.pod.clone(), kind, because(Why::since), cure)
        })
    }
}

/// `2 isolated, 1 floating (vCPUs not attached for 3 min: team-a/web)`
pub(super) fn summary(vms: &[CheckedVm], now: u64) -> String {
    let mut by_state: BTreeMap<(usize, &str), Vec<&CheckedVm>> = BTreeMap::new();
    for one in vms {
        // The best first.
        let rank = Required::of(one.state).map_or(3, |state| 2 - state as usize);
        by_state.entry((rank, one.state.name())).or_default().push(one);
    }
    let parts = by_state.into_iter().map(|((_, state), vms)| {
        let (count, reasons) = (vms.len(), reasons(&vms, now));
        if reasons.is_empty() {
            format!("{count} {state}")
        } else {
            format!("{count} {state} ({reasons})")
        }
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Each reason once, with the longest wait, and the first names of VMs that float; with its count where there are several.
fn reasons(vms: &[&CheckedVm], now: u64) -> String {
    let mut found: BTreeMap<&str, (Vec<&Pod>, Why)> = BTreeMap::new();
    let floats = vms.iter().all(|one| one.state == State::Waiting);
    for (pod, why) in vms.iter().filter_map(|one| Some((&one.pod, one.reason.as_ref()?))) {
        let (pods, longest) = found.entry(&why.text).or_insert_with(|| (Vec::new(), why.clone()));
        pods.push(pod);
        longest.since_us = longest.since_us.min(why.since_us);
    }
    let alone = found.len() == 1;
    let words = found.into_values().map(|(pods, why)| {
        // A VM that floats may have no finding of its own, so that its name is nowhere else.
        let names = if floats {
            format!(": {}", named(&pods))
        } else {
            String::new()
        };
        if alone {
            why.at(now) + &names
        } else {
            format!("{} {}{names}", pods.len(), why.at(now))
        }
    });
    words.collect::<Vec<_>>().join("; ")
}
