//! Whether kubelet would start: with its configuration, on this machine, and on its state files. Where it would not, systemd restarts it again and
//! again, and the node is lost to the cluster until an operator finds the reason.

use kubelet_planner::start_errors::{self as configured, StartProblem};
use stelia_kubelet::config::{HIDDEN, KubeletConfig};
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_node_plan::machine;
use stelia_node_plan::start::{StateFiles, problems, reads};

use super::Facts;
use super::checks::{Finding, failed, ok, unknown, warning};
use crate::plan::forgotten;
use crate::shared::files::UnusableState;

/// What to do about a configuration that cannot be read.
pub(super) const CORRECT: &str =
    "correct it before kubelet is restarted: a running kubelet keeps the settings that it read when it started";

/// What to do where k3s hides flags.
const UNHIDE: &str =
    "kubelet-arg in /etc/rancher/k3s/config.yaml instead of --kubelet-arg on the command line, restart k3s";

pub(super) fn start(facts: &Facts) -> Finding {
    let (kubelet, place) = match (&facts.kubelet, &facts.files.stopped) {
        (Ok(kubelet), _) => (kubelet, String::new()),
        (Err(unread), _) if unread.keeps_kubelet_from_starting => return failed(unread.to_string(), CORRECT),
        (Err(_), Some((file, Ok(kubelet)))) => (kubelet, format!(" (none runs: its settings are taken from {file})")),
        (Err(_), Some((_, Err(unread)))) => return failed(format!("{unread} (none runs)"), CORRECT),
        (Err(_), None) => return unknown("kubelet's configuration cannot be read"),
    };
    let found = found(facts, kubelet);
    if found.is_empty() {
        if let Some((_, unusable)) = unusable_files(facts, kubelet).next() {
            return unknown(format!("{unusable}: whether kubelet starts with it is not known"));
        }
        let fits = format!("its state files match its settings{place}");
        return match &facts.files.devices {
            Ok(_) => ok(fits),
            Err(unusable) => {
                let cure = if unusable.is_damaged { RECORD } else { NEWER };
                warning(format!("{fits}; {}", forgotten(unusable)), cure)
            }
        };
    }
    let words: Vec<String> = found.iter().map(ToString::to_string).collect();
    let words = words.join("; ");
    // Flags that are only on its command line are not known, so a setting that is missing may be there.
    let words = if kubelet.hidden {
        format!("unknown: {HIDDEN}; by its files alone kubelet would not start: {words}{place}")
    } else {
        format!("kubelet would not start: {words}{place}")
    };
    let mut cures: Vec<String> = found.iter().map(|problem| problem.cure(&kubelet.root_dir)).collect();
    cures.dedup();
    let cures = if kubelet.hidden {
        format!("{UNHIDE}; if that changes nothing: {}", cures.join("; "))
    } else {
        cures.join("; ")
    };
    if kubelet.hidden || found.iter().all(StartProblem::is_of_this_version) {
        warning(words, cures)
    } else {
        failed(words, cures)
    }
}

/// The CPU manager's policy as far as it is known where flags are hidden; `None`: nothing shows that it is another than that of the files.
pub(super) fn hidden_policy(facts: &Facts) -> Option<Finding> {
    let kubelet = facts.kubelet.as_ref().ok()?;
    let stored = facts.files.cpus.as_ref().ok().and_then(Option::as_ref);
    let policy = match stored.map(|state| state.policy.as_str()) {
        None if kubelet.hidden && !kubelet.has_cpu_policy => "its policy is not known".to_owned(),
        Some(stored) if kubelet.is_overridden(Some(stored)) => {
            format!("cpuManagerPolicy: {stored} by its state file; its reserved CPUs are not known")
        }
        _ => return None,
    };
    Some(warning(format!("unknown: {HIDDEN}; {policy}"), UNHIDE))
}

/// What to do about a record of devices that cannot be read.
const RECORD: &str =
    "before kubelet is restarted, drain the node of pods with devices: it gives their devices to other pods";

/// What to do about one that only another kubelet's release explains.
const NEWER: &str = "upgrade steliad if kubelet is newer; otherwise see who wrote the file";

/// The state files that kubelet reads and that cannot be used, each with its name; devices' are left out, because kubelet starts without them.
fn unusable_files<'a>(
    facts: &'a Facts,
    kubelet: &'a KubeletConfig,
) -> impl Iterator<Item = (&'static str, &'a UnusableState)> {
    let files = &facts.files;
    let managers = [
        (CPU_MANAGER_STATE, files.cpus.as_ref().err()),
        (MEMORY_MANAGER_STATE, files.memory.as_ref().err()),
    ];
    let managers = managers
        .into_iter()
        .filter_map(|(file, unusable)| Some((file, unusable?)));
    let others = files.pods.iter().map(|(file, unusable)| (*file, unusable));
    managers.chain(others.filter(|(file, _)| reads(file, kubelet, None)))
}

fn found(facts: &Facts, kubelet: &KubeletConfig) -> Vec<StartProblem> {
    let machine = match (&facts.topology, &facts.files.numa) {
        (Ok(topology), Ok(numa)) => Some(machine(topology, &facts.files.caches, numa)),
        _ => None,
    };
    let files = &facts.files;
    let mut found = match (&files.cpus, &files.memory) {
        (Ok(cpus), memory) => problems(
            kubelet,
            machine.as_ref(),
            StateFiles {
                cpus: cpus.as_ref(),
                memory: memory.as_ref().ok().and_then(Option::as_ref),
            },
        ),
        (Err(_), _) => configured::problems(kubelet, machine.as_ref()),
    };
    found.extend(
        unusable_files(facts, kubelet)
            .filter(|(_, unusable)| unusable.is_damaged)
            .map(|(file, unusable)| StartProblem::State {
                file,
                why: unusable.to_string(),
                instead: String::new(),
            }),
    );
    found
}
