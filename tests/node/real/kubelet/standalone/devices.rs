//! `stelia.io/vm` of the real device manager: the plugin registers, a VM is admitted with it, and kubelet starts anew.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{started, verify};
use crate::real::kubelet::frame::{UNIT, beside_kubelet_undoing, kubelet_journal, wait_ready};
use crate::real::kubelet::manifest::{Verdict, apply, delete, verdict, vm};
use crate::support::device_plugin::{FOLDER, RESOURCE};
use crate::support::*;

/// What kubelet wrote of its plugins and of what they gave.
fn checkpoint() -> Option<Value> {
    let text = std::fs::read_to_string(format!("{FOLDER}/kubelet_internal_checkpoint")).ok()?;
    serde_json::from_str(&text).ok()
}

fn registered() -> Option<BTreeSet<String>> {
    let devices = checkpoint()?["Data"]["RegisteredDevices"][RESOURCE].as_array()?.clone();
    let names = devices.iter().filter_map(|device| device.as_str().map(str::to_owned));
    Some(names.collect()).filter(|names: &BTreeSet<String>| !names.is_empty())
}

pub fn wait_registered() -> BTreeSet<String> {
    let said = || kubelet_journal() + &device_plugin::journal();
    wait_until_or("the plugin has registered", said, registered)
}

/// The devices that kubelet gave to a pod.
fn given(uid: &str) -> Vec<String> {
    let data = checkpoint().expect("kubelet's checkpoint")["Data"].clone();
    let entries = data["PodDeviceEntries"].as_array().cloned().unwrap_or_default();
    let own = entries
        .iter()
        .filter(|entry| entry["PodUID"] == uid && entry["ResourceName"] == RESOURCE);
    let nodes = own.flat_map(|entry| entry["DeviceIDs"].as_object().cloned().unwrap_or_default());
    let ids = nodes.flat_map(|(_, ids)| ids.as_array().cloned().unwrap_or_default());
    ids.map(|id| id.as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_plugin_registers_with_kubelet_and_a_vm_is_admitted_with_its_device() {
    needs_kvm();
    beside_kubelet_undoing(&json!({}), "", start_all, || {
        let offered = wait_registered();
        assert_eq!(activity(device_plugin::UNIT), "active");
        apply(&vm("plugged", 2));
        let pod = started("plugged");
        let before = assert_isolated(&pod, 2);
        let own = given(&pod.uid);
        assert!(own.len() == 1 && offered.contains(&own[0]), "{own:?} of {offered:?}");
        let mounts = read(format!("/proc/{}/mountinfo", pod.pid));
        for path in ["/run/stelia/runner", "/usr/bin/stelia-runner"] {
            let is_mounted = mounts.lines().any(|line| line.split(' ').nth(4) == Some(path));
            assert!(is_mounted, "{path} is not mounted:\n{mounts}");
        }
        let report = utf8(&output("steliactl doctor -v").stdout);
        let lines = report
            .lines()
            .filter(|line| line.contains("device-plugin") || line.contains("kubelet"));
        lines.for_each(|line| println!("  {line}"));
        let said = format!("registered; {} device", offered.len());
        assert_says(&report, &[&said]);
        verify();

        // kubelet removes every socket when it starts.
        let plugin = main_pid(device_plugin::UNIT);
        restart(UNIT);
        wait_ready();
        wait_registered();
        assert_eq!(main_pid(device_plugin::UNIT), plugin);
        assert_eq!(assert_isolated(&pod, 2), before);
        assert_eq!(given(&pod.uid), own);
        apply(&vm("later", 2));
        let later = started("later");
        assert_isolated(&later, 2);
        let of_later = given(&later.uid);
        assert!(of_later.len() == 1 && of_later != own, "{of_later:?}");
        verify();

        // Without the daemon no VM is admitted, and those that run stay.
        delete("later");
        stopped_but_for(None);
        apply(&vm("refused", 2));
        let answer = verdict("refused");
        let is_refused = matches!(&answer, Verdict::Rejected { reason, .. } if reason == "UnexpectedAdmissionError");
        assert!(is_refused, "{answer:?}");
        delete("refused");
        start_all();
        assert_isolated(&pod, 2);
        delete("plugged");
        pod.wait_released();
    });
}
