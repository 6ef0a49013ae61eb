//! VMs in containers of k3s's containerd.

use std::path::Path;

use serde_json::Value;

use super::node::{DATA, restart};
use super::on_k3s;
use super::pods::{another, registered, shell, started, unregistered, until_ready};
use crate::adopted::{ADOPTED, journal, refused};
use crate::contained::configure;
use crate::container::is_partition;
use crate::real::common::adopted::{is_adopted, until_adopted, until_given_back};
use crate::real::kubelet::manifest::{INSTANCE, delete};
use crate::support::host::{container_of, read, run, wait_until, wait_until_or};
use crate::support::pods::Pod;
use crate::support::promise::{assert_given_back, assert_isolated, is_isolated, state};

/// Where k3s's containerd keeps its containers.
const TASKS: &str = "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io";

/// The folder of a container is where steliad looks for its configuration.
fn assert_in_k3s(pod: &Pod) {
    let scope = pod.origin();
    let scope = scope.file_name().and_then(|name| name.to_str()).expect("a scope");
    let id = scope
        .strip_prefix("cri-containerd-")
        .and_then(|name| name.strip_suffix(".scope"));
    let config = Path::new(TASKS)
        .join(id.expect("a container of containerd"))
        .join("config.json");
    let config: Value = serde_json::from_str(&read(config)).expect("JSON");
    assert_eq!(config["annotations"]["io.kubernetes.cri.container-name"], INSTANCE);
}

/// The pod's name is in no cgroup and no file of kubelet's: it is from the container's configuration.
fn assert_named(pods: &[&Pod]) {
    let list = run(&["steliactl", "list", "-o", "wide"]);
    println!("{list}");
    for pod in pods {
        let shown = run(&["steliactl", "show", &pod.uid]);
        for (word, value) in [
            ("PodNamespace", "default"),
            ("PodName", &*pod.name),
            ("Container", INSTANCE),
        ] {
            let line = shown.lines().find_map(|line| line.strip_prefix(&format!("{word}:")));
            assert_eq!(line.map(str::trim), Some(value), "{shown}");
        }
        assert!(list.contains(&format!("default/{}", pod.name)), "{list}");
    }
}

/// The container in which k3s's containerd makes the same pod anew after its first process was killed.
fn killed(pod: &Pod) -> Pod {
    run(&["kill", "-KILL", &pod.pid.to_string()]);
    let again = another(pod.name.trim_end_matches("-node"), pod.pid);
    assert_eq!((&again.uid, &again.cpus), (&pod.uid, &pod.cpus));
    assert_ne!(again.cgroup, pod.cgroup);
    again
}

#[test]
fn vms_stay_isolated_through_a_restart_of_k3s_and_everything_is_given_back() {
    on_k3s(|| {
        configure("[[adopt]]\nuse = \"qemu\"\ntree = \"slice\"\n");
        let vm = started(&registered("vm"));
        vm.wait_running();
        until_ready("vm");
        let before = assert_isolated(&vm, 2);
        let adopted = started(&unregistered("adopted"));
        until_adopted(&adopted);
        assert!(!adopted.is_in_place());
        wait_until("the first one floats beside the second", || {
            is_isolated(&vm, 2).then_some(())
        });
        assert_in_k3s(&vm);
        assert_in_k3s(&adopted);
        assert_named(&[&vm, &adopted]);

        restart();
        for (name, pod) in [("vm", &vm), ("adopted", &adopted)] {
            let now = another(name, 0);
            assert_eq!(
                (now.pid, &now.cgroup),
                (pod.pid, &pod.cgroup),
                "{name} after the restart"
            );
            until_ready(name);
        }
        run(&["steliactl", "reconcile"]);
        assert!(is_adopted(&adopted), "{:#?}", adopted.threads());
        let now = assert_isolated(&vm, 2);
        assert_eq!(
            (now.vcpus, now.anchor),
            (before.vcpus, before.anchor),
            "no thread was moved"
        );
        assert_eq!(journal(ADOPTED, &adopted).len(), 1);
        run(&["steliactl", "verify"]);

        // The adopted VM ends and its container lives on; the registered one is made anew.
        let vcpus = adopted.threads().vcpus;
        run(&["kill", "-KILL", &vcpus.first().expect("a vCPU").tid.to_string()]);
        until_given_back(&adopted);
        assert_eq!(another("adopted", 0).pid, adopted.pid);
        delete("adopted");
        let again = killed(&vm);
        again.wait_running();
        until_ready("vm");
        let before = assert_isolated(&again, 2);
        wait_until("nothing of the first one is left", || {
            (!vm.origin().exists()).then_some(())
        });
        run(&["steliactl", "deregister", &again.uid]);
        assert_given_back(&again, before);
        delete("vm");
    });
}

#[test]
fn a_vm_is_adopted_in_its_container_if_the_runtime_of_k3s_copes() {
    on_k3s(|| {
        configure("[[adopt]]\nuse = \"qemu\"\n");
        let pod = started(&unregistered("inside"));
        until_adopted(&pod);
        println!("  {}", journal(ADOPTED, &pod).join("\n"));
        // It is the one beside k3s's shim that was tried, not the node's own.
        let verdicts = std::fs::read_dir("/run/stelia/runtimes")
            .into_iter()
            .flatten()
            .flatten();
        let verdicts: Vec<Value> = verdicts
            .filter_map(|file| serde_json::from_str(&read(file.path())).ok())
            .collect();
        println!("  {verdicts:#?}");
        let runtime = verdicts
            .iter()
            .find(|one| one["binary"].as_str().is_some_and(|path| path.starts_with(DATA)));
        let runtime = runtime.unwrap_or_else(|| panic!("no runtime in {DATA}: {verdicts:?}"));
        assert_eq!(runtime["copes"], pod.is_in_place());
        assert_in_k3s(&pod);
        let again = killed(&pod);
        until_adopted(&again);
        delete("inside");
        wait_until("no instance", || state(&again).is_none().then_some(()));
    });
}

#[test]
fn a_whole_container_is_a_partition_and_made_anew_is_one_again() {
    on_k3s(|| {
        configure("[[adopt]]\nname = \"databases\"\nkind = \"container\"\npods = [\"database-*\"]\n");
        let busy = "trap exit TERM; for n in 1 2 3; do { while :; do :; done; } & done; wait";
        let mut pod = started(&shell("database-one", busy));
        for time in ["first", "second"] {
            let seen = || format!(": {:?}, {:?}", state(&pod), refused(&pod));
            wait_until_or(&format!("a partition the {time} time"), seen, || {
                is_partition(&pod).then_some(())
            });
            for thread in container_of(pod.pid).into_values().flatten() {
                let is_alone = thread.cgroup == pod.origin() && thread.allowed.is_subset(&pod.exclusive());
                assert!(is_alone, "{thread:?}");
            }
            run(&["steliactl", "verify", &pod.uid]);
            pod = killed(&pod);
        }
        delete("database-one");
    });
}
