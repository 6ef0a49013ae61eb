//! Containers whose own cgroup is the partition: ordinary pods with exclusive CPUs, adopted by a rule.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stelia_cpus::CpuSet;

use crate::adopted::refused;
use crate::contained::{configure, unconfigure};
use crate::noise::{Switches, recorded, start, stop};
use crate::support::host::{
    CGROUP, container_and_nested, container_of, cpus, partitioned, read, run, wait_until, wait_until_or, workers,
};
use crate::support::pods::{Pod, on_node_undoing, pool};
use crate::support::promise::{counters, state};

/// The rule that adopts the containers of pods `database-*`.
pub const RULE: &str =
    "audit-interval-s = 3600\n[[adopt]]\nname = \"databases\"\nkind = \"container\"\npods = [\"database-*\"]\n";
/// Some threads that use its CPUs, and a service that waits.
const SERVICE: &str = "for n in 1 2 3; do { while :; do :; done; } & done; exec sleep 100000";

/// The whole container's cgroup: crun puts the processes one level below.
pub fn own(pod: &Pod) -> PathBuf {
    let origin = pod.origin();
    if origin.ends_with("container") {
        origin.parent().map(Path::to_owned).unwrap_or_default()
    } else {
        origin
    }
}

/// The pod `database-NAME`.
pub fn database(name: &str, runtime: &str, options: &[&str]) -> Pod {
    let options = [&["--runtime", runtime], options].concat();
    Pod::start(&format!("database-{name}"), &options, &["sh", "-c", SERVICE])
}

/// What a program in the container reads.
fn read_inside(pod: &Pod) -> CpuSet {
    let cat = ["cat", "/sys/fs/cgroup/cpuset.cpus.effective"];
    cpus(run(&[&["kubelet-standin", "pod", "exec", &pod.name, "--"], &cat[..]].concat()).trim())
}

/// Whether its cgroup is the partition, and nobody else may use its CPUs.
pub fn is_partition(pod: &Pod) -> bool {
    let own = own(pod);
    let (exclusive, file) = (pod.exclusive(), |name: &str| read(own.join(name)));
    file("cpuset.cpus.partition") == "root"
        && cpus(&file("cpuset.cpus.effective")) == exclusive
        && cpus(&file("cpuset.cpus.exclusive")) == exclusive
        && exclusive.is_subset(&partitioned())
        && workers().is_disjoint(&exclusive)
        && state(pod).as_deref() == Some("isolated")
}

/// Wait until the container is a partition. Nothing of it was moved, and it reads the same CPUs as before.
pub fn until_partition(pod: &Pod, when: &str) {
    let seen = || {
        let files = ["cpuset.cpus", "cpuset.cpus.exclusive", "cpuset.cpus.partition"];
        let files = files.map(|file| read(own(pod).join(file)));
        format!(": {:?}, {files:?}, {:?}", state(pod), refused(pod))
    };
    wait_until_or(&format!("a partition {when}"), seen, || is_partition(pod).then_some(()));
    for thread in container_of(pod.pid).into_values().flatten() {
        assert!(thread.cgroup.starts_with(own(pod)), "{thread:?}");
        assert!(thread.allowed.is_subset(&pod.exclusive()), "{thread:?}");
    }
    assert_eq!(read_inside(pod), pod.exclusive(), "{when}: what a program in it reads");
    run(&["steliactl", "verify", "--now", &pod.uid]);
}

/// Whether the container is as kubelet made it.
pub fn is_given_back(pod: &Pod) -> bool {
    let file = |name: &str| read(own(pod).join(name));
    file("cpuset.cpus.partition") == "member"
        && file("cpuset.cpus.exclusive").is_empty()
        && lists_above(pod).iter().all(String::is_empty)
        && state(pod).is_none()
        && read_inside(pod) == pod.exclusive()
}

/// The lists of kubepods and of the pod.
fn lists_above(pod: &Pod) -> Vec<String> {
    let own = own(pod);
    let levels = own.ancestors().skip(1).take_while(|level| *level != Path::new(CGROUP));
    levels.map(|level| read(level.join("cpuset.cpus.exclusive"))).collect()
}

