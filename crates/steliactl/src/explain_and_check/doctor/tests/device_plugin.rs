//! What is said of kubelet's device plugin.

use super::super::device_plugin::{DevicePlugin, RESOURCE};
use super::*;

/// A node with kubelet's folder and a running plugin, of which kubelet's record has these healthy devices.
fn registered(healthy: Option<&[&str]>) -> Facts {
    let mut state = DeviceManagerState::default();
    if let Some(healthy) = healthy {
        let ids = healthy.iter().map(|id| (*id).to_owned()).collect();
        state.registered.insert(RESOURCE.to_owned(), ids);
    }
    let mut facts = fit();
    facts.files.devices = Ok(Some(state));
    facts.device_plugin = DevicePlugin {
        has_folder: true,
        runs: true,
        admission_problem: Some(String::new()),
    };
    facts
}

fn said(facts: &Facts) -> (Verdict, String) {
    let all = checks(facts);
    let one = all.iter().find(|check| check.check == "device-plugin").unwrap();
    (one.verdict, one.found.clone())
}

#[test]
fn devices_that_kubelet_has_registered_pass_with_their_number() {
    let mut facts = registered(Some(&["vm-0", "vm-1", "vm-2"]));
    let given = DeviceEntry {
        pod: PodUid::parse(POD).unwrap(),
        container: "instance".to_owned(),
        resource: RESOURCE.to_owned(),
        devices: [(None, ["vm-1".to_owned()].into())].into(),
    };
    let other = DeviceEntry {
        resource: "example.com/gpu".to_owned(),
        ..given.clone()
    };
    facts.files.devices.as_mut().unwrap().as_mut().unwrap().entries = vec![given, other];
    let found = "3 stelia.io/vm registered with kubelet, 1 given to pods".to_owned();
    assert_eq!(said(&facts), (Verdict::Ok, found));
    // Devices of one NUMA node or another are no hints of this resource.
    let hints = checks(&facts)
        .into_iter()
        .find(|check| check.check == "hint-merge")
        .unwrap();
    assert_eq!(
        hints.found,
        checks(&fit())
            .into_iter()
            .find(|check| check.check == "hint-merge")
            .unwrap()
            .found
    );
}

#[test]
fn a_plugin_that_does_not_run_or_is_not_registered_is_a_warning_with_a_cure() {
    let mut facts = registered(None);
    assert_eq!(
        said(&facts),
        (Verdict::Warning, "kubelet has no stelia.io/vm registered".to_owned())
    );
    facts.files.devices = Ok(None);
    assert_eq!(said(&facts).0, Verdict::Warning, "kubelet wrote no record yet");
    facts.files.devices = Err("wrong checksum".to_owned());
    assert_eq!(said(&facts), (Verdict::Warning, "wrong checksum".to_owned()));
    facts.device_plugin.runs = false;
    let (verdict, found) = said(&facts);
    assert_eq!(verdict, Verdict::Warning);
    assert!(found.starts_with("stelia-device-plugin does not run"), "{found}");
}

#[test]
fn without_healthy_devices_the_daemons_reason_is_told() {
    let mut facts = registered(Some(&[]));
    for (problem, why) in [
        (Some("kubelet's shared pool is empty"), "kubelet's shared pool is empty"),
        (Some(""), "the plugin has not registered again yet"),
        (None, "steliad does not answer"),
    ] {
        facts.device_plugin.admission_problem = problem.map(str::to_owned);
        let found = format!("kubelet has no healthy stelia.io/vm: {why}");
        assert_eq!(said(&facts), (Verdict::Warning, found));
    }
}

#[test]
fn where_kubelet_has_no_folder_for_plugins_none_is_missed() {
    let root = tempfile::tempdir().unwrap();
    let k0s = root.path().join("var/lib/k0s/kubelet");
    let look = || DevicePlugin::read(root.path(), &k0s, false);
    let read = look();
    assert!(!read.has_folder);
    let facts = Facts {
        device_plugin: read,
        ..fit()
    };
    assert_eq!(said(&facts).0, Verdict::Ok);
    // The folder's path is one of kubelet's constants, whatever its root directory.
    for folder in ["var/lib/kubelet/device-plugins", "var/lib/k0s/kubelet/device-plugins"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
        assert!(look().has_folder, "{folder}");
        fs::remove_dir(root.path().join(folder)).unwrap();
    }
}
