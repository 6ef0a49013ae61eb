//! `steliactl resize`: another number of CPUs for a VM whose guest runs.

use serde_json::Value;

use super::{given, instance, on_allocator};
use crate::kvm::needs_kvm;
use crate::resize::{linux, make_linux, until_resized};
use crate::support::guest::Accel;
use crate::support::host::{cpus, output};
use crate::support::pods::Pod;
use crate::support::promise::assert_isolated;

/// A guest on an emulated node takes its time.
const SETTINGS: &str = "reserved-cpus = \"0\"\ncpu-bind-policy = \"FullPCPUs\"\nunplug-timeout-s = 60";

/// What the command prints for this number of CPUs, as JSON, and whether it succeeded.
fn resize(pod: &Pod, arguments: &[&str]) -> Value {
    let out = output(&[&["steliactl", "--json=short", "resize", &pod.uid], arguments].concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    println!("  resize {arguments:?}: {} {text}", out.status);
    let mut printed: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    printed["success"] = out.status.success().into();
    printed
}

/// The pod with the CPUs that it has now.
fn now(pod: Pod) -> Pod {
    let cpus = instance(&pod)["exclusive"].as_str().map(str::to_owned);
    Pod { cpus, ..pod }
}

#[test]
fn a_vm_grows_and_shrinks_by_the_command() {
    needs_kvm();
    make_linux();
    on_allocator(SETTINGS, || {
        let options = ["--cpus", "2"];
        let started = Pod::start_qemu(Accel::Kvm, "resized", &options, &["--qmp", "/run/qmp"], &linux());
        let pod = given(started);
        until_resized(&pod, 2);
        let small = pod.exclusive();

        let planned = resize(&pod, &["--cpus", "4", "--dry-run"]);
        assert_eq!(
            (&planned["outcome"], &planned["success"]),
            (&"planned".into(), &true.into())
        );
        let pod = now(pod);
        assert_eq!(pod.exclusive(), small);
        let grown = resize(&pod, &["--cpus", "4"]);
        assert_eq!((&grown["outcome"], &grown["to"]), (&"done".into(), &planned["to"]));
        let pod = now(pod);
        assert!(small.is_subset(&pod.exclusive()), "{small} of {}", pod.exclusive());
        until_resized(&pod, 4);
        assert_isolated(&pod, 4);

        let shrunk = resize(&pod, &["--cpus", "2"]);
        assert_eq!(shrunk["outcome"], "done", "{}", pod.logs());
        let pod = now(pod);
        assert_eq!(pod.exclusive(), cpus(shrunk["to"].as_str().expect("a list")));
        until_resized(&pod, 2);
        assert_isolated(&pod, 2);
        let refused = output(&["steliactl", "resize", &pod.uid, "--cpus", "64"]);
        assert!(!refused.status.success());
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains("62 more CPUs are not available"), "{text}");
    });
}
