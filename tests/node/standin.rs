//! The stand-in for kubelet and the container runtime, compared with what was recorded beside the real ones.

use std::collections::BTreeMap;

use crate::support::pod_recording::{
    KUBELET_WITH_CONTAINERD, KUBELET_WITH_CRIO, Seen, differences, of_containerd, record_classes, record_pod,
    record_state_writes,
};
use crate::support::*;

/// A difference, of every pod with `*` for the pod, and why the stand-in differs there.
type Known = &'static [(&'static str, &'static str)];

const ALWAYS: Known = &[
    (
        "*: config.json: mount /tmp",
        "pods share the node's files and need folders of their own",
    ),
    ("*: config.json: mount /run", "the same"),
    (
        "*: config.json: mount /run/stelia/runner",
        "the recorded pods are no VMs",
    ),
    ("*: config.json: mount /etc/hosts", "the node's own files are there"),
    ("*: config.json: mount /etc/hostname", "the same"),
    ("*: config.json: mount /etc/resolv.conf", "the same"),
    (
        "*: config.json: mount /dev/termination-log",
        "kubelet makes it in the pod's folder",
    ),
    (
        "*: config.json: mount /dev/shm",
        "it is the sandbox's, and there is no sandbox",
    ),
    ("*: config.json: namespace ipc", "it is the sandbox's"),
    ("*: config.json: namespace network", "it is the sandbox's"),
    ("*: config.json: namespace uts", "it is the sandbox's"),
    (
        "burstable: config.json: resources memory",
        "kubelet gives a container without a limit an empty object",
    ),
    ("besteffort: config.json: resources memory", "the same"),
];
/// Of crun alone, which starts most of the tests' containers.
const DIRECT: Known = &[
    (
        "guaranteed: config.json: resources cpu",
        "crun before 1.22 takes the quota -1 for 1 % of a CPU (crun#1794)",
    ),
    (
        "*: config.json: annotation run.oci.systemd.subgroup",
        "with it crun puts the processes where runc does",
    ),
    (
        "*: unit: cri-containerd-ID.scope: CPUQuotaPeriodUSec",
        "crun tells systemd no period without a quota",
    ),
    ("*: unit: cri-containerd-ID.scope: Description", "crun has its own"),
    (
        "*: unit: cri-containerd-ID.scope: IOAccounting",
        "crun does not ask for it",
    ),
];
/// Differences of containerd with Debian's crun from CRI-O with a newer crun.
const CRUN: Known = &[
    (
        "guaranteed: cgroup: kubepods.slice/kubepods-podUID.slice/crio-ID.scope/container: cpu.weight",
        "newer versions of crun convert shares by another formula",
    ),
    (
        "guaranteed: cgroup: kubepods.slice/kubepods-podUID.slice/crio-ID.scope: cpu.weight",
        "the same",
    ),
    ("guaranteed: unit: crio-ID.scope: CPUWeight", "the same"),
    (
        "guaranteed: cgroup: kubepods.slice/kubepods-podUID.slice/crio-ID.scope: pids.max",
        "CRI-O has systemd's default limit lifted",
    ),
    ("guaranteed: unit: crio-ID.scope: TasksMax", "the same"),
    (
        "guaranteed: unit: crio-ID.scope: DefaultDependencies",
        "CRI-O asks for them in an annotation",
    ),
    (
        "guaranteed: unit: crio-ID.scope: DevicePolicy",
        "newer versions of crun leave devices to their own program alone",
    ),
    (
        "guaranteed: unit: crio-ID.scope: IOAccounting",
        "older versions of crun do not ask systemd for it",
    ),
];

const COMMAND: [&str; 2] = ["sleep", "1000000"];

#[test]
fn pods_and_the_writes_of_the_state_file_are_as_recorded_beside_kubelet() {
    let undo = || drop(run("kubelet-standin init --runtime direct"));
    on_node_undoing(undo, || {
        for (runtime, more) in [("runc", &[][..]), ("direct", DIRECT)] {
            run(&["kubelet-standin", "init", "--reserved", "0-1", "--runtime", runtime]);
            let found = differences(KUBELET_WITH_CONTAINERD, &seen());
            assert_known(runtime, &[ALWAYS, more].concat(), &found);
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
        assert_known("crun", CRUN, &found);
    });
}

/// The same pods as those of the recording.
fn seen() -> Seen {
    let mut seen = Seen::new();
    let burstable = Pod::start("record-burstable", &["--qos-class", "burstable"], &COMMAND);
    let best_effort = Pod::start("record-besteffort", &["--qos-class", "besteffort"], &COMMAND);
    let mut guaranteed = None;
    seen.extend(record_state_writes("admission", || {
        let pod = Pod::start("record-guaranteed", &["--cpus", "2", "--memory", "64M"], &COMMAND);
        guaranteed = Some(pod.clone());
        pod.uid
    }));
    let guaranteed = guaranteed.expect("a pod");
    seen.extend(record_classes(&guaranteed, &burstable, &best_effort));
    seen.extend(record_state_writes("removal", || {
        guaranteed.delete(0);
        guaranteed.uid.clone()
    }));
    burstable.delete(0);
    best_effort.delete(0);
    seen
}

/// Each difference is known, and each known one is a difference.
fn assert_known(runtime: &str, known: &[(&str, &str)], found: &BTreeMap<String, String>) {
    let is_known = |name: &str| known.iter().any(|(known, _)| is_named(known, name));
    let unknown: BTreeMap<_, _> = found.iter().filter(|(name, _)| !is_known(name)).collect();
    let is_stale = |(known, _): &&(&str, &str)| !found.keys().any(|name| is_named(known, name));
    let stale: Vec<_> = known.iter().filter(is_stale).collect();
    assert!(
        unknown.is_empty() && stale.is_empty(),
        "{runtime}: not as recorded: {unknown:#?}, as recorded after all: {stale:#?}"
    );
}

fn is_named(known: &str, name: &str) -> bool {
    match (known.strip_prefix("*: "), name.split_once(": ")) {
        (Some(known), Some((_, name))) => known == name,
        _ => known == name,
    }
}
