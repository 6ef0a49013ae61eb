//! What somebody changes behind the daemon's back is put right, counted and told.

use crate::support::*;

const DRIFT: &str = "MESSAGE_ID=8e5be1c0b4a84b3f9d2a6f0c7d1e4a52";

fn told() -> usize {
    journal(DRIFT).lines().count()
}

#[test]
fn every_kind_of_drift_is_repaired_at_once_and_told() {
    on_node(|| {
        let pod = Pod::vm("drifting", 2);
        let before = assert_isolated(&pod, 2);
        let qemu = before.one("qemu-system").tid.to_string();
        let (first, second) = (before.vcpus[0].tid.to_string(), before.vcpus[1].tid.to_string());
        let drifts: [(&str, &dyn Fn()); 7] = [
            ("float's CPUs", &|| put(pod.float().join("cpuset.cpus"), "0-7")),
            ("the partition", &|| {
                put(pod.vcpu().join("cpuset.cpus.partition"), "member")
            }),
            ("the exclusive list", &|| {
                put(pod.vcpu().join("cpuset.cpus.partition"), "member");
                put(pod.vcpu().join("cpuset.cpus.exclusive"), "\n");
            }),
            ("a vCPU thread in float", &|| {
                put(pod.float().join("cgroup.threads"), &first)
            }),
            ("a thread that is no vCPU", &|| {
                put(pod.vcpu().join("cgroup.threads"), &qemu)
            }),
            ("QEMU in its container's own cgroup", &|| {
                put(pod.origin().join("cgroup.procs"), &qemu);
            }),
            ("slice's list", &|| {
                run("systemctl daemon-reload");
                run("systemctl daemon-reexec");
                put(pod.vcpu().join("cpuset.cpus.partition"), "member");
            }),
        ];
        for (what, drift) in drifts {
            let (counted, lines) = (counters(), told());
            drift();
            wait_until(&format!("{what}: repaired"), || is_isolated(&pod, 2));
            let after = assert_isolated(&pod, 2);
            assert_eq!(after.vcpus, before.vcpus, "{what}");
            wait_until("counted", || counters().1 > counted.1);
            wait_until("told", || told() > lines);
        }
        // No event tells of an affinity, nor of the mask of the kernel's workers: the audit finds them. One is asked for here.
        let counted = counters();
        run(&["taskset", "-pc", "0-1", &second]);
        put("/sys/devices/virtual/workqueue/cpumask", "ff");
        let report = run("steliactl reconcile");
        println!("  {}", report.replace('\n', "; "));
        assert_eq!(assert_isolated(&pod, 2).vcpus, before.vcpus);
        assert!(counters().1 > counted.1);
        // What is right is left alone.
        let report = run("steliactl --json reconcile").replace(": ", ":");
        assert_says(&report, &["\"writes\":0"]);
    });
}

pub fn online_file(cpu: u32) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/online")
}

pub fn all_online() {
    let present = cpus(&read("/sys/devices/system/cpu/present"));
    // The first one cannot be taken offline and has no such file.
    for cpu in present.iter().filter(|cpu| *cpu != 0) {
        put(online_file(cpu), "1");
    }
}

#[test]
fn a_cpu_that_goes_offline_and_comes_back_is_the_vms_again() {
    on_node_undoing(all_online, || {
        // Emulated, whatever this node has: a handful of tests see to it that nothing rests on KVM.
        let pod = start_on(Accel::Tcg, "hotplug", "2", &[], &["-smp", "2"]).running();
        let before = assert_isolated(&pod, 2);
        for cpu in pod.exclusive().iter().filter(|cpu| *cpu != 0) {
            put(online_file(cpu), "0");
        }
        reconcile();
        assert!(pod.shows("offline"), "{}", pod.described());
        all_online();
        wait_until("isolated again", || {
            reconcile();
            is_isolated(&pod, 2)
        });
        assert_eq!(assert_isolated(&pod, 2).vcpus, before.vcpus);
    });
}
