//! VMs that a rule adopts: in their container where crun copes with what CRI-O asks it, and in `stelia.slice`.

use super::pods::{Manifest, delete, exec, is_ready, qemu};
use super::{on_crio, restart_unit};
use crate::real::kubelet::frame::kubelet_journal;
use crate::real::kubelet::manifest::running_again;
use crate::support::*;

/// A shell that starts QEMU and stays.
pub fn unregistered(name: &str) -> Manifest {
    let script = format!("trap exit TERM; {} & wait; sleep 100000 & wait", qemu().join(" "));
    Manifest::new(name, &["sh", "-c", &script]).with_device()
}

fn is_adopted(pod: &Pod) -> bool {
    wrong_if_adopted(pod, is_qemus_vcpu).is_none() && pod.threads().others.len() >= 3
}

/// Everything that is restarted finds the VM as it was, and CRI-O still runs programs in its container.
fn assert_survives_restarts(pod: &Pod) {
    for unit in ["crio", "kubelet", "steliad"] {
        restart_unit(unit, pod, || is_adopted(pod));
        wait_until_or("kubelet says ready", kubelet_journal, || is_ready(pod));
    }
    assert_eq!(told_of(ADOPTED, pod).len(), 1);
    let shell = exec(pod, "sleep 1000 > /dev/null 2>&1 & echo started");
    assert_eq!(shell, "started\n");
    reconcile();
    run(&["steliactl", "verify", &pod.uid]);
}

#[test]
fn a_vm_is_adopted_in_its_container_and_killed_leaves_nothing() {
    on_crio(|| {
        configure("[[adopt]]\nuse = \"qemu\"\n");
        let pod = unregistered("inside").with_startup_probe(&["true"]).apply();
        until_adopted(&pod, is_qemus_vcpu);
        assert!(
            pod.is_in_place(),
            "crun answers what CRI-O asks of a container with threaded cgroups"
        );
        assert_survives_restarts(&pod);

        // kubelet has CRI-O make a container anew, whose VM is adopted too.
        kill("-KILL", pod.pid);
        let again = running_again("inside", 1);
        assert_ne!(again.cgroup, pod.cgroup);
        until_adopted(&again, is_qemus_vcpu);
        wait_until("nothing of the first one is left", || !pod.origin().exists());
        delete(&again);
    });
}

#[test]
fn a_vm_is_adopted_in_the_slice_and_given_back_when_it_ends() {
    on_crio(|| {
        configure("[[adopt]]\nuse = \"qemu\"\ntree = \"slice\"\n");
        let pod = unregistered("outside").with_startup_probe(&["true"]).apply();
        until_adopted(&pod, is_qemus_vcpu);
        assert!(!pod.is_in_place());
        let first = pod.file("cgroup.procs");
        assert_eq!(first, pod.pid.to_string(), "what is left in the origin");
        assert_survives_restarts(&pod);

        // The VM ends, its container lives on.
        let vcpus = pod.threads().vcpus;
        let vcpu = vcpus.first().expect("a vCPU").tid;
        kill("-KILL", vcpu);
        until_adoption_ended(&pod);
        let lists = lists_above(&pod.origin());
        assert!(lists.iter().all(String::is_empty), "{lists:?}");
        assert_eq!(running_again("outside", 0).pid, pod.pid);
        delete(&pod);
    });
}
