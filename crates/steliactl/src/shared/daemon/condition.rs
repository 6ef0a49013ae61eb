//! How a VM is: its word in the column STATE, its reasons, and its place in a list, trouble first.

use serde::Serialize;
use stelia_api::{Reason, State};
use stelia_cpus::CpuSet;
use stelia_cpus::text::named;
use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::PodUid;
use stelia_model::{Instance, PinnedReason};

use super::pod::Pod;
use crate::shared::output::{Meaning, TextStyle, counted, facts, natural};

named! {
    /// The state, or that something is wrong with the VM; in the order of a list.
    #[derive(Default, PartialOrd, Ord)]
    pub(crate) enum Condition {
        /// kubelet gave its CPUs away, which is always in its reasons too.
        Evicted = "evicted",
        /// It has reasons of degradation, whatever its state.
        Degraded = "degraded",
        Waiting = "waiting",
        Pinned = "pinned",
        Releasing = "releasing",
        Shared = "shared",
        #[default]
        Isolated = "isolated",
    }
}

impl Condition {
    pub(crate) fn of(instance: &Instance) -> Self {
        match instance.state {
            State::Evicted => Self::Evicted,
            _ if !instance.degraded.is_empty() => Self::Degraded,
            State::Waiting => Self::Waiting,
            State::Pinned => Self::Pinned,
            State::Releasing => Self::Releasing,
            State::Shared => Self::Shared,
            State::Isolated => Self::Isolated,
        }
    }

    pub(crate) fn meaning(self) -> Meaning {
        match self {
            Self::Evicted | Self::Degraded => Meaning::Broken,
            Self::Waiting | Self::Pinned | Self::Releasing => Meaning::Attention,
            Self::Shared => Meaning::Plain,
            Self::Isolated => Meaning::Good,
        }
    }
}

/// "200 VMs: 189 isolated, 1 degraded, 10 waiting".
pub(crate) fn counts(all: impl IntoIterator<Item = Condition>) -> String {
    let all: Vec<Condition> = all.into_iter().collect();
    if all.is_empty() {
        return "no VMs".to_owned();
    }
    // What is well first, then as in a list.
    let mut order = Condition::ALL;
    order.rotate_right(1);
    let words = order.into_iter().filter_map(|one| {
        let count = all.iter().filter(|other| **other == one).count();
        (count > 0).then(|| format!("{count} {one}"))
    });
    let words: Vec<String> = words.collect();
    format!("{}: {}", counted(all.len() as u64, "VM"), words.join(", "))
}

/// The CPUs that it has alone. An evicted VM has none: it left, or must leave, those of its record.
pub(crate) fn own_cpus(instance: &Instance) -> CpuSet {
    match instance.state {
        State::Evicted => CpuSet::new(),
        _ => instance.exclusive.clone(),
    }
}

/// Who assigned its CPUs. A node whose setting was changed has VMs of both.
pub(crate) fn assigned_by(instance: &Instance) -> &'static str {
    match instance.allocation {
        Some(_) => CpuSource::Steliad.name(),
        None => CpuSource::Kubelet.name(),
    }
}

/// Whether somebody should look at it: it is less than isolated, and nobody decided so.
pub(crate) fn is_in_trouble(instance: &Instance) -> bool {
    match Condition::of(instance) {
        Condition::Evicted | Condition::Degraded | Condition::Waiting => true,
        Condition::Pinned => !instance.pinned_reason.is_some_and(PinnedReason::is_wanted),
        Condition::Releasing | Condition::Shared | Condition::Isolated => false,
    }
}

/// What VMs are sorted by in a list: trouble first.
pub(crate) fn order(vm: &Instance) -> (Condition, Vec<(usize, String)>, PodUid) {
    let name = Pod::of(&vm.pod, vm).to_string();
    (Condition::of(vm), natural(&name), vm.pod.clone())
}

/// What is wrong with it, then why it is not isolated.
pub(crate) fn reasons(instance: &Instance) -> impl Iterator<Item = &Reason> {
    instance.degraded.iter().chain(&instance.not_isolated)
}

/// The first reason for a column; empty without one.
pub(crate) fn note(instance: &Instance) -> &'static str {
    reasons(instance).next().map_or("", |reason| reason.code.note())
}

/// What is wrong on the node with what follows from it, on one short line; `why node` has the details.
pub(crate) fn fact(problem: &Reason) -> String {
    match (problem.code.fact(), problem.code.effect()) {
        // A newer daemon's code.
        ("", _) => problem.text.clone(),
        (fact, effect) => format!("{fact}: {effect}"),
    }
}

/// A fact with its label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    pub label: &'static str,
    pub text: String,
}

/// What is told of something, a row each; as JSON a list.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Rows(pub Vec<Row>);

