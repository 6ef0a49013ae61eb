//! The node: what is wrong on it, who assigns CPUs, the pools, and kubelet's file.

use std::path::Path;

use serde_json::json;
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::home;
use stelia_settings::load;

use super::Answer;
use crate::check::doctor::read_state_file;
use crate::shared::daemon::{
    Condition, Description, FORMER, OnlineCpus, Pod, Pods, counts, former_vms, restart, whose,
};
use crate::shared::kernel::{Roots, host_name};
use crate::shared::output::{Render, TextStyle, counted};

/// The answer about the node; below them what steliad reads from kubelet's file, where that may explain a problem, and with everything (`-l`).
/// `pods` has the names of pods, VMs or not.
pub(super) fn answer(description: &Description, pods: &Pods, roots: &Roots, root: &Path, style: TextStyle) -> Answer {
    let (node, problems) = (&description.node, &description.problems);
    let settings = load(root).map(|loaded| loaded.settings).unwrap_or_default();
    let home = home::by_setting(&settings.kubelet_root, root, None).ok();
    let file = home.map(|home| read_state_file(&home.join(CPU_MANAGER_STATE), root, pods));
    let cpus = OnlineCpus::of(description);
    let has = match problems.len() as u64 {
        0 => "no problems".to_owned(),
        count => counted(count, "problem"),
    };
    let details = json!({ "problems": problems, "cpu_source": node.cpu_source, "cpus": cpus, "kubelet_file": file });
    let mut answer = Answer::new(format!("{} has {has}", host_name(&roots.proc)), &details);
    for problem in problems {
        answer.reason("Problem", problem);
    }
    let policy = node
        .kubelet_policy
        .as_deref()
        .map_or(String::new(), |policy| format!(" (CPU manager policy {policy})"));
    answer.say("Assigned", format!("by {}{policy}", node.cpu_source.name()));
    for (label, cpus) in [
        ("VMs", &cpus.exclusive),
        ("Pods", &cpus.pods),
        ("Shared", &cpus.shared),
        ("Reserved", &cpus.reserved),
        ("Not known", &cpus.unknown),
        ("Offline", &node.offline),
    ] {
        if !cpus.is_empty() {
            answer.say(label, format!("{}: {cpus}", counted(cpus.len() as u64, "CPU")));
        }
    }
    let former: Vec<Pod> = former_vms(description).map(|(pod, _)| pod).collect();
    if !former.is_empty() {
        let whose = whose(&former.iter().collect::<Vec<_>>());
        answer.say("Released", format!("{whose}: {FORMER}; {}", restart(description)));
    }
    if !node.instances.is_empty() {
        answer.say("States", counts(node.instances.values().map(|one| Condition::of(one))));
    }
    let is_all = style.wide || style.width.is_none();
    // Why the file cannot be used is among the problems.
    let shown = file.filter(|file| is_all || file.reason.is_empty() && !problems.is_empty());
    answer.below = shown.map_or(String::new(), |file| format!("\n{}", file.text(style)));
    answer
}
