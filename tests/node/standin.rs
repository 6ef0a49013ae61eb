//! The stand-in for kubelet and the container runtime, compared with what was recorded beside the real ones.

use std::collections::BTreeMap;

use crate::support::pod_recording::{
    KUBELET_WITH_CONTAINERD, KUBELET_WITH_CRIO, Seen, differences, of_containerd, record_pod, record_pods,
};
use crate::support::*;

/// Differences, those of every pod with `*` for the pod: pods share the node's files and need folders of their own, the recorded ones are no VMs,
/// kubelet makes some in the pod's folder, some namespaces are a sandbox's, which is not there, and kubelet gives a container without a limit an
/// empty object.
const ALWAYS: [&str; 13] = [
    "*: config.json: mount /tmp",
    "*: config.json: mount /run",
    "*: config.json: mount /run/stelia/runner",
    "*: config.json: mount /etc/hosts",
    "*: config.json: mount /etc/hostname",
    "*: config.json: mount /etc/resolv.conf",
    "*: config.json: mount /dev/termination-log",
    "*: config.json: mount /dev/shm",
    "*: config.json: namespace ipc",
    "*: config.json: namespace network",
    "*: config.json: namespace uts",
    "burstable: config.json: resources memory",
    "besteffort: config.json: resources memory",
];
/// Of crun alone, which starts most of the tests' containers: before 1.22 it takes the quota -1 for 1 % of a CPU (crun#1794), puts processes where
/// runc does by an annotation, tells systemd no period without a quota, has its own description, and asks for no accounting of I/O.
const DIRECT: [&str; 5] = [
    "guaranteed: config.json: resources cpu",
    "*: config.json: annotation run.oci.systemd.subgroup",
    "*: unit: cri-containerd-ID.scope: CPUQuotaPeriodUSec",
    "*: unit: cri-containerd-ID.scope: Description",
    "*: unit: cri-containerd-ID.scope: IOAccounting",
];
/// Of containerd with Debian's crun from CRI-O with a newer one, which converts shares by another formula and leaves devices to its own program, while
/// CRI-O has systemd's limit of tasks lifted and asks for default dependencies.
const CRUN: [&str; 8] = [
    "guaranteed: cgroup: kubepods.slice/kubepods-podUID.slice/crio-ID.scope/container: cpu.weight",
    "guaranteed: cgroup: kubepods.slice/kubepods-podUID.slice/crio-ID.scope: cpu.weight",
    "guaranteed: unit: crio-ID.scope: CPUWeight",
    "guaranteed: cgroup: kubepods.slice/kubepods-podUID.slice/crio-ID.scope: pids.max",
    "guaranteed: unit: crio-ID.scope: TasksMax",
    "guaranteed: unit: crio-ID.scope: DefaultDependencies",
    "guaranteed: unit: crio-ID.scope: DevicePolicy",
    "guaranteed: unit: crio-ID.scope: IOAccounting",
];

const COMMAND: [&str; 2] = ["sleep", "1000000"];

#[test]
fn pods_and_the_writes_of_the_state_file_are_as_recorded_beside_kubelet() {
    let undo = || drop(run("kubelet-standin init --runtime direct"));
    on_node_undoing(undo, || {
        for (runtime, more) in [("runc", &[][..]), ("direct", &DIRECT)] {
            run(&["kubelet-standin", "init", "--reserved", "0-1", "--runtime", runtime]);
            let found = differences(KUBELET_WITH_CONTAINERD, &seen());
            assert_known(runtime, &[&ALWAYS[..], more].concat(), &found);
        }
        // With crun the cgroups and units are compared, with those of CRI-O: the rest is containerd's.
        let options = ["--runtime", "crun", "--cpus", "2", "--memory", "400M"];
        let pod = Pod::start("record-crun", &options, &COMMAND);
        let config = of_containerd(&pod);
        let here = record_pod("guaranteed", &pod, &config).into_iter();
        let here = here.map(|(name, value)| {
            let as_crio = |text: &str| text.replace("cri-containerd-ID.scope", "crio-ID.scope");
            (as_crio(&name), as_crio(&value))
        });
        let mut found = differences(KUBELET_WITH_CRIO, &here.collect());
        found.retain(|name, _| !name.contains("config.json"));
        assert_known("crun", &CRUN, &found);
    });
}

/// The same pods as those of the recording.
fn seen() -> Seen {
    let start = |class: &str| {
        let options = match class {
            "guaranteed" => ["--cpus", "2", "--memory", "64M"].to_vec(),
            class => vec!["--qos-class", class],
        };
        Pod::start(&format!("record-{class}"), &options, &COMMAND)
    };
    let seen = record_pods(start, |_, _| (), |guaranteed| guaranteed.delete(0));
    pods().iter().for_each(|pod| pod.delete(0));
    seen
}

/// Each difference is known, and each known one is a difference.
fn assert_known(runtime: &str, known: &[&str], found: &BTreeMap<String, String>) {
    let is_known = |name: &str| known.iter().any(|known| is_named(known, name));
    let unknown: BTreeMap<_, _> = found.iter().filter(|(name, _)| !is_known(name)).collect();
    let is_stale = |known: &&&str| !found.keys().any(|name| is_named(known, name));
    let stale: Vec<_> = known.iter().filter(is_stale).collect();
    assert!(unknown.is_empty(), "{runtime}: not as recorded: {unknown:#?}");
    assert!(stale.is_empty(), "{runtime}: as recorded after all: {stale:#?}");
}

fn is_named(known: &str, name: &str) -> bool {
    match (known.strip_prefix("*: "), name.split_once(": ")) {
        (Some(known), Some((_, name))) => known == name,
        _ => known == name,
    }
}
