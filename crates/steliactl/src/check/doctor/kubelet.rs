//! Checks of kubelet: its configuration, its files, and whether it would start again with them. Where it would not, systemd restarts it again
//! and again, and the node is lost to the cluster until an operator finds the reason.

use std::fs;
use std::path::Path;

use kubelet_planner::start_errors::{StartProblem, unknown_gates};
use stelia_api::{Reason, ReasonCode};
use stelia_kernel::proc::unified_cgroup;
use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::process_place::ProcessPlace;
use stelia_node_plan::start::{StateFiles, problems};

use super::services::reported;
use super::state_file::unusable;
use super::{Check, CheckResult, KUBELET, NO_VMS, Observed, Outcome, STATE, fail, first_few, note, pass, warn};
use crate::plan::forgotten;
use crate::shared::kernel::numbered;

/// A running kubelet keeps the settings that it read when it started.
const CORRECT: &str = "correct it before you restart kubelet";
/// What to do where k3s hides flags.
const UNHIDE: &str = "move --kubelet-arg to kubelet-arg in /etc/rancher/k3s/config.yaml, restart k3s";
const NO_START: &str = "kubelet would not start";

/// Whether it runs, its configuration can be read, and it ignores nothing there.
pub(super) fn configuration(seen: &Observed) -> CheckResult {
    const START: &str = "start kubelet with cpuManagerPolicy: static (/usr/share/doc/steliad/kubelet.md)";
    const IGNORED: &str = "correct or remove them, unless another version of kubelet knows them";
    match &seen.kubelet {
        Err(unread) if unread.keeps_kubelet_from_starting() => fail(unread.to_string(), NO_START, CORRECT),
        Err(unread) if !seen.allocator.source.needs_static_policy() => pass(unread.to_string()),
        Err(unread) => fail(unread.to_string(), NO_VMS, START),
        Ok(kubelet) => {
            let warnings = kubelet.warnings.iter().map(ToString::to_string);
            let ignored: Vec<String> = warnings.chain(unknown_gates(kubelet)).collect();
            if ignored.is_empty() {
                return pass("running");
            }
            warn(first_few(&ignored), "kubelet ignores these keys", IGNORED)
        }
    }
}

/// Whether the daemon reads the directory that kubelet writes to.
pub(super) fn home(seen: &Observed) -> CheckResult {
    match &seen.home {
        Ok(read) => pass(read.display().to_string()),
        Err(wrong) => fail(
            wrong,
            NO_VMS,
            "remove the files of an earlier kubelet; or set kubelet-root in /etc/stelia/steliad.toml, give steliad-kubelet.path a drop-in \
             (install.md), systemctl reload steliad",
        ),
    }
}

/// The first process of a pod that is in a cgroup where steliad does not look for pods. `proc` is `/proc`.
pub(super) fn misplaced(proc: &Path) -> Option<(i32, ProcessPlace)> {
    let places = numbered(proc).filter_map(|(pid, folder)| {
        // A process that ends meanwhile has none.
        let text = fs::read_to_string(folder.join("cgroup")).ok()?;
        Some((pid, ProcessPlace::of(unified_cgroup(&text)?.as_str())))
    });
    let is_wrong = |place: &ProcessPlace| !matches!(place, ProcessPlace::Container(_) | ProcessPlace::Elsewhere);
    places.filter(|(_, place)| is_wrong(place)).min_by_key(|(pid, _)| *pid)
}