/// Those that ran on the container's CPUs, and are neither its own nor bound to a CPU.
pub fn foreign(pod: &Pod, switches: &Switches) -> Vec<(u32, String, u32)> {
    foreign_to(&own_threads(pod), &pod.exclusive(), switches)
}

/// The container's threads, in PID namespaces within its own too.
pub fn own_threads(pod: &Pod) -> BTreeSet<u32> {
    let processes = container_and_nested(pod.pid).into_values();
    processes.flatten().map(|thread| thread.tid).collect()
}

/// Those that ran on these CPUs, and are neither these threads nor bound to a CPU.
pub fn foreign_to(own: &BTreeSet<u32>, cpus: &CpuSet, switches: &Switches) -> Vec<(u32, String, u32)> {
    let is_bound = |cpu: u32, name: &str| {
        let of_cpu = [format!("/{cpu}"), format!("/{cpu}:")];
        name.ends_with(&of_cpu[0]) || name.contains(&of_cpu[1])
    };
    let foreign = switches
        .keys()
        .filter(|(cpu, _, _)| cpus.contains(*cpu))
        .filter(|(cpu, name, tid)| *tid != 0 && !own.contains(tid) && !is_bound(*cpu, name));
    foreign.cloned().collect()
}

/// A container of this runtime from its start to `steliactl deregister`. containerd is restarted, and more lists of CPUs are tried, with runc alone:
/// containerd finds containers of both runtimes alike.
fn has_its_cpus_through_restarts(runtime: &str) {
    configure(RULE);
    let pod = database(runtime, runtime, &[]);
    until_partition(&pod, "after its start");
    assert!(!pod.scope().exists(), "no scope is made");

    // Two busy loops a CPU in system.slice, and its own.
    let noise = "for n in $(seq 16); do { while :; do :; done; } & done; wait";
    run(&["systemd-run", "--quiet", "--unit=noise", "sh", "-c", noise]);
    start(&pod.exclusive());
    std::thread::sleep(Duration::from_secs(5));
    stop();
    let switches = recorded(&pod.exclusive());
    run(&["systemctl", "stop", "noise"]);
    assert!(!switches.is_empty());
    assert_eq!(foreign(&pod, &switches), [], "{switches:#?}");

    let (units, lists): (&[&str], &[&str]) = match runtime {
        "runc" => (&["steliad", "containerd"], &["6-7", "5-7", "6"]),
        _ => (&["steliad"], &["6-7"]),
    };
    for unit in units.iter().copied() {
        run(&["systemctl", "restart", unit]);
        until_partition(&pod, &format!("after a restart of {unit}"));
    }
    run(&["systemctl", "daemon-reload"]);
    until_partition(&pod, "after daemon-reload");
    // A shell that is exec'd into it stays in the partition.
    let shell = ["sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo started"];
    run(&[&["kubelet-standin", "pod", "exec", &pod.name, "--"], &shell[..]].concat());
    run(&["steliactl", "reconcile"]);
    until_partition(&pod, "beside a shell");
    assert_eq!(counters(), (0, 0), "drift since the daemon's restart");

    // CPUs by a resize in place. The first list is the present one, which kubelet writes again when it restarts.
    let same = pod.exclusive().to_string();
    let lists: Vec<&str> = [&[same.as_str()], lists].concat();
    for list in lists {
        run(&["kubelet-standin", "pod", "resize", &pod.name, "--cpuset", list]);
        let pod = Pod::show(&pod.name);
        run(&["steliactl", "reconcile"]);
        until_partition(&pod, &format!("resized to {list}"));
    }
    let pod = Pod::show(&pod.name);
    // While the rule is there it would be adopted again.
    configure("audit-interval-s = 3600\n");
    run(&["steliactl", "deregister", &pod.uid]);
    wait_until("given back", || is_given_back(&pod).then_some(()));
    run(&["kubelet-standin", "pod", "delete", &pod.name, "--grace", "0"]);
}

#[test]
fn an_ordinary_container_has_its_cpus_for_itself_through_restarts_of_everything() {
    on_node_undoing(unconfigure, || has_its_cpus_through_restarts("runc"));
}

