//! What `steliactl` finds of k3s: kubelet in its process, its settings, its decisions.

use std::fs;

use serde_json::{Value, json};

use super::node::{DATA, server};
use super::on_k3s;
use crate::real::kubelet::frame::state;
use crate::real::kubelet::manifest::{INSTANCE, Verdict, apply, pod, sleeper, text, verdict};
use crate::support::host::{output, read, run};

/// What a check of `steliactl doctor` says, and how it ended.
fn check(name: &str) -> (String, String) {
    let doctor = output(&["steliactl", "--json", "doctor"]);
    let checks: Value = serde_json::from_slice(&doctor.stdout).unwrap_or_else(|e| panic!("{e}: {doctor:?}"));
    let mut checks = checks.as_array().expect("a list").iter();
    let check = checks
        .find(|check| check["check"] == name)
        .unwrap_or_else(|| panic!("no {name}"));
    println!("  doctor: {check}");
    (text(&check["verdict"]), text(&check["found"]))
}

#[test]
fn kubelet_is_found_in_k3s_and_its_files_say_how_it_decides() {
    on_k3s(|| {
        println!("  {}", read(format!("/proc/{}/comm", server())));
        let drop_ins = fs::read_dir(format!("{DATA}/agent/etc/kubelet.conf.d"))
            .into_iter()
            .flatten()
            .flatten();
        drop_ins.for_each(|file| println!("  {}", file.path().display()));
        let home = format!(
            "process {} (k3s-server); its flags in /etc/rancher/k3s are read, its command line is hidden; /var/lib/kubelet is read",
            server()
        );
        assert_eq!(check("kubelet-home"), ("ok".to_owned(), home));
        for name in [
            "kubelet-config",
            "kubelet-cgroups",
            "kubelet-policy",
            "kubelet-state",
            "kubelet-start",
        ] {
            assert_eq!(check(name).0, "ok", "{name}");
        }
        let shown: Value = serde_json::from_str(&run(&["steliactl", "--json", "kubelet-state"])).expect("JSON");
        assert_eq!(shown["cpu_manager"]["usable"], true, "{shown}");

        // With the reserved CPUs and the static policy of kubelet-arg.
        let file = "/run/kubelet-node/planned.yaml";
        for (name, cpus) in [("three", "3"), ("four", "4")] {
            let manifest = pod(name, &[sleeper(INSTANCE, cpus, "64Mi")]);
            fs::write(file, manifest.to_string()).expect(file);
            let plan = output(&["steliactl", "plan", "-o", "json", file]);
            let plan: Value = serde_json::from_slice(&plan.stdout).unwrap_or_else(|e| panic!("{e}: {plan:?}"));
            apply(&manifest);
            let real = verdict(name);
            println!("  {name}: plan {plan}, kubelet {real:?}, {}", state());
            match real {
                Verdict::Admitted(cpus) => assert_eq!(json!(cpus[INSTANCE]), plan["containers"][0]["cpus"]),
                Verdict::Rejected { reason, .. } => assert_eq!(json!(reason), plan["rejection"]["reason"]),
            }
            assert_eq!(plan["admitted"], name == "three");
        }
    });
}
