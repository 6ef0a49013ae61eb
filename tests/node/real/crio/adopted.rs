//! VMs that a rule adopts: in their container where crun copes with what CRI-O asks it, and in `stelia.slice`.

use std::fs;
use std::path::Path;

use stelia_cpus::CpuSet;

use super::node::said;
use super::pods::{Manifest, delete, exec, is_ready, qemu, running};
use super::{on_crio, restart};
use crate::adopted::{ADOPTED, journal, refused};
use crate::contained::configure;
use crate::support::host::{CGROUP, cpus, kind, partitioned, read, run, wait_until, wait_until_or};
use crate::support::pods::Pod;
use crate::support::promise::{near_pool, state};

/// A shell that starts QEMU and stays.
pub fn unregistered(name: &str) -> Manifest {
    let script = format!("trap exit TERM; {} & wait; sleep 100000 & wait", qemu().join(" "));
    Manifest::new(name, &["sh", "-c", &script]).with_device()
}

/// Whether each vCPU thread is alone on a CPU of the pod's, and everything else floats.
pub fn is_adopted(pod: &Pod) -> bool {
    let threads = pod.threads();
    let mut used = CpuSet::new();
    for vcpu in threads
        .vcpus
        .iter()
        .filter(|vcpu| vcpu.cgroup == pod.vcpu() && vcpu.allowed.len() == 1)
    {
        used = used.union(&vcpu.allowed);
    }
    let shared = near_pool(pod);
    let is_first = |tid: u32| tid == pod.pid && !pod.is_in_place();
    let others = threads.others.iter().filter(|thread| !is_first(thread.tid));
    state(pod).as_deref() == Some("isolated")
        && threads.vcpus.len() == 2
        && used == pod.exclusive()
        && others.clone().count() >= 3
        && others
            .into_iter()
            .all(|thread| thread.cgroup == pod.float() && thread.allowed == shared)
        && read(pod.vcpu().join("cpuset.cpus.partition")) == kind()
        && cpus(&read(pod.vcpu().join("cpuset.cpus.effective"))) == pod.exclusive()
        && pod.exclusive().is_subset(&partitioned())
}

pub fn until_adopted(pod: &Pod) {
    let seen = || format!(": {:?}, {:#?}", refused(pod), pod.threads());
    wait_until_or(&format!("{} is adopted", pod.name), seen, || {
        is_adopted(pod).then_some(())
    });
}

pub fn until_given_back(pod: &Pod) {
    wait_until("its CPUs are given back", || state(pod).is_none().then_some(()));
    wait_until("its cgroups are gone", || {
        (!pod.vcpu().exists() && !pod.scope().exists()).then_some(())
    });
    assert!(pod.exclusive().is_disjoint(&partitioned()));
    assert_eq!(read(pod.origin().join("cgroup.type")), "domain");
    for level in pod.origin().ancestors().take_while(|level| *level != Path::new(CGROUP)) {
        assert_eq!(read(level.join("cpuset.cpus.exclusive")), "", "{}", level.display());
    }
}

/// Everything that is restarted finds the VM as it was, and CRI-O still runs programs in its container.
fn stays_through_restarts(pod: &Pod) {
    for unit in ["crio", "kubelet", "steliad"] {
        restart(unit, pod, || is_adopted(pod));
        wait_until_or("kubelet says ready", said, || is_ready(pod).then_some(()));
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
        stays_through_restarts(&pod);

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
        stays_through_restarts(&pod);

        // The VM ends, its container lives on.
        let vcpus = pod.threads().vcpus;
        let vcpu = vcpus.first().expect("a vCPU").tid;
        run(&["kill", "-KILL", &vcpu.to_string()]);
        until_given_back(&pod);
        assert_eq!(running("outside", 0).pid, pod.pid);
        delete(&pod);
    });
}
