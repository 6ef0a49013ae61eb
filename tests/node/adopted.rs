//! VMs that do not register themselves, adopted by rules.

use stelia_cpus::CpuSet;

use crate::adopt_vmm::{SHAPES, Shape, TEST_VMM};
use crate::contained::{configure, unconfigure};
use crate::in_place::is_sid;
use crate::kvm::needs_kvm;
use crate::support::guest::Accel;
use crate::support::host::{
    Thread, container_and_nested, cpus, kind, partitioned, read, run, wait_until, wait_until_or,
};
use crate::support::pods::{Pod, on_node_undoing};
use crate::support::promise::{describe, near_pool, state};

pub const ADOPTED: &str = "3d1f0b7c5e9a4c62a8f4d2b96071ce58";
const NOT_ADOPTED: &str = "c84e6a1f92d74b0bb35d7e08f1a6429c";

fn options(env: &[&'static str]) -> Vec<&'static str> {
    [Accel::Kvm.device(), &["--cpus", "2", "--runtime", "runc"], env].concat()
}

/// A pod whose container begins with the VMM itself.
fn bare(shape: &Shape) -> Pod {
    let command = [TEST_VMM, "--like", shape.like, "--vcpus", "2", "--memory", "/tmp/guest"];
    Pod::start(&format!("bare-{}", shape.like), &options(&[]), &command)
}

/// One whose container begins with another process, as a launcher is.
fn launched(shape: &Shape, env: &[&'static str]) -> Pod {
    let vmm = format!(
        "{TEST_VMM} --like {} --vcpus 2 --memory /tmp/guest & wait; sleep 1000",
        shape.like
    );
    Pod::start(&format!("vm-{}", shape.like), &options(env), &["sh", "-c", &vmm])
}

fn kill_vmm(pod: &Pod, shape: &Shape) {
    let is_vcpu = |thread: &Thread| thread.name.starts_with(shape.vcpu);
    let processes = container_and_nested(pod.pid).into_iter();
    let vmm = processes.filter(|(_, threads)| threads.iter().any(is_vcpu));
    let vmm: Vec<String> = vmm.map(|(pid, _)| pid.to_string()).collect();
    run(&["kill", "-KILL", vmm.first().expect("a VMM")]);
}

/// The reason and the text why the VM of this pod is not adopted.
pub fn refused(pod: &Pod) -> Option<(String, String)> {
    let described = describe();
    let all = described["node"]["unadopted"].as_array().expect("a list");
    let one = all.iter().find(|one| one["pod"] == *pod.uid)?;
    let text = |name: &str| one[name].as_str().expect("a text").to_owned();
    Some((text("reason"), text("text")))
}

pub fn journal(id: &str, pod: &Pod) -> Vec<String> {
    let of_pod = format!("STELIA_POD_UID={}", pod.uid);
    let told = run(&[
        "journalctl",
        "-b",
        "-q",
        "-o",
        "cat",
        &format!("MESSAGE_ID={id}"),
        &of_pod,
    ]);
    told.lines().map(str::to_owned).collect()
}

/// Its vCPU threads have a CPU each, and all others of the container float; in a scope its first process stays behind.
fn assert_adopted(pod: &Pod, shape: &Shape) {
    let threads: Vec<Thread> = container_and_nested(pod.pid).into_values().flatten().collect();
    let is_vcpu = |thread: &&Thread| thread.name.starts_with(shape.vcpu);
    let mut used = CpuSet::new();
    for vcpu in threads.iter().filter(is_vcpu) {
        assert_eq!((vcpu.cgroup.clone(), vcpu.allowed.len()), (pod.vcpu(), 1), "{vcpu:?}");
        used = used.union(&vcpu.allowed);
    }
    assert_eq!(used, pod.exclusive(), "{threads:#?}");
    let shared = near_pool(pod);
    for other in threads.iter().filter(|thread| !is_vcpu(thread)) {
        let place = if other.tid == pod.pid && !pod.is_in_place() {
            pod.origin()
        } else {
            pod.float()
        };
        assert_eq!(other.cgroup, place, "{other:?}");
        assert!(other.cgroup == pod.origin() || other.allowed == shared, "{other:?}");
    }
    assert_eq!(read(pod.vcpu().join("cpuset.cpus.partition")), kind());
    assert_eq!(cpus(&read(pod.vcpu().join("cpuset.cpus.effective"))), pod.exclusive());
    assert!(pod.exclusive().is_subset(&partitioned()));
}

fn until_adopted(pod: &Pod, shape: &Shape) {
    wait_until_or(
        &format!("{} is adopted", pod.name),
        || format!(": {:?}", refused(pod)),
        || (state(pod).as_deref() == Some("isolated")).then_some(()),
    );
    assert_adopted(pod, shape);
}

pub fn adopting(rules: &str, body: impl FnOnce()) {
    needs_kvm();
    on_node_undoing(unconfigure, || {
        configure(rules);
        body();
    });
}

#[test]
fn vms_of_every_vmm_are_adopted_when_they_start_and_given_back_when_they_end() {
    let rules: String = SHAPES
        .iter()
        .map(|shape| format!("[[adopt]]\nuse = \"{}\"\n", shape.like))
        .collect();
    adopting(&rules, || {
        for shape in &SHAPES {
            let pod = launched(shape, &[]);
            until_adopted(&pod, shape);
            assert_eq!(pod.is_in_place(), is_sid());
            println!("  {}", journal(ADOPTED, &pod).join("\n"));
            assert_eq!(journal(ADOPTED, &pod).len(), 1);
            let list = run(&["steliactl", "list", "-o", "wide"]);
            assert!(list.contains("ADOPTED BY") && list.contains(shape.like), "{list}");
            // Neither a restart of the daemon nor an audit changes anything.
            run(&["systemctl", "restart", "steliad"]);
            run(&["steliactl", "reconcile"]);
            assert_adopted(&pod, shape);
            assert_eq!(journal(ADOPTED, &pod).len(), 1);
            // The VM ends, its container lives on.
            kill_vmm(&pod, shape);
            wait_until("its CPUs are given back", || state(&pod).is_none().then_some(()));
            wait_until("its cgroups are gone", || {
                (!pod.vcpu().exists() && !pod.scope().exists()).then_some(())
            });
            assert!(pod.exclusive().is_disjoint(&partitioned()));
            assert_eq!(read(pod.origin().join("cgroup.type")), "domain");
            pod.kill();
        }
    });
}

#[test]
fn what_cannot_or_may_not_be_adopted_is_left_alone_and_said_once() {
    let [cloud_hypervisor, firecracker, crosvm] = &SHAPES;
    let rules = "[[adopt]]\nuse = \"cloud-hypervisor\"\n[[adopt]]\nuse = \"crosvm\"\n[[adopt]]\nuse = \"firecracker\"\npods = [\"other-*\"]\n";
    adopting(rules, || {
        // Its first process is the VMM: only in place can it be adopted.
        let own = bare(cloud_hypervisor);
        let refuses = launched(crosvm, &["--env", "STELIA_ADOPT=no"]);
        let ruleless = launched(firecracker, &[]);
        let reason_of = |pod: &Pod| {
            let what = format!("{} is refused", pod.name);
            wait_until(&what, || refused(pod))
        };
        if is_sid() {
            until_adopted(&own, cloud_hypervisor);
        } else {
            let (reason, text) = reason_of(&own);
            assert_eq!(reason, "NoAnchor", "{text}");
            assert!(text.contains("does not cope with threaded cgroups"), "{text}");
        }
        assert_eq!(reason_of(&refuses).0, "ContainerRefuses");
        run(&["steliactl", "reconcile"]);
        let list = run(&["steliactl", "list"]);
        println!("{list}");
        assert!(
            list.contains("NOT ADOPTED") && list.contains("ContainerRefuses"),
            "{list}"
        );
        for pod in [&own, &refuses] {
            let expected = if pod.name == own.name && is_sid() { 0 } else { 1 };
            assert_eq!(journal(NOT_ADOPTED, pod).len(), expected, "{}", pod.name);
        }
        // No rule is of it: nothing is said at all.
        assert_eq!((refused(&ruleless), journal(NOT_ADOPTED, &ruleless).len()), (None, 0));
        for pod in [&refuses, &ruleless] {
            assert_eq!(state(pod), None);
            assert_eq!(read(pod.origin().join("cgroup.type")), "domain");
            let allowed = container_and_nested(pod.pid).into_values().flatten();
            allowed.for_each(|thread| assert_eq!(thread.cgroup, pod.origin(), "{thread:?}"));
        }
        // A rule that comes later is of the VMs that are there.
        configure("[[adopt]]\nuse = \"firecracker\"\n");
        until_adopted(&ruleless, firecracker);
        assert_eq!(refused(&refuses), None, "no rule is of it any more");
        // The CPUs are given back while the VM runs on.
        unconfigure();
        run(&["steliactl", "deregister", &ruleless.uid]);
        wait_until("given back", || state(&ruleless).is_none().then_some(()));
        let threads = container_and_nested(ruleless.pid).into_values().flatten();
        let back = threads.map(|thread| {
            assert_eq!(thread.cgroup, ruleless.origin(), "{thread:?}");
            thread.name.starts_with(firecracker.vcpu)
        });
        assert_eq!(back.filter(|is_vcpu| *is_vcpu).count(), 2);
    });
}