impl Rows {
    /// Nothing where the text is empty.
    pub(crate) fn say(&mut self, label: &'static str, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            self.0.push(Row { label, text });
        }
    }

    /// What follows or is to be done; once, whatever it is of.
    pub(crate) fn say_once(&mut self, label: &'static str, text: &str) {
        if !self.0.iter().any(|row| row.label == label && row.text == text) {
            self.say(label, text);
        }
    }

    /// A fact, with what follows and what is to be done. A command that only shows more is no fix.
    pub(crate) fn finding(&mut self, label: &'static str, text: &str, effect: &str, fix: &str) {
        self.say(label, text);
        self.say_once("Effect", effect);
        // The label is the verb.
        let told = fix.strip_prefix("run ").or_else(|| fix.strip_prefix("read "));
        let is_look = told.is_some()
            || ["steliactl ", "kubectl logs "]
                .iter()
                .any(|begins| fix.starts_with(begins));
        let fix = if fix == "none needed" { "" } else { told.unwrap_or(fix) };
        self.say_once(if is_look { "See" } else { "Fix" }, fix);
    }

    pub(crate) fn reason(&mut self, label: &'static str, reason: &Reason) {
        self.finding(label, &reason.text, reason.code.effect(), &reason.fix);
    }

    /// What is wrong with a VM, then why it is not isolated.
    pub(crate) fn reasons(&mut self, vm: &Instance) {
        vm.degraded.iter().for_each(|reason| self.reason("Problem", reason));
        vm.not_isolated.iter().for_each(|reason| self.reason("Because", reason));
    }

    /// Lines that begin with `indent`. Of plain rows with one label the first has it.
    pub(crate) fn text(&self, indent: &str, style: TextStyle) -> String {
        let mut before = "";
        let line = |row: &Row| {
            let meaning = match row.label {
                "Problem" | "Slow" => Meaning::Broken,
                "Also" | "Because" | "Node" | "Resize" | "Remote" => Meaning::Attention,
                _ => Meaning::Plain,
            };
            let is_same = row.label == before && meaning == Meaning::Plain;
            before = row.label;
            let label = if is_same { "" } else { row.label };
            (format!("{indent}{label}"), row.text.clone(), meaning)
        };
        facts(&self.0.iter().map(line).collect::<Vec<_>>(), style)
    }
}

/// How long ago something was, both in microseconds since the epoch: "46s", "6m", "2h", "9d"; empty where it is not known.
pub(crate) fn age(since: u64, now: u64) -> String {
    match now.saturating_sub(since) / 1_000_000 {
        _ if since == 0 => String::new(),
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use stelia_api::ReasonCode;

    use super::*;

    fn vm(state: State, degraded: &[ReasonCode]) -> Instance {
        Instance {
            state,
            degraded: degraded.iter().map(|code| Reason::of_node(*code, "x")).collect(),
            ..Instance::default()
        }
    }

    #[test]
    fn what_is_wrong_comes_before_the_state_and_trouble_is_first() {
        let mut all = [
            vm(State::Isolated, &[]),
            vm(State::Shared, &[]),
            vm(State::Waiting, &[]),
            vm(State::Isolated, &[ReasonCode::CpusetChanged, ReasonCode::CpusOffline]),
            vm(State::Evicted, &[ReasonCode::Evicted]),
            vm(State::Pinned, &[]),
        ];
        all.sort_by_key(Condition::of);
        let shown = all
            .each_ref()
            .map(|one| (Condition::of(one).name(), note(one), is_in_trouble(one)));
        assert_eq!(
            shown,
            [
                ("evicted", "CPUs taken", true),
                ("degraded", "cpuset changed", true),
                ("waiting", "", true),
                ("pinned", "", true),
                ("shared", "", false),
                ("isolated", "", false),
            ]
        );
        let counted = counts(all.iter().chain(&all[5..]).map(Condition::of));
        assert_eq!(
            counted,
            "7 VMs: 2 isolated, 1 evicted, 1 degraded, 1 waiting, 1 pinned, 1 shared"
        );
        assert_eq!(counts([]), "no VMs");
        let wanted = Instance {
            pinned_reason: Some(PinnedReason::Setting),
            ..vm(State::Pinned, &[])
        };
        assert!(!is_in_trouble(&wanted));
        let had = |state| Instance {
            exclusive: "4-5".parse().unwrap(),
            ..vm(state, &[])
        };
        let own = [State::Isolated, State::Evicted].map(|state| own_cpus(&had(state)).to_string());
        assert_eq!(own, ["4-5", ""]);
    }

    #[test]
    fn ages_have_one_unit() {
        let of = |seconds: u64| age(1, 1 + seconds * 1_000_000);
        assert_eq!([5, 125, 7_200, 900_000].map(of), ["5s", "2m", "2h", "10d"]);
        // The clock was set back; the time is not known.
        assert_eq!([age(2_000_000, 0), age(0, 5)], ["0s", ""]);
    }
}
