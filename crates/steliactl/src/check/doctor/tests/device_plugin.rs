//! What is said of kubelet's device plugin.

use std::os::unix::fs::PermissionsExt;

use stelia_api::VM_RESOURCE;
use stelia_kubelet::devices::DEVICE_MANAGER_STATE;

use super::*;

/// A node with kubelet's folder and a running plugin, of which kubelet's record has these healthy devices.
fn registered(healthy: Option<&[&str]>) -> Facts {
    let mut state = DeviceManagerState::default();
    if let Some(healthy) = healthy {
        let ids = healthy.iter().map(|id| (*id).to_owned()).collect();
        state.registered.insert(VM_RESOURCE.to_owned(), ids);
    }
    let mut facts = fit();
    facts.files.devices = Ok(Some(state));
    facts.device_plugin = DevicePlugin {
        has_folder: Ok(true),
        runs: true,
        status: None,
        admission_problem: Some(String::new()),
    };
    facts
}

fn of(facts: &Facts) -> (Verdict, String) {
    said(facts, "device-plugin")
}

#[track_caller]
fn warns(facts: &Facts, found: &str) {
    assert_eq!(of(facts), (Verdict::Warning, found.to_owned()));
}

#[test]
fn devices_that_kubelet_has_registered_pass_with_their_number() {
    let mut facts = registered(Some(&["vm-0", "vm-1", "vm-2"]));
    let given = DeviceEntry {
        pod: PodUid::parse(POD).unwrap(),
        container: "instance".to_owned(),
        resource: VM_RESOURCE.to_owned(),
        devices: [(None, ["vm-1".to_owned()].into())].into(),
        files: [].into(),
    };
    let other = DeviceEntry {
        resource: "example.com/gpu".to_owned(),
        ..given.clone()
    };
    facts.files.devices.as_mut().unwrap().as_mut().unwrap().entries = vec![given, other];
    let found = "3 stelia.io/vm registered with kubelet, 1 in kubelet's record of pods (ended ones too)".to_owned();
    for status in [None, Some("registered; 3 devices, healthy".to_owned())] {
        facts.device_plugin.status = status;
        assert_eq!(of(&facts), (Verdict::Ok, found.clone()));
    }
    // Devices of one NUMA node or another are no hints of this resource.
    assert_eq!(said(&facts, "hint-merge"), said(&fit(), "hint-merge"));
}

#[test]
fn a_plugin_that_does_not_run_or_is_not_registered_is_a_warning_with_a_cure() {
    let mut facts = registered(None);
    let unregistered = "kubelet has no healthy stelia.io/vm: the plugin has not registered";
    warns(&facts, unregistered);
    // kubelet wrote no record yet.
    facts.files.devices = Ok(None);
    assert_eq!(of(&facts).0, Verdict::Warning);
    facts.files.devices = Err(unusable("wrong checksum", true));
    warns(&facts, "wrong checksum");
    facts.device_plugin.runs = false;
    let (verdict, found) = of(&facts);
    assert_eq!(verdict, Verdict::Warning);
    assert!(found.starts_with("stelia-device-plugin does not run"), "{found}");
}

/// kubelet does not write its record when a plugin leaves it.
#[test]
fn the_plugins_own_words_count_for_more_than_a_record_that_is_old() {
    let mut facts = registered(Some(&["vm-0"]));
    for status in [
        "not registered: kubelet refuses it; 1 devices, healthy",
        "registered; 1 devices, unhealthy: /dev/kvm does not exist",
        "starting; 1 devices, healthy",
    ] {
        facts.device_plugin.status = Some(status.to_owned());
        warns(&facts, status);
    }
    let mut facts = registered(Some(&[]));
    facts.device_plugin.status = Some("registered; 1 devices, healthy".to_owned());
    warns(
        &facts,
        "the plugin says \"registered; 1 devices, healthy\", but kubelet's record has no healthy stelia.io/vm",
    );
}

#[test]
fn without_healthy_devices_and_without_a_status_the_daemons_reason_is_told() {
    let mut facts = registered(Some(&[]));
    for (problem, why) in [
        (Some("kubelet's shared pool is empty"), "kubelet's shared pool is empty"),
        (Some(""), "the plugin does not say why"),
        (None, "steliad does not answer"),
    ] {
        facts.device_plugin.admission_problem = problem.map(str::to_owned);
        warns(&facts, &format!("kubelet has no healthy stelia.io/vm: {why}"));
    }
    facts.kvm = false;
    warns(&facts, "kubelet has no healthy stelia.io/vm: /dev/kvm does not exist");
}

#[test]
fn where_kubelet_has_no_folder_for_plugins_none_is_missed() {
    let root = tempfile::tempdir().unwrap();
    let k0s = root.path().join("var/lib/k0s/kubelet");
    let look = || DevicePlugin::read(root.path(), &k0s, false);
    let mut facts = fit();
    facts.device_plugin = look();
    assert_eq!(facts.device_plugin.has_folder, Ok(false));
    assert_eq!(of(&facts).0, Verdict::Ok);
    let usual = root.path().join("var/lib/kubelet/device-plugins");
    fs::create_dir_all(&usual).unwrap();
    assert_eq!(look().has_folder, Ok(true));
    fs::remove_dir(&usual).unwrap();
    // A distribution's own, by kubelet's record.
    fs::create_dir_all(k0s.join("device-plugins")).unwrap();
    assert_eq!(look().has_folder, Ok(false));
    fs::write(k0s.join("device-plugins").join(DEVICE_MANAGER_STATE), "").unwrap();
    assert_eq!(look().has_folder, Ok(true));
}

#[test]
fn what_may_not_be_looked_at_is_not_called_off() {
    let root = folder(&[("var/lib/kubelet/device-plugins", "")]);
    let kubelet = root.path().join("var/lib/kubelet");
    let look = || DevicePlugin::read(root.path(), &kubelet, true);
    assert_eq!(look().has_folder, Ok(false));
    fs::set_permissions(&kubelet, fs::Permissions::from_mode(0o000)).unwrap();
    let mut facts = fit();
    facts.device_plugin = look();
    fs::set_permissions(&kubelet, fs::Permissions::from_mode(0o700)).unwrap();
    // Root may look.
    if facts.device_plugin.has_folder != Ok(false) {
        let (verdict, found) = of(&facts);
        assert_eq!(verdict, Verdict::Unknown);
        says(&found, &["not known: ", "Permission denied"]);
    }
}
