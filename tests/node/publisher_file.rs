//! What the cluster's publisher is told, on the node: by the file and its lock, as another process finds them.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use stelia_api::publication::{DIRECTORY, FILE, LOCK, Publication};

use crate::support::*;

fn path(name: &str) -> PathBuf {
    [DIRECTORY, name].iter().collect()
}

pub fn told() -> Option<Publication> {
    let bytes = fs::read(path(FILE)).ok()?;
    Some(Publication::parse(&bytes).expect("a file of its own version"))
}

pub fn wait_told<T>(what: &str, is: impl Fn(&Publication) -> Option<T>) -> T {
    wait_until_or(what, || format!("{:?}", told()), || told().as_ref().and_then(&is))
}

/// Whether another process may take the lock.
fn is_locked() -> bool {
    let lock = path(LOCK);
    let tried = output(&["flock", "--shared", "--nonblock", lock.to_str().expect("path"), "true"]);
    !tried.status.success()
}

/// The reasons of a pod's events, by number.
fn events(told: &Publication, pod: &Pod) -> Vec<(u64, String)> {
    let own = told.events.iter().filter(|event| event.uid == pod.uid);
    own.map(|event| (event.number, event.reason.clone())).collect()
}

fn problem() -> Option<String> {
    describe()["node"]["publishing"]["problem"].as_str().map(str::to_owned)
}

fn undo() {
    output(&["umount", DIRECTORY]);
    unconfigure();
}

#[test]
fn the_cluster_is_told_of_a_vms_life_and_no_vm_is_hurt_where_it_cannot_be() {
    on_node_undoing(undo, || {
        assert!(told().is_none(), "it is off");
        configure("publish = \"stelia\"\n");
        let free = wait_told("the node is ready", |told| told.ready.status.then(|| told.clone()));
        assert!(is_locked());
        assert_eq!(free.pods.len(), 0);

        // A VM, whose CPUs nobody else is offered any more.
        let pod = Pod::vm("published", 2);
        let before = assert_isolated(&pod, 2);
        let began = Instant::now();
        let isolated = wait_told("it is isolated", |told| {
            told.pods.iter().find(|own| own.isolated && own.uid == pod.uid).cloned()
        });
        println!("  isolated -> told: at most {} ms", began.elapsed().as_millis());
        assert_eq!((&*isolated.name, &*isolated.reason), ("published", "Isolated"));
        let with_vm = told().expect("a file");
        assert_ne!(with_vm.object, free.object);
        let own = events(&with_vm, &pod);
        assert!(matches!(&own[..], [(_, reason)] if reason == "Isolated"), "{own:?}");

        // Another daemon goes on where this one ended.
        run("systemctl stop steliad");
        assert!(!is_locked(), "nobody says that it is true");
        run("systemctl start steliad");
        wait_until("it is said again", is_locked);
        assert_eq!(told().expect("a file"), with_vm, "nothing happened meanwhile");

        // kubelet's file cannot be used: whose CPUs are free is not known.
        let good = fs::read(STATE).expect(STATE);
        replace_state(b"{\"policyName\":\"static\",\"defaultCpuSet\":\"0-7\",\"checksum\":1}");
        let unready = wait_told("the node is not ready", |told| {
            (!told.ready.status).then(|| told.clone())
        });
        assert_eq!((&*unready.ready.reason, unready.object), ("KubeletStateUnusable", None));
        assert!(unready.pods[0].isolated, "its promise holds");
        replace_state(&good);
        wait_told("it is ready again", |told| {
            (told.ready.status && told.object.is_some()).then_some(())
        });

        // The folder is full: the VM notices nothing, and an operator does.
        run(&["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=16", "tmpfs", DIRECTORY]);
        put(path("filler"), [0; 4096]);
        reconcile();
        let said = wait_until("it is said", problem);
        assert!(said.contains("No space left"), "{said}");
        let doctor = utf8(&output("steliactl doctor").stdout);
        let mut lines = doctor.lines();
        assert!(lines.any(|line| line.starts_with("WARN  not-published")), "{doctor}");
        assert_eq!(assert_isolated(&pod, 2), before);
        run(&["umount", DIRECTORY]);
        reconcile();
        wait_until("it is written again", || problem().is_none());

        // It ends, and is told with a number above the others.
        pod.delete(0);
        let all = wait_told("it is released", |told| {
            let own = events(told, &pod);
            own.iter().any(|(_, reason)| reason == "Released").then_some(own)
        });
        assert!(all.is_sorted_by(|a, b| a.0 < b.0) && all[0] == own[0], "{all:?}");

        unconfigure();
        wait_until("switched off it is gone", || !path(FILE).exists() && !is_locked());
        assert!(read("/proc/mounts").lines().all(|line| !line.contains(DIRECTORY)));
    });
}
