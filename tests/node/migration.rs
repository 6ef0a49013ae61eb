//! A guest that moves from one pod's QEMU to another's.

use serde_json::{Value, json};

use crate::support::*;

/// Pods have the node's network.
const ADDRESS: &str = "tcp:127.0.0.1:4444";
/// QEMU's words once the guest is stopped and all but the last of it sent.
const STOPPED: &str = "pre-switchover";

/// What a probe says of a pod whose guest did not come yet.
const WAITING: &str = "isolated, ready for the migration";

fn capabilities(pod: &Pod, names: &[&str]) {
    let on = |name: &&str| json!({"capability": name, "state": true});
    let list: Vec<Value> = names.iter().map(on).collect();
    execute(pod, "migrate-set-capabilities", &json!({"capabilities": list}));
}

/// A pod that waits for a migration, with two vCPUs that have their CPUs already.
fn waiting(name: &str, incoming: &str) -> (Pod, Threads) {
    let qemu = ["-smp", "2", "-incoming", incoming];
    let pod = start_on(Accel::of_node(), name, "2", &[], &[&qemu, &OTHER[..]].concat());
    wait_until("ready for the migration", || {
        probe(&pod, "readiness") == (true, WAITING.into())
    });
    let threads = settled(&pod);
    (pod, threads)
}

/// Its threads, once it is isolated.
fn settled(pod: &Pod) -> Threads {
    wait_until(&format!("{} isolated", pod.name), || is_isolated(pod, 2));
    assert_isolated(pod, 2)
}

/// Send the guest of a new pod there, and hold both to their promise before, while and after it moves. While it is stopped
/// for the last of it, `moving` are QEMU's threads for the migration, as their names begin at the source and here.
fn receive(to: &Pod, waited: &Threads, more: &[&str], moving: [&[&str]; 2]) {
    let qemu = [["-smp", "2"], OTHER].concat();
    let from = start_on(Accel::of_node(), "from", "2", &[], &qemu).running();
    wait_ready(&from);
    let ran = settled(&from);
    capabilities(&from, &[more, &["pause-before-switchover"]].concat());
    execute(&from, "migrate", &json!({"uri": ADDRESS}));
    wait_until("all but the last is sent", || {
        let status = execute(&from, "query-migrate", &json!({})).to_string();
        assert!(!status.contains("failed"), "{status}");
        status.contains(STOPPED)
    });
    for (pod, before, names) in [(&from, &ran, moving[0]), (to, waited, moving[1])] {
        // Those of the migration among the others, in float.
        let threads = settled(pod);
        assert_eq!(threads.vcpus, before.vcpus);
        for name in names {
            threads.one(name);
        }
    }
    assert_eq!(probe(to, "readiness"), (true, WAITING.into()));
    execute(&from, "migrate-continue", &json!({"state": STOPPED}));

    wait_until("the guest came", || probe(to, "readiness") == (true, "isolated".into()));
    assert_eq!(settled(to).vcpus, waited.vcpus);
    wait_until("the guest is gone", || {
        let gone = (false, "the guest is postmigrate".to_owned());
        probe(&from, "readiness") == gone
    });
    assert!(probe(&from, "liveness").0);
    // What is left of it hears no power button and is not waited for.
    kill("-TERM", from.pid);
    assert_eq!(from.wait(), "0");
    let logs = from.logs();
    assert!(!logs.contains("did not power down"), "waited for: {logs}");
    wait_until("its instance ended", || {
        from.state().is_none() && !from.scope().exists()
    });
    to.assert_alone();
    assert_eq!(settled(to).vcpus, waited.vcpus);
}

#[test]
fn a_migration_comes_in_after_its_vcpus_are_isolated_and_finishes() {
    on_node(|| {
        let (to, threads) = waiting("to", ADDRESS);
        assert!(to.logs().contains("the migration may come in"), "{}", to.logs());
        receive(&to, &threads, &[], [&["mig/src/main"], &[]]);
    });
}

#[test]
fn the_threads_of_a_migration_over_many_channels_float() {
    on_node(|| {
        let (to, threads) = waiting("to", "defer");
        // Whoever drives the migration sets it up at both ends, which he can before it may come in.
        capabilities(&to, &["multifd"]);
        execute(&to, "migrate-incoming", &json!({"uri": ADDRESS}));
        let moving: [&[&str]; 2] = [&["mig/src/main", "mig/src/send"], &["mig/dst/recv"]];
        receive(&to, &threads, &["multifd"], moving);
    });
}
