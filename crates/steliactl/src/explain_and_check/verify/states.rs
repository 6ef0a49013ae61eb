//! How many VMs are in which state, and why those that are not isolated are not.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Serialize;
use stelia_api::{ReasonKind, State, Word};
use stelia_kubelet::PodUid;
use stelia_model::{Instance, Node};
use stelia_settings::Isolation;

use super::{Finding, Kind};
use crate::shared::daemon::{Pod, Why, named, not_isolated};

/// The least that is asked of every VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Required {
    /// The VM is registered, on whatever CPUs its vCPUs run
    Floating,
    /// Its vCPUs are pinned and other tasks are kept off their CPUs
    Contained,
    /// The kernel keeps every other task off its CPUs
    Isolated,
}

impl Required {
    fn name(self) -> &'static str {
        let state = match self {
            Self::Floating => State::Floating,
            Self::Contained => State::Contained,
            Self::Isolated => State::Isolated,
        };
        state.name()
    }

    /// What a state amounts to; `None`: less than floating, or a state that only a newer daemon knows.
    fn of(state: &Word<State>) -> Option<Self> {
        match state.known()? {
            State::Floating => Some(Self::Floating),
            State::Contained => Some(Self::Contained),
            State::Isolated => Some(Self::Isolated),
            State::Registered | State::Leaving => None,
        }
    }
}

/// A VM that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct CheckedVm {
    #[serde(flatten)]
    pub(super) pod: Pod,
    pub(super) state: Word<State>,
    isolation: Word<Isolation>,
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
            state: instance.state.clone(),
            isolation: instance.isolation.clone(),
            why: reason.as_ref().map(|why| why.text.clone()),
            waits_since_us: reason.as_ref().and_then(|why| why.since_us),
            reason,
        }
    }

    /// A finding if it has less than is required. An evicted VM has one already, of its CPUs.
    pub(super) fn below(&self, required: Required, now: u64) -> Option<Finding> {
        if Required::of(&self.state) >= Some(required) {
            return None;
        }
        let why = self.reason.as_ref();
        let because = why.map(|why| format!(": {}", why.at(now))).unwrap_or_default();
        let (state, required) = (&self.state, required.name());
        let without_time = why.map(|why| format!(": {}", why.text)).unwrap_or_default();
        Some(Finding {
            pod: self.pod.clone(),
            vms: 1,
            kind: Kind::BelowRequired,
            problem: format!("{state}, {required} is required{because}"),
            common: Some(format!("{state}, {required} is required{without_time}")),
            since_us: why.and_then(|why| why.since_us),
            cure: why.map_or_else(
                || "steliactl explain VM: where it is in its life".to_owned(),
                |why| why.cure.clone(),
            ),
            section: None,
        })
    }
}

/// `2 isolated, 1 floating (vCPUs not attached for 3 min: team-a/web)`
pub(super) fn summary(vms: &[CheckedVm], now: u64) -> String {
    let mut by_state: BTreeMap<(usize, &str), Vec<&CheckedVm>> = BTreeMap::new();
    for one in vms {
        // The best first.
        let rank = Required::of(&one.state).map_or(3, |state| 2 - state as usize);
        by_state.entry((rank, one.state.name())).or_default().push(one);
    }
    let parts = by_state.into_iter().map(|((_, state), vms)| {
        let (count, reasons) = (vms.len(), reasons(&vms, now));
        match reasons.is_empty() {
            true => format!("{count} {state}"),
            false => format!("{count} {state} ({reasons})"),
        }
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Each reason once, with the longest wait, and the first names of VMs that float; with its count where there are several.
fn reasons(vms: &[&CheckedVm], now: u64) -> String {
    let mut found: BTreeMap<&str, (Vec<&Pod>, Why)> = BTreeMap::new();
    let floats = vms.iter().all(|one| one.state == State::Floating);
    for (pod, why) in vms.iter().filter_map(|one| Some((&one.pod, one.reason.as_ref()?))) {
        let (pods, longest) = found.entry(&why.text).or_insert_with(|| (Vec::new(), why.clone()));
        pods.push(pod);
        longest.since_us = longest.since_us.min(why.since_us);
    }
    let alone = found.len() == 1;
    let words = found.into_values().map(|(pods, why)| {
        // A floating VM has no finding of its own, so that its name is nowhere else.
        let names = if floats {
            format!(": {}", named(&pods))
        } else {
            String::new()
        };
        match alone {
            true => why.at(now) + &names,
            false => format!("{} {}{names}", pods.len(), why.at(now)),
        }
    });
    words.collect::<Vec<_>>().join("; ")
}

/// What is wrong with the node, whether it has a VM or not.
pub(super) fn of_node(node: &Node) -> Vec<Finding> {
    let kubelet = node.kubelet_problem.iter().map(|problem| {
        let problem = format!("kubelet's state cannot be used: {problem}");
        Finding::of_kind(ReasonKind::KubeletUnusable, problem)
    });
    let finding = |problem: String, cure: &str, section: &str| Finding {
        pod: Pod::unnamed("-"),
        vms: 0,
        kind: Kind::Node,
        problem,
        cure: cure.to_owned(),
        section: Some(section.to_owned()),
        common: None,
        since_us: None,
    };
    let systemd = node.systemd_problem.iter().map(|problem| {
        let cure = "systemctl list-jobs; cat /proc/1/stack";
        finding(problem.clone(), cure, "the-daemon-does-not-run")
    });
    let unreadable = node.unreadable.iter().map(|(scope, reason)| {
        finding(
            format!("{scope} is not touched: {reason}"),
            "restart its container; upgrade steliad if a newer one made it",
            "isolated-but-degraded-is-not-empty",
        )
    });
    kubelet.chain(systemd).chain(unreadable).collect()
}
