//! VMs that a rule adopts: in their container where crun copes with what CRI-O asks it, and in `stelia.slice`.

use std::fs;

use super::node::last_logs;
use super::pods::{Manifest, delete, exec, is_ready, qemu, running};
use super::{on_crio, restart};
use crate::adopted::{ADOPTED, journal};
use crate::contained::configure;
use crate::real::common::adopted::{is_adopted, until_adopted, until_given_back};
use crate::support::host::{read, run, wait_until, wait_until_or};
use crate::support::pods::Pod;

/// A shell that starts QEMU and stays.
pub fn unregistered(name: &str) -> Manifest {
    let script = format!("trap exit TERM; {} & wait; sleep 100000 & wait", qemu().join(" "));
    Manifest::new(name, &["sh", "-c", &script]).with_device()
}

/// Everything that is restarted finds the VM as it was, and CRI-O still runs programs in its container.
fn assert_survives_restarts(pod: &Pod) {
    for unit in ["crio", "kubelet", "steliad"] {
        restart(unit, pod, || is_adopted(pod));
        wait_until_or("kubelet says ready", last_logs, || is_ready(pod).then_some(()));
    }
    assert_eq!(journal(ADOPTED, pod).len(), 1);
    let shell = exec(pod, "sleep 1000 > /dev/null 2>&1 & echo started");
    assert_eq!(shell, "started\n");
    run(&["steliactl", "reconcile"]);
    run(&["steliactl", "verify", &pod.uid]);
}

/// The verdicts on OCI runtimes.
fn print_verdicts() {
    for entry in fs::read_dir("/run/stelia/runtimes").into_iter().flatten().flatten() {
        println!("  verdict {}: {}", entry.path().display(), read(entry.path()));
    }
}

#[test]
fn a_vm_is_adopted_in_its_container_and_killed_leaves_nothing() {
    on_crio(|| {
        configure("[[adopt]]\nuse = \"qemu\"\n");
        let pod = unregistered("inside").with_startup_probe(&["true"]).apply();
        until_adopted(&pod);
        print_verdicts();
        assert!(
            pod.is_in_place(),
            "crun answers what CRI-O asks of a container with threaded cgroups"
        );
        println!("  {}", journal(ADOPTED, &pod).join("\n"));
        println!("{}", run(&["steliactl", "list", "-o", "wide"]));
        assert_survives_restarts(&pod);

        // kubelet has CRI-O make a container anew, whose VM is adopted too.
        run(&["kill", "-KILL", &pod.pid.to_string()]);
        let again = running("inside", 1);
        assert_ne!(again.cgroup, pod.cgroup);
        until_adopted(&again);
        wait_until("nothing of the first one is left", || {
            (!pod.origin().exists()).then_some(())
        });
        delete(&again);
    });
}

#[test]
fn a_vm_is_adopted_in_the_slice_and_given_back_when_it_ends() {
    on_crio(|| {
        configure("[[adopt]]\nuse = \"qemu\"\ntree = \"slice\"\n");
        let pod = unregistered("outside").with_startup_probe(&["true"]).apply();
        until_adopted(&pod);
        assert!(!pod.is_in_place());
        let first = read(pod.origin().join("cgroup.procs"));
        assert_eq!(first, pod.pid.to_string(), "what is left in the origin");
        assert_survives_restarts(&pod);

        // The VM ends, its container lives on.
        let vcpus = pod.threads().vcpus;
        let vcpu = vcpus.first().expect("a vCPU").tid;
        run(&["kill", "-KILL", &vcpu.to_string()]);
        until_given_back(&pod);
        assert_eq!(running("outside", 0).pid, pod.pid);
        delete(&pod);
    });
}
