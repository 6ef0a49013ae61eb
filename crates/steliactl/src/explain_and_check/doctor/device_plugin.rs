//! Whether kubelet has the node's VMs as devices (`stelia-device-plugin`): by kubelet's own record, and what the daemon says.

use std::path::{Path, PathBuf};

use super::Facts;
use super::checks::{Finding, ok, warning};

/// The resource that the device plugin offers.
pub(super) const RESOURCE: &str = "stelia.io/vm";
/// The name of the plugin's process: the kernel cuts the program's name after 15 bytes.
pub(super) const PROCESS: &str = "stelia-device-p";

const START: &str = "systemctl enable --now steliad-device-plugin.path; journalctl -u steliad-device-plugin says why it ended. \
     Pods with host paths (examples/vm-hostpath.yaml) do without it";
const REMEDY: &str = "journalctl -u steliad-device-plugin; kubelet places no pod with stelia.io/vm here meanwhile, and running VMs are not affected";

/// The plugin's side of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct DevicePlugin {
    /// Whether kubelet's folder for device plugins exists.
    pub(crate) has_folder: bool,
    /// Whether the plugin runs.
    pub(crate) runs: bool,
    /// What the daemon says: why it would admit no VM, or nothing. `None`: it does not answer, or was not asked.
    pub(crate) admission_problem: Option<String>,
}

impl DevicePlugin {
    /// `folder` is kubelet's root directory below `root`.
    pub(super) fn read(root: &Path, folder: &Path, runs: bool) -> Self {
        Self {
            has_folder: plugins(root, folder).is_dir(),
            runs,
            admission_problem: None,
        }
    }
}

/// kubelet's folder for device plugins: its path is a constant of kubelet's (`DevicePluginPath`), which some distributions change to one in their root
/// directory.
pub(super) fn plugins(root: &Path, folder: &Path) -> PathBuf {
    let own = folder.join("device-plugins");
    match own.is_dir() {
        true => own,
        false => root.join("var/lib/kubelet/device-plugins"),
    }
}

/// Whether the plugin runs, and kubelet knows of it.
pub(super) fn check(facts: &Facts) -> Finding {
    let plugin = &facts.device_plugin;
    if !plugin.has_folder {
        return ok("off: kubelet has no folder device-plugins");
    }
    if !plugin.runs {
        return warning(
            format!("stelia-device-plugin does not run: this node offers no {RESOURCE}"),
            START,
        );
    }
    let state = match &facts.files.devices {
        Err(problem) => return warning(problem, REMEDY),
        Ok(state) => state.as_ref(),
    };
    let Some(healthy) = state.and_then(|state| state.registered.get(RESOURCE)) else {
        return warning(format!("kubelet has no {RESOURCE} registered"), REMEDY);
    };
    if healthy.is_empty() {
        let why = match plugin.admission_problem.as_deref() {
            None => "steliad does not answer",
            Some("") => "the plugin has not registered again yet",
            Some(problem) => problem,
        };
        return warning(format!("kubelet has no healthy {RESOURCE}: {why}"), REMEDY);
    }
    let entries = state.iter().flat_map(|state| &state.entries);
    let given = entries.filter(|entry| entry.resource == RESOURCE).count();
    ok(format!(
        "{} {RESOURCE} registered with kubelet, {given} given to pods",
        healthy.len()
    ))
}
