//! `stelia.io/vm` of the real device manager: the plugin registers, a VM is admitted with it, and kubelet starts anew.

use serde_json::json;

use super::started;
use crate::real::kubelet::frame::{UNIT, beside_kubelet_undoing, kubelet_journal, wait_ready};
use crate::real::kubelet::manifest::{Verdict, apply, delete, verdict, vm};
use crate::support::device_plugin::{assert_mounted, given, wait_registered};
use crate::support::*;

#[test]
fn the_plugin_registers_with_kubelet_and_a_vm_is_admitted_with_its_device() {
    needs_kvm();
    beside_kubelet_undoing(&json!({}), start_all, || {
        let offered = wait_registered(kubelet_journal);
        assert_eq!(activity(device_plugin::UNIT), "active");
        apply(&vm("plugged", 2));
        let pod = started("plugged");
        let before = assert_isolated(&pod, 2);
        let own = given(&pod.uid);
        assert!(own.len() == 1 && offered.contains(&own[0]), "{own:?} of {offered:?}");
        assert_mounted(&pod);
        let report = utf8(&output("steliactl doctor -v").stdout);
        assert_says(&report, &[&format!("registered; {} device", offered.len())]);

        // kubelet removes every socket when it starts.
        let plugin = main_pid(device_plugin::UNIT);
        restart(UNIT);
        wait_ready();
        wait_registered(kubelet_journal);
        assert_eq!(main_pid(device_plugin::UNIT), plugin);
        assert_eq!(assert_isolated(&pod, 2), before);
        assert_eq!(given(&pod.uid), own);
        apply(&vm("later", 2));
        let later = started("later");
        assert_isolated(&later, 2);
        let of_later = given(&later.uid);
        assert!(of_later.len() == 1 && of_later != own, "{of_later:?}");

        // Without the daemon no VM is admitted, and those that run stay.
        delete("later");
        stopped_but_for(None);
        apply(&vm("refused", 2));
        let answer = verdict("refused");
        let is_refused = matches!(&answer, Verdict::Rejected(reason, _) if reason == "UnexpectedAdmissionError");
        assert!(is_refused, "{answer:?}");
        delete("refused");
        start_all();
        assert_isolated(&pod, 2);
        delete("plugged");
        pod.wait_released();
    });
}
