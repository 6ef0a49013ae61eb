//! A guest that moves from one pod's QEMU to another's.

use crate::runner::{OTHER, probe, qmp, start, wait_ready};
use crate::support::host::{run, wait_until};
use crate::support::pods::{Pod, Threads, on_node};
use crate::support::promise::{assert_isolated, is_isolated, state};

/// Pods have the node's network.
const ADDRESS: &str = "tcp:127.0.0.1:4444";
/// QEMU's words once the guest is stopped and all but the last of it sent.
const STOPPED: &str = "pre-switchover";

/// What a probe says of a pod whose guest did not come yet.
const WAITING: &str = "isolated, ready for the migration";

/// One command on the monitor that is the test's; it must succeed.
fn execute(pod: &Pod, command: &str, arguments: &str) -> String {
    let answer = qmp(pod, &format!(r#"{{"execute":"{command}","arguments":{arguments}}}"#));
    assert!(answer.contains(r#""return""#), "{command}: {answer}");
    answer
}

fn capabilities(pod: &Pod, names: &[&str]) {
    let on = |name: &&str| format!(r#"{{"capability":"{name}","state":true}}"#);
    let list = names.iter().map(on).collect::<Vec<_>>().join(",");
    execute(
        pod,
        "migrate-set-capabilities",
        &format!(r#"{{"capabilities":[{list}]}}"#),
    );
}

/// A pod that waits for a migration, with two vCPUs that have their CPUs already.
fn waiting(name: &str, incoming: &str) -> (Pod, Threads) {
    let qemu = ["-smp", "2", "-incoming", incoming];
    let pod = start(name, "2", &[], &[&qemu, &OTHER[..]].concat());
    wait_until("ready for the migration", || {
        (probe(&pod, "readiness") == (true, WAITING.into())).then_some(())
    });
    let threads = settled(&pod);
    (pod, threads)
}

/// Its threads, once it is isolated.
fn settled(pod: &Pod) -> Threads {
    wait_until(&format!("{} isolated", pod.name), || is_isolated(pod, 2).then_some(()));
    assert_isolated(pod, 2)
}

/// Send the guest of a new pod there, and hold both to their promise before, while and after it moves. While it is stopped
/// for the last of it, `moving` are QEMU's threads for the migration, as their names begin at the source and here.
fn receive(to: &Pod, waited: &Threads, more: &[&str], moving: [&[&str]; 2]) {
    let from = start("from", "2", &[], &[&["-smp", "2"], &OTHER[..]].concat());
    from.wait_running();
    wait_ready(&from);
    let ran = settled(&from);
    capabilities(&from, &[more, &["pause-before-switchover"]].concat());
    execute(&from, "migrate", &format!(r#"{{"uri":"{ADDRESS}"}}"#));
    wait_until("all but the last is sent", || {
        let status = execute(&from, "query-migrate", "{}");
        assert!(!status.contains("failed"), "{status}");
        status.contains(STOPPED).then_some(())
    });
    for (pod, before, names) in [(&from, &ran, moving[0]), (to, waited, moving[1])] {
        // Those of the migration among the others, in float.
        let threads = settled(pod);
        assert_eq!(threads.vcpus, before.vcpus);
        for name in names {
            let found = threads.others.iter().any(|thread| thread.name.starts_with(name));
            assert!(found, "no {name} in {threads:#?}");
        }
    }
    assert_eq!(probe(to, "readiness"), (true, WAITING.into()));
    execute(&from, "migrate-continue", &format!(r#"{{"state":"{STOPPED}"}}"#));

    wait_until("the guest came", || {
        (probe(to, "readiness") == (true, "isolated".into())).then_some(())
    });
    assert_eq!(settled(to).vcpus, waited.vcpus);
    wait_until("the guest is gone", || {
        let gone = (false, "the guest is postmigrate".to_owned());
        (probe(&from, "readiness") == gone).then_some(())
    });
    assert!(probe(&from, "liveness").0);
    // What is left of it hears no power button and is not waited for.
    run(&["kill", "-TERM", &from.pid.to_string()]);
    assert_eq!(run(&["kubelet-standin", "pod", "wait", &from.name]), "0");
    assert!(
        !from.logs().contains("did not power down"),
        "waited for: {}",
        from.logs()
    );
    wait_until("its instance ended", || {
        (state(&from).is_none() && !from.scope().exists()).then_some(())
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
        execute(&to, "migrate-incoming", &format!(r#"{{"uri":"{ADDRESS}"}}"#));
        receive(
            &to,
            &threads,
            &["multifd"],
            [&["mig/src/main", "mig/src/send"], &["mig/dst/recv"]],
        );
    });
}
