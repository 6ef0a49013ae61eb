//! Pods that have CPUs of their own, also while kubelet is upgraded.

use serde_json::Value;

use crate::support::*;

const SIDE: [&str; 3] = ["--container", "side", "--shared"];

fn upgrade(schema: &str) {
    run(&["kubelet-standin", "upgrade", "--schema", schema]);
}

/// The schema that steliad understands the file as, and what the only pod with CPUs of its own shares of them.
fn understood() -> (String, Option<String>) {
    let file = json(&run(
        "steliactl --json doctor --kubelet-state /var/lib/kubelet/cpu_manager_state",
    ));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let assignments = file["assignments"].as_array().expect("assignments");
    let shared = assignments.iter().find_map(|one| text(&one["shared_in_pod"]));
    (text(&file["schema"]).expect("a schema"), shared)
}

#[test]
fn a_vm_floats_on_what_its_pod_shares_and_the_sidecar_there_is_no_instance() {
    let undo = || drop(run("kubelet-standin init"));
    on_node_undoing(undo, || {
        let kubelet = ["--schema", "3", "--reserved", "0", "--memory-policy", "Static"];
        run(&[&["kubelet-standin", "init"][..], &kubelet].concat());
        let level = ["--pod-cpus", "3", "--pod-shares", "side"];
        let memory = ["--pod-memory", "1G", "--memory", "512M"];
        let vm = Pod::start_vm("level", 2, &[&level[..], &memory].concat()).running();
        assert_eq!((vm.exclusive(), pool()), (cpus("2-3"), cpus("0,4-7")));
        // CPU 1 could be the sidecar's own: while nobody tells, the VM floats as in any other pod.
        let before = assert_isolated(&vm, 2);
        assert_eq!(vm.scope_file("instance/cpuset.mems"), "0");

        let side = Pod::start("side", &[&["--in", "level"][..], &SIDE].concat(), &["sleep", "1000"]);
        let entries = format!(
            "\"entries\":{{\"{0}\":{{\"instance\":\"2-3\",\"side\":\"1\"}}}}",
            vm.uid
        );
        assert_says(&run("kubelet-standin state"), &[&entries]);
        reconcile();
        let shared = cpus("1");
        assert_eq!(assert_isolated_beside(&vm, 2, &shared).vcpus, before.vcpus);
        assert_eq!(side.file("cpuset.cpus.effective"), "1");
        assert_eq!(understood(), ("V3".to_owned(), Some("1".to_owned())));
        assert_refused(&ask_from(&side, "|"), "NotGuaranteed", "shared pool");

        // The sidecar is away and comes back, and kubelet is upgraded: nothing moves.
        let drift = counters();
        run("kubelet-standin pod kill side");
        upgrade("4");
        reconcile();
        assert_eq!(vm.float_cpus(), shared);
        run("kubelet-standin pod restart side");
        assert_eq!(understood(), ("V4".to_owned(), Some("1".to_owned())));
        assert_eq!(assert_isolated_beside(&vm, 2, &shared).vcpus, before.vcpus);
        assert_eq!(counters(), drift);
        let down = output("kubelet-standin upgrade --schema 2");
        assert!(!down.status.success(), "{down:?}");

        side.delete(1);
        vm.delete(1);
        assert_eq!(pool(), cpus("0-7"));
    });
}
