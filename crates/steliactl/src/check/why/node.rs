//! The node: what is wrong on it, who assigns CPUs, the pools, and kubelet's file.

use std::path::Path;

use serde::Serialize;
use serde_json::json;
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::home;
use stelia_settings::load;

use super::Answer;
use crate::check::doctor::{StateFile, state_file};
use crate::shared::daemon::{Condition, Description, OnlineCpus, Pods, counts};
use crate::shared::kernel::{Roots, host_name};
use crate::shared::output::{Render, TextStyle, counted};

/// The facts about the node, and what steliad reads from kubelet's file.
#[derive(Serialize)]
pub(super) struct NodeAnswer {
    #[serde(flatten)]
    pub answer: Answer,
    kubelet_file: Option<StateFile>,
    #[serde(skip)]
    has_problems: bool,
}

impl Render for NodeAnswer {
    /// The file is printed where it may explain a problem, and where everything is (`-l`).
    fn text(&self, style: TextStyle) -> String {
        let is_wanted = self.has_problems || style.wide || style.width.is_none();
        let file = self.kubelet_file.iter().filter(|_| is_wanted);
        let file = file.map(|file| format!("\n{}", file.text(style)));
        self.answer.text(style) + &file.collect::<String>()
    }
}

/// `pods` has the names of pods, VMs or not.
pub(super) fn answer(description: &Description, pods: &Pods, roots: &Roots, root: &Path) -> NodeAnswer {
    let (node, problems) = (&description.node, &description.problems);
    let settings = load(root).map(|loaded| loaded.settings).unwrap_or_default();
    let home = home::by_setting(&settings.kubelet_root, root, None).ok();
    let mut kubelet_file = home.map(|home| state_file(&home.join(CPU_MANAGER_STATE), root, pods));
    if let Some(file) = &mut kubelet_file {
        let fix = file.fix();
        file.is_told = !fix.is_empty() && problems.iter().any(|problem| problem.fix == fix);
    }
    let cpus = OnlineCpus::of(description);
    let has = match problems.len() as u64 {
        0 => "no problems".to_owned(),
        count => counted(count, "problem"),
    };
    let details = json!({ "problems": problems, "cpu_source": node.cpu_source, "cpus": cpus });
    let mut answer = Answer::new(format!("{} has {has}", host_name(&roots.proc)), &details);
    for problem in problems {
        answer.reason("Problem", problem);
    }
    let policy = node.kubelet_policy.as_ref();
    let policy = policy.map_or(String::new(), |policy| format!(" (CPU manager policy {policy})"));
    answer.say("Assigned", format!("by {}{policy}", node.cpu_source.name()));
    for (label, cpus) in [
        ("VMs", &cpus.exclusive),
        ("Pods", &cpus.pods),
        ("Shared", &cpus.shared),
        ("Reserved", &cpus.reserved),
        ("Unknown", &cpus.unknown),
        ("Offline", &node.offline),
    ] {
        if !cpus.is_empty() {
            answer.say(label, format!("{}: {cpus}", counted(cpus.len() as u64, "CPU")));
        }
    }
    if !node.instances.is_empty() {
        answer.say("States", counts(node.instances.values().map(|one| Condition::of(one))));
    }
    NodeAnswer {
        answer,
        kubelet_file,
        has_problems: !problems.is_empty(),
    }
}