/// The first thing that keeps pods' cgroups from where VMs are looked for: below kubepods.
pub(super) fn cgroups(seen: &Observed) -> CheckResult {
    const REMOVE: &str =
        "drain the node, remove it and the flag of that name from kubelet's configuration, restart kubelet";
    const NOT_ADMITTED: &str = "no such VM is admitted";
    let stopped = seen.stopped.as_ref().and_then(|read| read.as_ref().ok());
    let kubelet = seen.kubelet.as_ref().ok().or(stopped);
    let (fact, effect, fix) = match (kubelet, &seen.misplaced) {
        (Some(kubelet), _) if !kubelet.cgroup_root.trim_matches('/').is_empty() => (
            format!("kubelet has cgroupRoot: {}", kubelet.cgroup_root),
            NO_VMS,
            REMOVE,
        ),
        (Some(kubelet), _) if !kubelet.cgroups_per_qos => {
            ("kubelet has cgroupsPerQOS: false".to_owned(), NO_VMS, REMOVE)
        }
        (_, Some((pid, ProcessPlace::OutsideOfPods(name)))) => (
            format!("process {pid} is in {name}, a container outside its pod's cgroup"),
            NOT_ADMITTED,
            "set the runtime's cgroup driver to kubelet's (containerd: SystemdCgroup, CRI-O: cgroup_manager), drain the node, restart both",
        ),
        (_, Some((pid, ProcessPlace::Docker(name)))) => (
            format!("process {pid} is in {name}, a container of cri-dockerd"),
            NOT_ADMITTED,
            "run pods with containerd or CRI-O",
        ),
        (_, Some((pid, ProcessPlace::OtherRoot(root)))) => (
            format!("process {pid} is in a pod below {root}"),
            NOT_ADMITTED,
            "remove cgroupRoot from the configuration of that pod's kubelet",
        ),
        _ => return pass("pods are below /kubepods.slice or /kubepods"),
    };
    fail(fact, effect, fix)
}

/// Who assigns CPUs, and whether some are reserved, so that the shared CPUs stay the same.
pub(super) fn policy(seen: &Observed) -> CheckResult {
    const NONE: &str = "set cpuManagerPolicy: none, remove cpu_manager_state, restart kubelet (allocator.md), unless Guaranteed pods that \
                        are not VMs need exclusive CPUs";
    const STATIC: &str = "set cpuManagerPolicy: static (examples/kubelet-config.yaml), drain the node, remove cpu_manager_state, \
                          restart kubelet";
    let source = seen.allocator.source;
    let (reserved, setting) = match (source, &seen.kubelet) {
        (CpuSource::Steliad, Ok(kubelet)) if kubelet.cpu_manager_policy == "static" => {
            let fact = "CPUs are assigned by steliad and by kubelet";
            return warn(fact, "kubelet may give VMs' CPUs to new pods", NONE);
        }
        (CpuSource::Steliad, _) => (&seen.allocator.reserved, "reserved-cpus"),
        (CpuSource::Kubelet, _) => {
            let kubelet = seen.kubelet()?;
            let stored = seen.state().map(|state| state.policy.as_str());
            if kubelet.is_overridden(stored) || kubelet.hidden && !kubelet.has_cpu_policy && stored.is_none() {
                let known = stored.map(|stored| format!("; its state file has cpuManagerPolicy: {stored}"));
                let fact = format!("k3s hides its command line{}", known.unwrap_or_default());
                return warn(fact, "its policy and its reserved CPUs are not known", UNHIDE);
            }
            if kubelet.cpu_manager_policy != "static" {
                let fact = format!("cpuManagerPolicy: {}", kubelet.cpu_manager_policy);
                return fail(fact, NO_VMS, STATIC);
            }
            (&kubelet.reserved_system_cpus, "reservedSystemCPUs")
        }
    };
    if reserved.is_empty() {
        let fix = format!("set {setting} to whole cores");
        return warn(format!("{setting} is not set"), "the shared CPUs change", fix);
    }
    pass(format!("CPUs are assigned by {}, reserved {reserved}", source.name()))
}

/// Two programs that give exclusive CPUs of one node give the same CPU twice.
pub(super) fn dra(seen: &Observed) -> CheckResult {
    let found = first_few(&seen.cpu_drivers);
    match seen.allocator.source {
        _ if found.is_empty() => pass("none that assigns CPUs"),
        CpuSource::Steliad => fail(
            format!("{found} and steliad both assign CPUs"),
            NO_VMS,
            "remove the driver from this node and drain it, or set cpu-source = \"kubelet\"",
        ),
        CpuSource::Kubelet => warn(
            format!("{found} assigns CPUs that kubelet's CPU manager does not know"),
            "VMs with these are not isolated",
            "keep VMs on nodes without it (allocator.md, \"Beside a DRA driver\")",
        ),
    }
}

