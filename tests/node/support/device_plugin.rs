//! The device plugin of the package, and kubelet's side of its API, by the stand-in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;
use stelia_kubelet::DeviceManagerState;

use super::{Pod, journal_of, output, parse, read, run, wait_until_or};

pub const UNIT: &str = "steliad-device-plugin.service";
/// Starts the unit when kubelet's folder of plugins' sockets is there.
pub const PATH_UNIT: &str = "steliad-device-plugin.path";
pub const FOLDER: &str = "/var/lib/kubelet/device-plugins";
pub const RESOURCE: &str = "stelia.io/vm";
/// The stand-in's words for one of them.
pub const ONE: [&str; 2] = ["--resource", "stelia.io/vm=1"];

/// What kubelet's device manager knows.
#[derive(Debug, Clone, Deserialize)]
pub struct Devices {
    pub registrations: u64,
    resources: BTreeMap<String, Resource>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Resource {
    pub endpoint: String,
    pub connected: bool,
    pub healthy: BTreeSet<String>,
    pub unhealthy: BTreeSet<String>,
}

impl Devices {
    pub fn vms(&self) -> Resource {
        self.resource(RESOURCE)
    }

    pub fn resource(&self, name: &str) -> Resource {
        self.resources.get(name).cloned().unwrap_or_default()
    }
}

/// kubelet's own record, where there is one.
pub fn record() -> Option<DeviceManagerState> {
    DeviceManagerState::parse(&fs::read(format!("{FOLDER}/kubelet_internal_checkpoint")).ok()?).ok()
}

/// The VMs' devices that kubelet gave to a pod.
pub fn given(uid: &str) -> Vec<String> {
    let entries = record().expect("kubelet's record").entries.into_iter();
    let own = entries.filter(|entry| entry.pod.to_string() == uid && entry.resource == RESOURCE);
    own.flat_map(|entry| entry.devices.into_values().flatten()).collect()
}

/// Until kubelet's record has the plugin's devices: which those are.
pub fn wait_registered(said: fn() -> String) -> BTreeSet<String> {
    let said = || said() + &journal();
    wait_until_or("the plugin has registered", said, || {
        let devices = record()?.registered.remove(RESOURCE);
        devices.filter(|devices| !devices.is_empty())
    })
}

pub fn show() -> Devices {
    parse(&run("kubelet-standin devices show"))
}

/// The runner and the folder of its socket are in the pod's container, for reading.
pub fn assert_mounted(pod: &Pod) {
    let mounts = read(format!("/proc/{}/mountinfo", pod.pid));
    for path in ["/run/stelia/runner", "/usr/bin/stelia-runner"] {
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(path));
        let options = line.and_then(|line| line.split(' ').nth(5)).unwrap_or_default();
        let is_read_only = options.split(',').any(|option| option == "ro");
        assert!(is_read_only, "{path}:\n{mounts}");
    }
}

pub fn socket() -> PathBuf {
    PathBuf::from(FOLDER).join(show().vms().endpoint)
}

/// kubelet starts, and the unit with its folder. Answers what the plugin offers.
pub fn start() -> Resource {
    run("kubelet-standin devices start");
    wait_healthy("the plugin registers")
}

/// Until the plugin's devices can be allocated.
pub fn wait_healthy(what: &str) -> Resource {
    wait_until_or(what, journal, || {
        let vms = show().vms();
        (vms.connected && !vms.healthy.is_empty() && vms.unhealthy.is_empty()).then_some(vms)
    })
}

/// What the plugin and kubelet's side say.
pub fn journal() -> String {
    journal_of(&[UNIT, "kubelet-standin-devices"])
}

/// As on a node on which no kubelet ever ran: no folder, and so no plugin.
pub fn stop() {
    output(&["systemctl", "stop", PATH_UNIT, UNIT]);
    output("kubelet-standin devices stop");
    let _ = fs::remove_dir_all(FOLDER);
    let _ = fs::remove_file("/run/kubelet-standin/devices.json");
    output(&["systemctl", "reset-failed", UNIT]);
    output(&["systemctl", "start", PATH_UNIT]);
}
