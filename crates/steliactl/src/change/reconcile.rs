//! `reconcile`: runs a pass and prints its report, or the steps it would begin with.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value};
use stelia_api::State;

use crate::shared::daemon::{
    Client, Description, Failure, Pod, Pods, Why, fold, in_common, lines_by_pod, not_isolated, to_do, whose,
};
use crate::shared::output::{Render, TextStyle, human, now, paragraph, printable, properties, texts_of};

/// The members' order in the D-Bus contract.
const ORDER: [&str; 5] = ["pass", "steps", "writes", "moves", "repaired"];
const DEGRADED: &str = "degraded";
const FLOATS: &str = "floats";
const CURE: &str = "cure";
/// The number of reasons of degradation that a dry run prints; of one more, it prints all.
const MAX_REASONS: usize = 5;
/// The UID of what is of the whole node.
const NODE: &str = "-";

/// How many VMs an answer calls degraded, as a sentence; `None`: none.
fn degraded_vms(report: &Map<String, Value>) -> Option<String> {
    let pods = lines_by_pod(report, DEGRADED).map(|(uid, _)| uid);
    match pods.filter(|uid| *uid != NODE).collect::<BTreeSet<_>>().len() {
        0 => None,
        1 => Some("1 VM is degraded".to_owned()),
        vms => Some(format!("{vms} VMs are degraded")),
    }
}

/// What helps against each reason of degradation, by the reason's text.
type Cures = BTreeMap<String, String>;

fn cures(described: &Description) -> Cures {
    let reasons = described.node.instances.values().flat_map(|one| &one.degraded);
    reasons
        .map(|reason| (reason.text.clone(), to_do(reason.kind, &reason.text)))
        .collect()
}

/// Floating VMs with the same reason, which is not one of degradation.
#[derive(Debug, PartialEq, Eq)]
struct Floating {
    pods: Vec<Pod>,
    /// With the time of the one that waits longest.
    why: Why,
}

/// Why VMs float, each reason once. A VM with reasons of degradation of its own has those.
fn floating(described: &Description) -> Vec<Floating> {
    let mut all: Vec<Floating> = Vec::new();
    let instances = described.node.instances.iter();
    let floats =
        instances.filter(|(_, one)| one.state == State::Floating && one.degraded.iter().all(|why| why.of_node));
    for (pod, why) in floats.filter_map(|(uid, one)| Some((Pod::of(uid, one), not_isolated(one)?))) {
        match all.iter_mut().find(|known| known.why.text == why.text) {
            Some(known) => {
                known.pods.push(pod);
                known.why.since_us = known.why.since_us.min(why.since_us);
            }
            None => all.push(Floating { pods: vec![pod], why }),
        }
    }
    all
}

/// The answer of a pass.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Report {
    report: Map<String, Value>,
    #[serde(skip)]
    pods: Pods,
    #[serde(skip)]
    cures: Cures,
    #[serde(skip)]
    floating: Vec<Floating>,
    /// Microseconds since the epoch.
    #[serde(skip)]
    now: u64,
}

/// Runs a pass.
///
/// # Errors
/// The daemon refuses or does not answer.
pub(crate) async fn gather(client: &Client) -> Result<Report, Failure> {
    let report = client.reconcile(false).await?;
    // The pass has run whether or not the names are known.
    let described = client.describe().await.ok();
    let pods = described.as_ref().map(Pods::of).unwrap_or_default();
    let cures = described.as_ref().map(cures).unwrap_or_default();
    let floating = described.as_ref().map(floating).unwrap_or_default();
    Ok(Report {
        report,
        pods,
        cures,
        floating,
        now: now(),
    })
}

impl Report {
    /// What the exit code, which is of the pass, does not say: that VMs are degraded after it. The answer has the reasons.
    pub(crate) fn note(&self) -> Option<String> {
        let degraded = degraded_vms(&self.report)?;
        Some(format!("the pass succeeded; {degraded}"))
    }
}

