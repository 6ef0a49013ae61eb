//! `steliactl resize`: another number of CPUs for a VM whose guest runs.

use serde_json::Value;

use super::{given, moved, on_allocator, steliactl};
use crate::resize::{linux, make_linux, until_resized};
use crate::support::*;

/// A guest on an emulated node takes its time.
const SETTINGS: &str = "reserved-cpus = \"0\"\ncpu-bind-policy = \"FullPCPUs\"\nunplug-timeout-s = 60";

fn resize(pod: &Pod, arguments: &[&str]) -> Value {
    steliactl(&["resize", &pod.uid], arguments)
}

#[test]
fn a_vm_grows_and_shrinks_by_the_command() {
    needs_kvm();
    make_linux();
    on_allocator(SETTINGS, || {
        let pod = given(start_on(Accel::Kvm, "resized", "2", &[], &linux()));
        until_resized(&pod, 2);
        let small = pod.exclusive();

        let planned = resize(&pod, &["--cpus", "4", "--dry-run"]);
        assert_eq!(planned["outcome"], "planned");
        assert_eq!(planned["success"], true);
        let pod = moved(pod);
        assert_eq!(pod.exclusive(), small);
        let grown = resize(&pod, &["--cpus", "4"]);
        assert_eq!((&grown["outcome"], &grown["to"]), (&"done".into(), &planned["to"]));
        let pod = moved(pod);
        assert!(small.is_subset(&pod.exclusive()), "{small} of {}", pod.exclusive());
        until_resized(&pod, 4);
        assert_isolated(&pod, 4);

        let shrunk = resize(&pod, &["--cpus", "2"]);
        assert_eq!(shrunk["outcome"], "done", "{}", pod.logs());
        let pod = moved(pod);
        assert_eq!(pod.exclusive(), cpus(shrunk["to"].as_str().expect("a list")));
        until_resized(&pod, 2);
        assert_isolated(&pod, 2);
        let refused = output(&["steliactl", "resize", &pod.uid, "--cpus", "64"]);
        assert_fails(&refused, "no VM can have 64 CPUs");
    });
}