#[test]
fn an_ordinary_container_of_crun_has_its_cpus_for_itself_through_restarts() {
    on_node_undoing(unconfigure, || has_its_cpus_through_restarts("crun"));
}

#[test]
fn a_container_that_is_not_of_a_rule_or_has_no_cpus_of_its_own_is_left_alone_and_one_that_dies_leaves_nothing() {
    on_node_undoing(unconfigure, || {
        configure(RULE);
        let other = Pod::start("web", &["--cpus", "2"], &["sleep", "100000"]);
        let pod = database("runc", "runc", &[]);
        until_partition(&pod, "beside others");
        assert_eq!((state(&other), refused(&other)), (None, None));
        assert!(other.exclusive().is_disjoint(&partitioned()));
        let listed = run(&["steliactl", "-o", "wide", "list"]);
        assert!(listed.contains("container"), "{listed}");
        // A partition undone by hand is made again.
        std::fs::write(own(&pod).join("cpuset.cpus.partition"), "member").expect("member");
        until_partition(&pod, "after it was undone");
        pod.kill();
        wait_until("its CPUs are given back", || {
            (state(&pod).is_none() && partitioned().is_empty()).then_some(())
        });
        wait_until("nothing is left above", || {
            read(format!("{CGROUP}/kubepods.slice/cpuset.cpus.exclusive"))
                .is_empty()
                .then_some(())
        });
    });
}

/// A second container of the pod with a CPU of its own, one on the shared CPUs, the entry of an init container whose CPU is used again,
/// and a container that is restarted.
#[test]
fn other_containers_of_the_pod_run_beside_the_partition() {
    let rule = format!("{RULE}containers = [\"instance\"]\n");
    on_node_undoing(unconfigure, || {
        configure(&rule);
        let pod = database("main", "runc", &[]);
        let first = pod.exclusive().iter().next().expect("a CPU").to_string();
        run(&["kubelet-standin", "entry", "add", &pod.uid, "init", &first, "--reused"]);
        until_partition(&pod, "beside the entry of an init container that ended");

        let beside = |name: &str, options: &[&str]| {
            let options = [&["--in", &pod.name, "--container", name, "--runtime", "runc"], options].concat();
            Pod::start(name, &options, &["sleep", "100000"])
        };
        let with_cpu = beside("with-cpu", &["--cpus", "1"]);
        let shares = beside("shares", &["--cpu-limit", "500m"]);
        run(&["steliactl", "reconcile"]);
        until_partition(&pod, "beside other containers of its pod");
        assert!(with_cpu.exclusive().is_disjoint(&pod.exclusive()));
        let inside = |pod: &Pod| cpus(&read(pod.origin().join("cpuset.cpus.effective")));
        assert_eq!(inside(&with_cpu), with_cpu.exclusive());
        wait_until("the pool's container has the pool", || {
            (inside(&shares) == pool()).then_some(())
        });
        assert!(
            with_cpu.exclusive().is_disjoint(&partitioned()),
            "the rule names one container"
        );

        // Both grow and shrink beside each other: what the one leaves the other may get.
        let (main, side) = (pod.exclusive(), with_cpu.exclusive());
        run(&["kubelet-standin", "pod", "resize", &pod.name, "--cpuset", "6-7"]);
        run(&[
            "kubelet-standin",
            "pod",
            "resize",
            &with_cpu.name,
            "--cpuset",
            &main.to_string(),
        ]);
        let (pod, with_cpu) = (Pod::show(&pod.name), Pod::show(&with_cpu.name));
        run(&["steliactl", "reconcile"]);
        until_partition(&pod, "with other CPUs");
        wait_until("its neighbour has the CPUs that it left", || {
            (inside(&with_cpu) == main).then_some(())
        });
        assert!(side.is_disjoint(&partitioned()));

        let before = own(&pod);
        run(&["kubelet-standin", "pod", "restart", &pod.name]);
        let pod = Pod::show(&pod.name);
        assert_ne!(own(&pod), before);
        until_partition(&pod, "after the container's restart");
    });
}