/// What is degraded, each reason once with the VMs that have it, and what helps.
fn degraded<'a>(report: &Map<String, Value>, pods: &Pods, cures: &'a Cures) -> Vec<(String, Option<&'a str>)> {
    let reasons: Vec<(Pod, &str)> = texts_of(report, DEGRADED)
        .map(|line| match line.split_once(": ") {
            Some((uid, reason)) => (pods.get(uid), reason),
            None => (Pod::unnamed(NODE), line),
        })
        .collect();
    let mut folded = fold(reasons.iter().map(|(pod, reason)| (pod, *reason)));
    folded.sort_by_key(|(pods, _)| std::cmp::Reverse(pods.len()));
    let lines = folded.into_iter().map(|(pods, reason)| {
        let line = match pods.as_slice() {
            [pod] if pod.pod_uid == NODE => reason.to_owned(),
            pods => format!("{}: {reason}", whose(pods)),
        };
        (line, cures.get(reason).map(String::as_str))
    });
    lines.collect()
}

impl Render for Report {
    fn text(&self, style: TextStyle) -> String {
        let rank = |name: &str| ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len());
        let others = self.report.iter().filter(|(name, _)| *name != DEGRADED);
        let mut rows: Vec<(&str, String)> = others.map(|(name, value)| (name.as_str(), human(value))).collect();
        rows.sort_by_key(|(name, _)| rank(name));
        match degraded(&self.report, &self.pods, &self.cures) {
            none if none.is_empty() => rows.push((DEGRADED, String::new())),
            reasons => {
                for (reason, cure) in reasons {
                    rows.push((DEGRADED, reason));
                    rows.extend(cure.map(|cure| (CURE, cure.to_owned())));
                }
            }
        }
        for Floating { pods, why } in &self.floating {
            let pods: Vec<&Pod> = pods.iter().collect();
            rows.push((FLOATS, format!("{}: {}", whose(&pods), why.at(self.now))));
            rows.push((CURE, why.cure.clone()));
        }
        properties(rows, style)
    }
}

/// The answer of a dry run.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Steps {
    report: Map<String, Value>,
    #[serde(skip)]
    pods: Pods,
    #[serde(skip)]
    cures: Cures,
    #[serde(skip)]
    floating: Vec<Floating>,
    /// Microseconds since the epoch.
    #[serde(skip)]
    now: u64,
}

/// The steps that a pass would begin with.
///
/// # Errors
/// The daemon refuses or does not answer.
pub(crate) async fn preview(client: &Client) -> Result<Steps, Failure> {
    let report = client.reconcile(true).await?;
    let described = client.describe().await?;
    Ok(Steps {
        report,
        pods: Pods::of(&described),
        cures: cures(&described),
        floating: floating(&described),
        now: now(),
    })
}

impl Steps {
    /// The steps in their order, each kind once with its number and the VMs that have it.
    fn folded(&self) -> Vec<String> {
        let mut kinds: Vec<(String, Vec<(Pod, &str)>)> = Vec::new();
        for (uid, step) in lines_by_pod(&self.report, "plan") {
            let kind = match uid {
                NODE => step.to_owned(),
                _ => in_common(step),
            };
            let one = (self.pods.get(uid), step);
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, steps)) => steps.push(one),
                None => kinds.push((kind, vec![one])),
            }
        }
        let lines = kinds.into_iter().map(|(kind, steps)| match steps.as_slice() {
            [(pod, step)] => line(pod, step),
            steps => {
                let pods = fold(steps.iter().map(|(pod, _)| (pod, ())));
                let pods = pods.first().map(|(pods, ())| whose(pods)).unwrap_or_default();
                format!("{pods}: {} ({} steps)\n", printable(&kind), steps.len())
            }
        });
        lines.collect()
    }
}

impl Steps {
    /// Which VMs are degraded or float now, after these words.
    fn trouble(&self, sentence: &str, style: TextStyle) -> String {
        let mut degraded = degraded(&self.report, &self.pods, &self.cures);
        let more = if degraded.len() > MAX_REASONS + 1 {
            degraded.split_off(MAX_REASONS).len()
        } else {
            0
        };
        let degraded = degraded.into_iter().map(|(reason, cure)| match cure {
            // A command ends the line: with a full stop it would be another one.
            Some(cure) => format!("Degraded: {reason}. What helps: {cure}"),
            None => format!("Degraded: {reason}"),
        });
        let more = (more > 0).then(|| format!("{more} more reasons of degradation: steliactl verify has them"));
        let floating = self.floating.iter().map(|Floating { pods, why }| {
            let floats = match pods.len() {
                1 => "1 VM floats".to_owned(),
                _ => format!("{} float", whose(&pods.iter().collect::<Vec<_>>())),
            };
            format!("{floats}: {}. What helps: {}", why.at(self.now), why.cure)
        });
        let lines = degraded.chain(more).chain(floating).map(|line| printable(&line));
        let sum = degraded_vms(&self.report)
            .map(|vms| format!("{vms}.\n"))
            .unwrap_or_default();
        let lines = lines.collect::<Vec<_>>().join("\n");
        paragraph(&format!("{sentence} {sum}{lines}"), style)
    }

