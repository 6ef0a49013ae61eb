//! VMs that do not register themselves, adopted by rules.

use test_vmm::recording::Vmm;

use crate::adopt_vmm::command;
use crate::support::*;

const NOT_ADOPTED: &str = "c84e6a1f92d74b0bb35d7e08f1a6429c";

fn options(env: &[&'static str]) -> Vec<&'static str> {
    [Accel::Kvm.device(), &["--cpus", "2", "--runtime", "runc"], env].concat()
}

/// A pod whose container begins with another process, as a launcher is.
fn launched(vmm: Vmm, env: &[&'static str]) -> Pod {
    let script = format!("{} & wait; sleep 1000", command(vmm).join(" "));
    Pod::start(&format!("vm-{}", vmm.name()), &options(env), &["sh", "-c", &script])
}

fn kill_vmm(pod: &Pod, vmm: Vmm) {
    let processes = container_and_nested(pod.pid).into_iter();
    let vmms = processes.filter(|(_, threads)| threads.iter().any(|thread| vmm.is_vcpu(&thread.name)));
    let pids: Vec<String> = vmms.map(|(pid, _)| pid.to_string()).collect();
    run(&["kill", "-KILL", pids.first().expect("a VMM")]);
}

#[test]
fn vms_of_every_vmm_are_adopted_when_they_start_and_given_back_when_they_end() {
    // No audit comes by: the kernel's uevents tell the daemon, in its sandbox, of each VM.
    let rules = Vmm::ALL.map(|vmm| format!("[[adopt]]\nuse = \"{}\"\n", vmm.name()));
    configured_on_kvm(&format!("{NO_AUDIT}{}", rules.concat()), || {
        for vmm in Vmm::ALL {
            let pod = launched(vmm, &[]);
            until_adopted(&pod, |thread| vmm.is_vcpu(&thread.name));
            assert_eq!(pod.is_in_place(), is_sid());
            assert_eq!(told_of(ADOPTED, &pod).len(), 1);
            let list = run("steliactl list -o json");
            assert_says(&list, &["\"adopted_by\"", vmm.name()]);
            // Neither a restart of the daemon nor an audit changes anything.
            restart("steliad");
            reconcile();
            assert_eq!(wrong_if_adopted(&pod, |thread| vmm.is_vcpu(&thread.name)), None);
            assert_eq!(told_of(ADOPTED, &pod).len(), 1);
            // The VM ends, its container lives on.
            kill_vmm(&pod, vmm);
            until_adoption_ended(&pod);
            pod.kill();
        }
    });
}

#[test]
fn what_cannot_or_may_not_be_adopted_is_left_alone_and_said_once() {
    let [cloud_hypervisor, firecracker, crosvm] = Vmm::ALL;
    let rules = "[[adopt]]\nuse = \"cloud-hypervisor\"\n[[adopt]]\nuse = \"crosvm\"\n[[adopt]]\nuse = \"firecracker\"\npods = [\"other-*\"]\n";
    configured_on_kvm(rules, || {
        // Its first process is the VMM: only in place can it be adopted.
        let own = Pod::start("bare", &options(&[]), &command(cloud_hypervisor));
        let refuses = launched(crosvm, &["--env", "STELIA_ADOPT=no"]);
        let ruleless = launched(firecracker, &[]);
        let reason_of = |pod: &Pod| {
            let what = format!("{} is refused", pod.name);
            wait_until(&what, || refused(pod))
        };
        if is_sid() {
            until_adopted(&own, |thread| cloud_hypervisor.is_vcpu(&thread.name));
        } else {
            let (reason, text) = reason_of(&own);
            assert_eq!(reason, "NoAnchor", "{text}");
            assert!(text.contains("does not cope with threaded cgroups"), "{text}");
            assert_says(&run("steliactl list --unmanaged"), &["NoAnchor"]);
        }
        assert_eq!(reason_of(&refuses).0, "ContainerRefuses");
        reconcile();
        let list = run("steliactl list --unmanaged");
        assert_says(&list, &["ContainerRefuses"]);
        for pod in [&own, &refuses] {
            let expected = if pod.name == own.name && is_sid() { 0 } else { 1 };
            assert_eq!(told_of(NOT_ADOPTED, pod).len(), expected, "{}", pod.name);
        }
        // No rule is of it: nothing is said at all.
        assert_eq!((refused(&ruleless), told_of(NOT_ADOPTED, &ruleless).len()), (None, 0));
        for pod in [&refuses, &ruleless] {
            assert_eq!(pod.state(), None);
            assert_eq!(pod.file("cgroup.type"), "domain");
            for thread in all_threads(container_and_nested(pod.pid)) {
                assert_eq!(thread.cgroup, pod.origin(), "{thread:?}");
            }
        }
        // A preview of a rule says what it would do with the VMs that are there, and does nothing.
        let later = "[[adopt]]\nuse = \"firecracker\"\n";
        put("/run/later.toml", later);
        let preview = json(&run("steliactl list --unmanaged --config /run/later.toml -o json"));
        assert_eq!(preview.as_array().map(Vec::len), Some(1), "{preview}");
        let words = ["pod", "reason"].map(|word| &preview[0][word]);
        assert_eq!(words, [&*ruleless.uid, "Adoptable"]);
        assert_eq!(ruleless.state(), None);
        // A rule that comes later is of the VMs that are there.
        configure(later);
        until_adopted(&ruleless, |thread| firecracker.is_vcpu(&thread.name));
        assert_eq!(refused(&refuses), None, "no rule is of it any more");
        // The CPUs are given back while the VM runs on.
        unconfigure();
        ruleless.deregister();
        ruleless.wait_released();
        let threads = all_threads(container_and_nested(ruleless.pid));
        for thread in &threads {
            assert_eq!(thread.cgroup, ruleless.origin(), "{thread:?}");
        }
        let vcpus = threads.iter().filter(|thread| firecracker.is_vcpu(&thread.name));
        assert_eq!(vcpus.count(), 2);
    });
}