/// What the daemon says of kubelet's file, which one diagnosis shows.
pub(super) const OF_FILE: [ReasonCode; 3] = [
    ReasonCode::KubeletUnusable,
    ReasonCode::NoSharedCpus,
    ReasonCode::KubeletUnknownKeys,
];

/// What is wrong with `cpu_manager_state`: as the daemon says, or without one as the daemon would say.
pub(super) fn state(seen: &Observed) -> CheckResult {
    // With what these find the file cannot be used either.
    let causes: [(&str, Check); 3] = [("kubelet-home", home), ("kubelet-policy", policy), ("dra-driver", dra)];
    let is_failed = |check: Check| check(seen).is_ok_and(|found| found.outcome == Outcome::Fail);
    if let Some((cause, _)) = causes.into_iter().find(|(_, check)| is_failed(*check)) {
        return Err(cause);
    }
    let of_file = |why: String| Reason::of_node(ReasonCode::KubeletUnusable, why);
    let mut told = seen.described.iter().flat_map(|told| &told.problems);
    let reason = match &seen.files.cpus {
        _ if seen.described.is_ok() => told.find(|reason| OF_FILE.contains(&reason.code)).cloned(),
        Err(unusable) => Some(of_file(unusable.text.clone())),
        _ if !seen.allocator.source.needs_static_policy() => None,
        Ok(Some(state)) => unusable(state).map(of_file),
        Ok(None) => {
            seen.kubelet()?;
            Some(of_file("cpu_manager_state: No such file".to_owned()))
        }
    };
    reason.map_or_else(|| pass("can be used"), |reason| Ok(reported(&reason)))
}

/// Whether kubelet starts with its configuration and its state files.
pub(super) fn start(seen: &Observed) -> CheckResult {
    let kubelet = match (&seen.kubelet, &seen.stopped) {
        (Ok(kubelet), _) | (Err(_), Some(Ok(kubelet))) => kubelet,
        (Err(_), Some(Err(unread))) => return fail(unread.to_string(), NO_START, CORRECT),
        (Err(_), None) => return Err(KUBELET),
    };
    // One that cannot be used has a diagnosis of its own.
    let cpus = seen.files.cpus.as_ref().map_err(|_| STATE)?.as_ref();
    let memory = seen.files.memory.as_ref().ok().and_then(Option::as_ref);
    let mut found = problems(kubelet, seen.machine.as_ref(), StateFiles { cpus, memory });
    let unusable = seen.files.unusable(kubelet, None);
    let (damaged, unknown): (Vec<_>, Vec<_>) = unusable.partition(|(_, unusable)| unusable.is_damaged);
    found.extend(damaged.into_iter().map(|(file, unusable)| StartProblem::State {
        file,
        why: unusable.to_string(),
        instead: String::new(),
    }));
    if found.is_empty() {
        return match (unknown.first(), &seen.files.devices) {
            (Some((_, unusable)), _) => note(&unusable.text, "whether kubelet starts with it is unknown", ""),
            (None, Ok(_)) => pass("its state files match its settings"),
            (None, Err(unusable)) if unusable.is_damaged => warn(
                forgotten(unusable),
                "it gives them to other pods",
                "drain the node of pods with devices before you restart kubelet",
            ),
            (None, Err(unusable)) => warn(forgotten(unusable), "", "upgrade steliad if kubelet is newer"),
        };
    }
    let words = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let mut fixes: Vec<String> = found.iter().map(|problem| problem.cure(&kubelet.root_dir)).collect();
    fixes.dedup();
    let fixes = fixes.join("; ");
    // Flags that are only on its command line are not known, so a setting that is missing may be there.
    if kubelet.hidden {
        let effect = "by its files alone kubelet would not start, but k3s hides its command line";
        return warn(words, effect, format!("{UNHIDE}; if that changes nothing: {fixes}"));
    }
    if found.iter().all(StartProblem::is_of_this_version) {
        warn(words, NO_START, fixes)
    } else {
        fail(words, NO_START, fixes)
    }
}
