//! The node: what is wrong on it, who assigns CPUs, the pools, and kubelet's file.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::home;
use stelia_settings::load;

use super::{ASSIGNMENT, Answer, SETTINGS, STELIAD};
use crate::check::doctor;
use crate::shared::daemon::{Description, OnlineCpus};
use crate::shared::kernel::{Roots, host_name};
use crate::shared::output::{Render, TextStyle, counted};

/// The facts about the node; below them what steliad reads from kubelet's file.
pub(super) fn answer(description: &Description, roots: &Roots, root: &Path, style: TextStyle) -> Answer {
    let node = &description.node;
    let problems = description.problems.len() as u64;
    let mut answer = Answer {
        title: match problems {
            0 => format!("{} has no problems", host_name(&roots.proc)),
            count => format!("{} has {}", host_name(&roots.proc), counted(count, "problem")),
        },
        ..Answer::default()
    };
    for problem in &description.problems {
        answer.reason("Problem", problem);
    }
    let policy = node
        .kubelet_policy
        .iter()
        .map(|policy| format!(" (CPU manager policy {policy})"));
    let policy: String = policy.collect();
    answer.say("Assigned", format!("by {}{policy}", node.cpu_source.name()), SETTINGS);
    let cpus = OnlineCpus::of(description);
    for (label, cpus, source) in [
        ("VMs", &cpus.exclusive, STELIAD),
        ("Pods", &cpus.pods, ASSIGNMENT),
        ("Shared", &cpus.shared, ASSIGNMENT),
        ("Reserved", &cpus.reserved, SETTINGS),
        ("Unknown", &cpus.unknown, ASSIGNMENT),
        ("Offline", &node.offline, super::SYSTEM),
    ] {
        if !cpus.is_empty() {
            let count = counted(cpus.len() as u64, "CPU");
            answer.say(label, format!("{count}: {cpus}"), source);
        }
    }
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    for instance in node.instances.values() {
        *states.entry(instance.state.name()).or_default() += 1;
    }
    let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    if !states.is_empty() {
        answer.say("States", states.join(", "), STELIAD);
    }
    let settings = load(root).map(|loaded| loaded.settings).unwrap_or_default();
    let file = home::by_setting(&settings.kubelet_root, root, None);
    let file = file.map(|home| doctor::state_file(&home.join(CPU_MANAGER_STATE), root));
    answer.below = match &file {
        Ok(file) => format!("\n{}", file.text(style)),
        Err(_) => String::new(),
    };
    answer.details = json!({
        "problems": description.problems, "cpu_source": node.cpu_source, "cpus": cpus,
        "kubelet_file": file.ok(),
    })
    .as_object()
    .cloned()
    .unwrap_or_default();
    answer
}
