//! The node: what is wrong on it, who assigns CPUs, and kubelet's file. `status` has the rest.

use std::path::Path;

use serde_json::json;
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::home;
use stelia_settings::load;

use super::Answer;
use crate::check::doctor::read_state_file;
use crate::shared::daemon::{Description, Pods};
use crate::shared::kernel::{Roots, host_name};
use crate::shared::output::{Render, TextStyle, counted};

/// The answer about the node; below it what steliad reads from kubelet's file, where that may explain a problem, and with everything (`-l`).
/// `pods` has the names of pods, VMs or not.
pub(super) fn answer(description: &Description, pods: &Pods, roots: &Roots, root: &Path, style: TextStyle) -> Answer {
    let (node, problems) = (&description.node, &description.problems);
    let settings = load(root).map(|loaded| loaded.settings).unwrap_or_default();
    let home = home::by_setting(&settings.kubelet_root, root, None).ok();
    let file = home.map(|home| read_state_file(&home.join(CPU_MANAGER_STATE), root, pods));
    let has = match problems.len() as u64 {
        0 => "no problems".to_owned(),
        count => counted(count, "problem"),
    };
    let details = json!({ "problems": problems, "cpu_source": node.cpu_source, "kubelet_file": file });
    let mut answer = Answer::new(format!("{} has {has}", host_name(&roots.proc)), details);
    for problem in problems {
        answer.reason("Problem", problem);
    }
    // A file that is damaged says nothing of the policy.
    let configured = description.kubelet_config["cpuManagerPolicy"].as_str();
    let policy = node.kubelet_policy.as_deref().or(configured);
    let policy = policy.map(|policy| format!(" (CPU manager policy {policy})"));
    answer.say(
        "Assigned",
        format!("by {}{}", node.cpu_source.name(), policy.unwrap_or_default()),
    );
    let is_all = style.wide || style.width.is_none();
    // Why the file cannot be used is among the problems.
    let shown = file.filter(|file| is_all || file.is_usable() && !problems.is_empty());
    answer.below = shown.map_or(String::new(), |file| format!("\n{}", file.text(style)));
    answer
}
