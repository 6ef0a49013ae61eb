//! The stand-in for kubelet and the container runtime, compared with what was recorded beside the real ones.

use std::collections::BTreeMap;

use crate::support::host::run;
use crate::support::pods::{Pod, on_node_undoing};
use crate::support::recorded::{
    KUBELET_WITH_CONTAINERD, KUBELET_WITH_CRIO, Seen, differences, of_containerd, pod as seen_of, writes,
};

/// Part of a difference's name, and why the stand-in differs there.
type Known = &'static [(&'static str, &'static str)];

const ALWAYS: Known = &[
    (
        "mount /tmp",
        "pods share the node's files and need folders of their own",
    ),
    ("mount /run", "the same; the runner's socket is recorded nowhere"),
    ("mount /etc/", "the node's own files are there"),
    ("mount /dev/termination-log", "kubelet makes it in the pod's folder"),
    ("mount /dev/shm", "it is the sandbox's, and there is no sandbox"),
    ("namespace ipc", "it is the sandbox's"),
    ("namespace network", "it is the sandbox's"),
    ("namespace uts", "it is the sandbox's"),
    (
        "resources memory",
        "kubelet gives a container without a limit an empty object",
    ),
];
/// Of crun alone, which starts most of the tests' containers.
const DIRECT: Known = &[
    (
        "guaranteed: config.json: resources cpu",
        "crun before 1.22 takes the quota -1 for 1 % of a CPU (crun#1794)",
    ),
    (
        "annotation run.oci.systemd.subgroup",
        "it has crun put the processes where runc does",
    ),
    (
        "scope: CPUQuotaPeriodUSec",
        "crun tells systemd no period without a quota",
    ),
    ("scope: Description", "crun's own"),
    ("scope: IOAccounting", "crun does not ask for it"),
];
/// Of containerd with Debian's crun, against CRI-O with a newer one.
const CRUN: Known = &[
    ("cpu.weight", "newer versions of crun convert shares by another formula"),
    ("CPUWeight", "the same"),
    (
        "DevicePolicy",
        "newer versions of crun leave devices to their own program alone",
    ),
    ("IOAccounting", "older versions of crun do not ask systemd for it"),
    ("pids.max", "CRI-O has systemd's default limit lifted"),
    ("TasksMax", "the same"),
    ("DefaultDependencies", "CRI-O asks for them in an annotation"),
];

const COMMAND: [&str; 2] = ["sleep", "1000000"];

#[test]
fn pods_and_the_writes_of_the_state_file_are_as_recorded_beside_kubelet() {
    let undo = || drop(run(&["kubelet-standin", "init", "--runtime", "direct"]));
    on_node_undoing(undo, || {
        for (runtime, more) in [("runc", &[][..]), ("direct", DIRECT)] {
            run(&["kubelet-standin", "init", "--reserved", "0-1", "--runtime", runtime]);
            assert_known(
                runtime,
                &[ALWAYS, more].concat(),
                &differences(KUBELET_WITH_CONTAINERD, &seen()),
            );
        }
        // With crun the cgroups and units are compared, with those of CRI-O: the rest is containerd's.
        let pod = Pod::start(
            "record-crun",
            &["--runtime", "crun", "--cpus", "2", "--memory", "400M"],
            &COMMAND,
        );
        let config = of_containerd(&pod);
        let here = seen_of("guaranteed", &pod, &config).into_iter();
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
    seen.extend(writes("admission", || {
        let pod = Pod::start("record-guaranteed", &["--cpus", "2", "--memory", "64M"], &COMMAND);
        guaranteed = Some(pod.clone());
        pod.uid
    }));
    let guaranteed = guaranteed.expect("a pod");
    for (label, pod) in [
        ("guaranteed", &guaranteed),
        ("burstable", &burstable),
        ("besteffort", &best_effort),
    ] {
        seen.extend(seen_of(label, pod, &of_containerd(pod)));
    }
    seen.extend(writes("removal", || {
        delete("record-guaranteed");
        guaranteed.uid.clone()
    }));
    delete("record-burstable");
    delete("record-besteffort");
    seen
}

fn delete(pod: &str) {
    run(&["kubelet-standin", "pod", "delete", pod, "--grace", "0"]);
}

/// Each difference is known, and each known one is a difference.
fn assert_known(runtime: &str, known: &[(&str, &str)], found: &BTreeMap<String, String>) {
    let is_known = |name: &str| known.iter().any(|(part, _)| name.contains(part));
    let unknown: BTreeMap<_, _> = found.iter().filter(|(name, _)| !is_known(name)).collect();
    let stale: Vec<_> = known
        .iter()
        .filter(|(part, _)| !found.keys().any(|name| name.contains(part)))
        .collect();
    println!("  {runtime}: {} known differences", found.len() - unknown.len());
    assert!(
        unknown.is_empty() && stale.is_empty(),
        "{runtime}: not as recorded: {unknown:#?}, as recorded after all: {stale:#?}"
    );
}