    /// Whether VMs are degraded or float.
    fn has_trouble(&self) -> bool {
        degraded_vms(&self.report).is_some() || !self.floating.is_empty()
    }
}

fn line(pod: &Pod, step: &str) -> String {
    format!("{pod}: {}\n", printable(step))
}

impl Render for Steps {
    fn text(&self, style: TextStyle) -> String {
        let each = || lines_by_pod(&self.report, "plan").map(|(uid, step)| line(&self.pods.get(uid), step));
        let lines = if style.wide { each().collect() } else { self.folded() };
        match lines.concat() {
            none if none.is_empty() && self.has_trouble() => self.trouble("A pass would do nothing.", style),
            none if none.is_empty() => "Nothing to do.\n".to_owned(),
            steps => {
                let steps = if style.wide { steps } else { paragraph(&steps, style) };
                if self.has_trouble() {
                    // The daemon looked at the node as it is.
                    steps + "\n" + &self.trouble("Before these steps:", style)
                } else {
                    steps
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stelia_api::{Reason, ReasonKind};

    use super::*;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};

    /// They have waited since the first second.
    fn waiting(uids: &[&str]) -> Floating {
        Floating {
            pods: uids.iter().copied().map(Pod::unnamed).collect(),
            why: Why {
                text: "vCPUs not attached".to_owned(),
                since_us: Some(1_000_000),
                cure: "look there".to_owned(),
            },
        }
    }

    #[test]
    fn vms_that_float_for_the_same_reason_are_together_and_degraded_ones_have_their_own() {
        let mut described = node();
        for pod in &PODS[..2] {
            let instance = instance_mut(&mut described, pod);
            instance.state = State::Floating;
            instance.registered_us = 1_000_000;
            instance.degraded = Vec::new();
            instance.vcpus = Vec::new();
            instance.allocation = None;
        }
        instance_mut(&mut described, PODS[1]).registered_us = 500_000;
        let found = floating(&described);
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((one.pods.len(), one.why.since_us), (2, Some(500_000)));
        let own = Reason::of(&Default::default(), ReasonKind::CpusOffline, "CPU 2 is offline");
        instance_mut(&mut described, PODS[1]).degraded = vec![own];
        assert_eq!(floating(&described)[0].pods.len(), 1);
        instance_mut(&mut described, PODS[0]).state = State::Isolated;
        assert_eq!(floating(&described), []);
    }

    #[test]
    fn a_reason_that_many_vms_have_is_one_row_with_their_names_and_its_cure() {
        let pods = ["u1", "u2", "u3", "u4"].map(|uid| Pod {
            pod_uid: uid.to_owned(),
            pod_namespace: "team-a".to_owned(),
            pod_name: format!("vm-{uid}"),
        });
        let mut degraded: Vec<String> = pods.iter().map(|pod| format!("{}: no file: x", pod.pod_uid)).collect();
        degraded.push("u2: CPUs 4 are offline".to_owned());
        let report = json!({"degraded": degraded, "moves": 0, "pass": 7});
        let report = Report {
            report: report.as_object().cloned().unwrap(),
            pods: pods.into_iter().collect(),
            cures: BTreeMap::from([("no file: x".to_owned(), "make the file".to_owned())]),
            floating: vec![waiting(&["u5", "u6"])],
            now: 181_000_000,
        };
        insta::assert_snapshot!(report.text(TextStyle::from(true)), @"
        pass:      7
        moves:     0
        degraded:  4 VMs (team-a/vm-u1, team-a/vm-u2, team-a/vm-u3, team-a/vm-u4): no file: x
        cure:      make the file
        degraded:  team-a/vm-u2: CPUs 4 are offline
        floats:    2 VMs (u5, u6): vCPUs not attached for 3 min
        cure:      look there
        ");
        assert_eq!(report.note().unwrap(), "the pass succeeded; 4 VMs are degraded");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["degraded"].as_array().map(Vec::len), Some(5));
    }

    #[test]
    fn without_a_reason_there_is_a_dash() {
        let report = Report {
            report: Map::from_iter([(DEGRADED.to_owned(), json!([]))]),
            pods: Pods::default(),
            cures: Cures::default(),
            floating: Vec::new(),
            now: 0,
        };
        assert_eq!(report.text(TextStyle::from(true)), "degraded:  -\n");
        assert_eq!(report.note(), None);
    }

    #[test]
    fn the_cure_is_that_of_the_reasons_kind_and_text() {
        let mut described = node();
        let text = "kubelet's state cannot be used: the file has checksum 1, its content gives 2";
        let reason = Reason::of_node(ReasonKind::KubeletUnusable, text);
        instance_mut(&mut described, PODS[0]).degraded = vec![reason];
        let cures = cures(&described);
        assert_eq!(cures.get(text), Some(&to_do(ReasonKind::KubeletUnusable, text)));
    }

    #[test]
    fn where_a_pass_would_do_nothing_degraded_vms_are_mentioned() {
        let text = |degraded: &[&str], floating: Vec<Floating>| {
            let report = json!({"plan": [], "degraded": degraded});
            let steps = Steps {
                report: report.as_object().cloned().unwrap(),
                pods: Pods::default(),
                cures: BTreeMap::from([("no file".to_owned(), "make the file".to_owned())]),
                floating,
                now: 181_000_000,
            };
            steps.text(TextStyle::from(true))
        };
        assert_eq!(text(&[], Vec::new()), "Nothing to do.\n");
        assert_eq!(
            text(
                &["u1: no file", "u2: no file", "u2: CPUs 4 are offline", "-: no file"],
                Vec::new()
            ),
            "A pass would do nothing. 2 VMs are degraded.\n\
             Degraded: 3 VMs (-, u1, u2): no file. What helps: make the file\n\
             Degraded: u2: CPUs 4 are offline\n"
        );
        assert!(text(&["u1: no file"], Vec::new()).contains(" 1 VM is degraded.\n"));
        let many: Vec<String> = (0..9).map(|cpu| format!("u1: CPUs {cpu} are offline")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let answer = text(&many, Vec::new());
        assert!(
            answer.contains("CPUs 2 are")
                && answer.ends_with("\n4 more reasons of degradation: steliactl verify has them\n"),
            "{answer}"
        );
        assert_eq!(
            text(&[], vec![waiting(&["u1", "u2"])]),
            "A pass would do nothing. 2 VMs (u1, u2) float: vCPUs not attached for 3 min. What helps: look there\n"
        );
        assert!(text(&[], vec![waiting(&["u1"])]).contains(" 1 VM floats: "));
    }

    #[test]
    fn a_step_that_many_vms_need_is_one_line_and_wide_has_each() {
        let step =
            |uid: &str, cpus: &str| format!("{uid}: write \"{cpus}\" to cpuset.cpus of /stelia.slice/{uid}.scope");
        let plan = [
            step("u1", "4-5"),
            "u1: pin thread 70 to CPU 4".to_owned(),
            step("u2", "6-7"),
            "-: set CPUWeight=200 of stelia.slice".to_owned(),
        ];
        let steps = Steps {
            report: json!({ "plan": plan }).as_object().cloned().unwrap(),
            pods: Pods::default(),
            cures: Cures::default(),
            floating: Vec::new(),
            now: 0,
        };
        insta::assert_snapshot!(steps.text(TextStyle::from(true)), @"
        2 VMs (u1, u2): write … to cpuset.cpus of its cgroup (2 steps)
        u1: pin thread 70 to CPU 4
        -: set CPUWeight=200 of stelia.slice
        ");
        let wide = TextStyle {
            wide: true,
            ..TextStyle::from(true)
        };
        insta::assert_snapshot!(steps.text(wide), @r#"
        u1: write "4-5" to cpuset.cpus of /stelia.slice/u1.scope
        u1: pin thread 70 to CPU 4
        u2: write "6-7" to cpuset.cpus of /stelia.slice/u2.scope
        -: set CPUWeight=200 of stelia.slice
        "#);
    }
}
