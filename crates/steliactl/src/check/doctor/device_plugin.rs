//! Whether kubelet has the node's VMs as devices (`stelia-device-plugin`): by kubelet's own record, by the status of the plugin's unit, and by
//! what the daemon says.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use stelia_api::VM_RESOURCE;
use stelia_kubelet::devices::plugin_folder;
use tokio::time::timeout;
use zbus::proxy::CacheProperties;
use zbus::{Connection, proxy};

use super::Facts;
use super::checks::{Finding, ok, unknown, warning};

/// The name of the plugin's process: the kernel cuts the program's name after 15 bytes.
pub(super) const PROCESS: &str = "stelia-device-p";
/// How long systemd may take to answer.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);

const START: &str = "systemctl enable --now steliad-device-plugin.path; journalctl -u steliad-device-plugin says why it ended. \
     Pods with host paths (examples/vm-hostpath.yaml) do without it";
const REMEDY: &str = "journalctl -u steliad-device-plugin; meanwhile kubelet places no pod with stelia.io/vm here, and running VMs are not affected";
const UNREADABLE: &str = "run as root; if the file is damaged, systemctl restart steliad-device-plugin: kubelet writes it anew when a plugin lists its devices. \
     Running VMs are not affected";
const REGISTER: &str = "systemctl restart steliad-device-plugin, which registers anew; running VMs are not affected";

/// The plugin's side of it.
#[derive(Debug, Clone)]
pub(crate) struct DevicePlugin {
    /// Whether kubelet's plugin directory exists; an error says why that is not known.
    pub(crate) has_folder: Result<bool, String>,
    /// Whether the plugin runs.
    pub(crate) runs: bool,
    /// What the plugin told systemd of itself, as `systemctl status` shows it. `None`: systemd does not say.
    pub(crate) status: Option<String>,
    /// What the daemon says: why it would admit no VM, or nothing. `None`: it does not answer, or was not asked.
    pub(crate) admission_problem: Option<String>,
}

impl DevicePlugin {
    /// `kubelet` is kubelet's root directory below `root`.
    pub(super) fn read(root: &Path, kubelet: &Path, runs: bool) -> Self {
        let folder = plugin_folder(root, kubelet);
        Self {
            has_folder: match fs::metadata(&folder) {
                Ok(metadata) => Ok(metadata.is_dir()),
                Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(false),
                Err(cause) => Err(format!("{}: {cause}", folder.display())),
            },
            runs,
            status: None,
            admission_problem: None,
        }
    }
}

#[proxy(
    interface = "org.freedesktop.systemd1.Service",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1/unit/steliad_2ddevice_2dplugin_2eservice"
)]
trait PluginUnit {
    #[zbus(property(emits_changed_signal = "false"))]
    fn status_text(&self) -> zbus::Result<String>;
}

/// The status of the plugin's unit; `None` where systemd does not answer, or the plugin said nothing.
pub(crate) async fn status(connection: &Connection) -> Option<String> {
    let ask = async {
        let unit = PluginUnitProxy::builder(connection).cache_properties(CacheProperties::No);
        unit.build().await?.status_text().await
    };
    let text = timeout(STATUS_TIMEOUT, ask).await.ok()?.ok()?;
    (!text.is_empty()).then_some(text)
}

/// Whether the plugin's own words (`status.rs` in `crates/device-plugin`) are those of one that kubelet gives devices of.
fn offers(status: &str) -> bool {
    status.starts_with("registered") && !status.contains("unhealthy")
}

/// Whether the plugin runs, and kubelet knows of it.
pub(super) fn check(facts: &Facts) -> Finding {
    let plugin = &facts.device_plugin;
    match &plugin.has_folder {
        Ok(true) => {}
        Ok(false) => return ok("off: kubelet has no plugin directory"),
        Err(problem) => return unknown(format!("not known: {problem}")),
    }
    if !plugin.runs {
        return warning(
            format!("stelia-device-plugin does not run: this node offers no {VM_RESOURCE}"),
            START,
        );
    }
    // kubelet's record does not change when a plugin leaves, so the plugin's own words come first.
    if let Some(status) = plugin.status.as_deref().filter(|status| !offers(status)) {
        return warning(status, REMEDY);
    }
    let state = match &facts.files.devices {
        Err(problem) => return warning(problem.to_string(), UNREADABLE),
        Ok(state) => state.as_ref(),
    };
    let registered = state.and_then(|state| state.registered.get(VM_RESOURCE));
    let healthy = registered.map_or(0, BTreeSet::len);
    if healthy > 0 {
        let entries = state.iter().flat_map(|state| &state.entries);
        let of_pods = entries.filter(|entry| entry.resource == VM_RESOURCE).count();
        return ok(format!(
            "{healthy} {VM_RESOURCE} registered with kubelet, {of_pods} in kubelet's record of pods (ended ones too)"
        ));
    }
    if let Some(status) = &plugin.status {
        return warning(
            format!("the plugin says {status:?}, but kubelet's record has no healthy {VM_RESOURCE}"),
            REGISTER,
        );
    }
    let why = match plugin.admission_problem.as_deref() {
        _ if registered.is_none() => "the plugin has not registered",
        _ if !facts.kvm => "/dev/kvm does not exist",
        None => "steliad does not answer",
        Some("") => "the plugin does not say why",
        Some(problem) => problem,
    };
    warning(format!("kubelet has no healthy {VM_RESOURCE}: {why}"), REMEDY)
}
