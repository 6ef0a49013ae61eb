//! Containers whose own cgroup is the partition: ordinary pods with exclusive CPUs, adopted by a rule.

use crate::support::*;

/// A container from its start to `steliactl release`. With runc alone containerd is restarted, too, and more lists of CPUs are tried.
fn has_its_cpus_through_restarts(runtime: &str) {
    let pod = database(runtime, runtime, &[]);
    until_partition(&pod, "after its start");
    assert!(!pod.scope().exists(), "no scope is made");

    let switches = recorded_under_noise(&pod.exclusive());
    assert!(!switches.is_empty());
    assert_eq!(foreign(&pod, &switches), [], "{switches:#?}");

    let (units, lists): (&[&str], &[&str]) = match runtime {
        "runc" => (&["steliad", "containerd"], &["6-7", "5-7", "6"]),
        _ => (&["steliad"], &["6-7"]),
    };
    for unit in units.iter().copied() {
        restart(unit);
        until_partition(&pod, &format!("after a restart of {unit}"));
    }
    run("systemctl daemon-reload");
    until_partition(&pod, "after daemon-reload");
    // A shell that is exec'd into it stays in the partition.
    pod.exec_sleeper();
    reconcile();
    until_partition(&pod, "beside a shell");
    assert_eq!(counters(), (0, 0), "drift since the daemon's restart");

    // CPUs by a resize in place. The first list is the present one, which kubelet writes again when it restarts.
    let same = pod.exclusive().to_string();
    let lists: Vec<&str> = [&[same.as_str()], lists].concat();
    for list in lists {
        let pod = pod.resize("--cpuset", list);
        reconcile();
        until_partition(&pod, &format!("resized to {list}"));
    }
    let pod = pod.now();
    // While the rule is there it would be adopted again.
    configure(NO_AUDIT);
    pod.deregister();
    wait_until("given back", || is_given_back(&pod));
    pod.delete(0);
}

#[test]
fn an_ordinary_container_has_its_cpus_for_itself_through_restarts_of_everything() {
    configured(DATABASES, || has_its_cpus_through_restarts("runc"));
}

#[test]
fn an_ordinary_container_of_crun_has_its_cpus_for_itself_through_restarts() {
    configured(DATABASES, || has_its_cpus_through_restarts("crun"));
}

/// A container with a CPU of its own, one on the shared CPUs, and the entry of an init container whose CPU is used again.
#[test]
fn other_containers_of_the_pod_run_beside_the_partition() {
    let rule = format!("{DATABASES}containers = [\"instance\"]\n");
    configured(&rule, || {
        let pod = database("main", "runc", &[]);
        let first = first_of(&pod.exclusive()).to_string();
        run(&["kubelet-standin", "entry", "add", &pod.uid, "init", &first, "--reused"]);
        until_partition(&pod, "beside the entry of an init container that ended");

        let beside = |name: &str, options: &[&str]| {
            let options = [&["--in", &pod.name, "--container", name, "--runtime", "runc"], options].concat();
            Pod::start(name, &options, &["sleep", "100000"])
        };
        let with_cpu = beside("with-cpu", &["--cpus", "1"]);
        let shares = beside("shares", &["--cpu-limit", "500m"]);
        reconcile();
        until_partition(&pod, "beside other containers of its pod");
        assert!(with_cpu.exclusive().is_disjoint(&pod.exclusive()));
        let inside = |pod: &Pod| cpus(&pod.file("cpuset.cpus.effective"));
        assert_eq!(inside(&with_cpu), with_cpu.exclusive());
        wait_until("the pool's container has the pool", || inside(&shares) == pool());
        // The rule names one container.
        assert!(with_cpu.exclusive().is_disjoint(&partitioned()));

        // Both grow and shrink beside each other: what the one leaves the other may get.
        let (main, side) = (pod.exclusive(), with_cpu.exclusive());
        let pod = pod.resize("--cpuset", "6-7");
        let with_cpu = with_cpu.resize("--cpuset", &main.to_string());
        reconcile();
        until_partition(&pod, "with other CPUs");
        wait_until("its neighbour has the CPUs that it left", || inside(&with_cpu) == main);
        assert!(side.is_disjoint(&partitioned()));

        let before = own(&pod);
        let pod = pod.restart();
        assert_ne!(own(&pod), before);
        until_partition(&pod, "after the container's restart");
    });
}
