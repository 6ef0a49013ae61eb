//! Checks of kubelet: its configuration, its files, and whether it would start again with them. Where it would not, systemd restarts it again
//! and again, and the node is lost to the cluster until an operator finds the reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kubelet_planner::merge::{Policy, duration};
use kubelet_planner::start_errors::{self, StartProblem, unknown_gates};
use stelia_api::VM_RESOURCE;
use stelia_cpus::CpuSet;
use stelia_kernel::proc::unified_cgroup;
use stelia_koordinator::allocator::{CpuSource, guaranteed};
use stelia_kubelet::DeviceManagerState;
use stelia_kubelet::config::{HIDDEN, KubeletConfig};
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::home::Host;
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::process_place::ProcessPlace;
use stelia_node_plan::machine;
use stelia_node_plan::start::{StateFiles, problems, reads};

use super::{CPUS, Facts, Finding, KUBELET, STATE, fail, note, pass, skip, warn, warn_of};
use crate::plan::forgotten;
use crate::shared::files::UnusableState;
use crate::shared::kernel::numbered;

/// A running kubelet keeps the settings that it read when it started.
const CORRECT: &str = "correct it before you restart kubelet";
/// What to do where k3s hides flags.
const UNHIDE: &str = "move --kubelet-arg to kubelet-arg in /etc/rancher/k3s/config.yaml, restart k3s";

/// Whether it runs, and its configuration can be read.
pub(super) fn process(facts: &Facts) -> Finding {
    match (&facts.kubelet, &facts.process) {
        (Err(unread), _) if unread.keeps_kubelet_from_starting() => fail(unread.in_full()).fix(CORRECT),
        (Err(unread), _) if facts.allocator.source == CpuSource::Steliad => {
            pass(format!("{}; CPUs are assigned by steliad", unread.in_full()))
        }
        (Err(unread), _) => fail(unread.in_full())
            .fix("start kubelet with cpuManagerPolicy: static (/usr/share/doc/steliad/kubelet.md)"),
        (Ok(_), Err(unknown)) => pass(unknown),
        (Ok(_), Ok(process)) => {
            let how = match (process.host, &process.root) {
                (Host::K3s, _) => "its flags are read from /etc/rancher/k3s, its command line is hidden",
                (_, Some(_)) => "by its socket",
                (_, None) => "by its name",
            };
            pass(format!("process {} ({}), found {how}", process.pid, process.name))
        }
    }
}

/// Whether the daemon reads the directory that kubelet writes to.
pub(super) fn home(facts: &Facts) -> Finding {
    let read = match &facts.home {
        Ok(read) => read.display(),
        Err(unclear) => {
            return fail(format!("{unclear}; no VM is admitted"))
                .fix("set kubelet-root in /etc/stelia/steliad.toml, or remove the files of an earlier kubelet");
        }
    };
    match &facts.kubelet {
        Ok(kubelet) if !facts.is_kubelets_home => fail(format!("{read} is read, but kubelet writes to {}", kubelet.root_dir.display())).fix("set kubelet-root in /etc/stelia/steliad.toml, give steliad-kubelet.path a drop-in (install.md), systemctl reload steliad"),
        _ => pass(read.to_string()),
    }
}

/// What kubelet ignores in its configuration.
pub(super) fn config(_: &Facts, kubelet: &KubeletConfig) -> Finding {
    let warnings = kubelet.warnings.iter().map(ToString::to_string);
    let fix = "correct or remove these keys, unless another version of kubelet knows them";
    warn_of(
        warnings.chain(unknown_gates(kubelet)),
        fix,
        "kubelet ignores none of it",
    )
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
pub(super) fn cgroups(facts: &Facts) -> Finding {
    let stopped = facts.files.stopped.as_ref().and_then(|(_, read)| read.as_ref().ok());
    let kubelet = facts.kubelet.as_ref().ok().or(stopped);
    if let Some(kubelet) = kubelet.filter(|kubelet| !kubelet.cgroup_root.trim_matches('/').is_empty()) {
        return fail(format!(
            "kubelet has cgroupRoot {}: no VM is admitted",
            kubelet.cgroup_root
        ))
        .fix("drain the node, remove cgroupRoot and --cgroup-root from kubelet's configuration, restart kubelet");
    }
    if kubelet.is_some_and(|kubelet| !kubelet.cgroups_per_qos) {
        return fail("kubelet has cgroupsPerQOS: false: no VM is admitted").fix(
            "drain the node, remove cgroupsPerQOS and --cgroups-per-qos from kubelet's configuration, restart kubelet",
        );
    }
    match &facts.misplaced {
        Some((pid, ProcessPlace::OutsideOfPods(name))) => fail(format!("process {pid} is in {name}, a container outside its pod's cgroup: no such VM is admitted")).fix("set the runtime's cgroup driver to kubelet's (containerd: SystemdCgroup, CRI-O: cgroup_manager), drain the node, restart both"),
        Some((pid, ProcessPlace::Docker(name))) => fail(format!("process {pid} is in {name}, a container of cri-dockerd: no such VM is admitted")).fix("run pods with containerd or CRI-O"),
        Some((pid, ProcessPlace::OtherRoot(root))) => fail(format!("process {pid} is in a pod below {root}: no such VM is admitted")).fix("remove cgroupRoot from the configuration of that pod's kubelet"),
        _ => pass("pods are below /kubepods.slice or /kubepods"),
    }
}

pub(super) fn policy(facts: &Facts) -> Finding {
    if facts.allocator.source == CpuSource::Steliad {
        return own_policy(facts);
    }
    let Ok(kubelet) = &facts.kubelet else {
        return skip(KUBELET);
    };
    if let Some(policy) = hidden_policy(facts, kubelet) {
        return warn(format!("unknown: {HIDDEN}; {policy}")).fix(UNHIDE);
    }
    if kubelet.cpu_manager_policy != "static" {
        return fail(format!("cpuManagerPolicy: {}", kubelet.cpu_manager_policy)).fix("set cpuManagerPolicy: static (examples/kubelet-config.yaml), drain the node, remove cpu_manager_state, restart kubelet");
    }
    if kubelet.reserved_system_cpus.is_empty() {
        return warn("cpuManagerPolicy: static, no reservedSystemCPUs: the shared CPUs change")
            .fix("set reservedSystemCPUs to whole cores");
    }
    pass(format!("static, reserved {}", kubelet.reserved_system_cpus))
}

/// Where steliad chooses the CPUs kubelet may have the policy none, or be absent.
fn own_policy(facts: &Facts) -> Finding {
    let kubelet = facts.kubelet.as_ref().ok();
    let policy = kubelet.map(|kubelet| kubelet.cpu_manager_policy.as_str());
    let state = facts.state.as_ref().ok();
    let others = state.map(|state| format!("; {}", guaranteed(state, &CpuSet::new()).in_words()));
    let others = others.unwrap_or_default();
    if policy == Some("static") {
        return warn(format!(
                "CPUs are assigned by steliad, and by kubelet (static) too, which may give VMs' CPUs to new pods{others}"
            )).fix("set cpuManagerPolicy: none, remove cpu_manager_state, restart kubelet (allocator.md), unless Guaranteed pods that are not VMs need \
             exclusive CPUs");
    }
    let reserved = &facts.allocator.reserved;
    if reserved.is_empty() {
        return warn("CPUs are assigned by steliad, no reserved-cpus: the shared CPUs change")
            .fix("set reserved-cpus to whole cores");
    }
    pass(format!("CPUs are assigned by steliad, reserved {reserved}{others}"))
}

/// The CPU manager's policy as far as it is known where flags are hidden; `None`: nothing shows that it is another than that of the files.
fn hidden_policy(facts: &Facts, kubelet: &KubeletConfig) -> Option<String> {
    let stored = facts.files.cpus.as_ref().ok().and_then(Option::as_ref);
    match stored.map(|state| state.policy.as_str()) {
        None if kubelet.hidden && !kubelet.has_cpu_policy => Some("its policy is not known".to_owned()),
        Some(stored) if kubelet.is_overridden(Some(stored)) => Some(format!(
            "cpuManagerPolicy: {stored} by its state file; its reserved CPUs are not known"
        )),
        _ => None,
    }
}

/// Two programs that give exclusive CPUs of one node give the same CPU twice.
pub(super) fn dra(facts: &Facts) -> Finding {
    let named = facts
        .dra
        .iter()
        .map(|(name, file)| format!("{name} ({})", file.display()));
    let found = named.collect::<Vec<_>>().join(", ");
    if found.is_empty() {
        return pass("none that assigns CPUs");
    }
    if facts.allocator.source == CpuSource::Steliad {
        return fail(format!(
            "{found} and steliad both assign CPUs: no VM is admitted, running VMs keep their CPUs"
        ))
        .fix("remove the driver from this node and drain it, or set cpu-source = \"kubelet\"");
    }
    warn(format!(
        "{found} assigns CPUs that kubelet's CPU manager does not know: VMs with these are not isolated"
    ))
    .fix("keep VMs on nodes without it (allocator.md, \"Beside a DRA driver\")")
}

pub(super) fn state(facts: &Facts) -> Finding {
    let state = match &facts.state {
        Ok(state) => state,
        Err(_) if facts.has_no_state_yet() => return skip(KUBELET),
        Err(error) => {
            return fail(format!("{error}; CPU assignments are frozen"))
                .fix("see /usr/share/doc/steliad/troubleshooting.md");
        }
    };
    if let Some((pod, container, cpus)) = state.overlap() {
        return fail(format!(
            "CPUs {cpus} of {pod}/{container} are in the default set too: kubelet does not start with this file"
        ))
        .fix("drain the node, stop kubelet, remove cpu_manager_state, start kubelet");
    }
    let unknown = state
        .unknown_keys
        .iter()
        .map(|key| format!("unknown key {key} is ignored"));
    let found = format!("shared pool {}, exclusive {}", state.shared_pool(), state.assigned());
    warn_of(unknown, "upgrade steliad", found)
}

pub(super) fn start(facts: &Facts) -> Finding {
    let (kubelet, place) = match (&facts.kubelet, &facts.files.stopped) {
        (Ok(kubelet), _) => (kubelet, String::new()),
        (Err(_), Some((file, Ok(kubelet)))) => (kubelet, format!(" (by {file})")),
        (Err(_), Some((_, Err(unread)))) => return fail(unread.in_full()).fix(CORRECT),
        (Err(_), None) => return skip(KUBELET),
    };
    let found = start_problems(facts, kubelet);
    if found.is_empty() {
        match unusable_files(facts, kubelet).next() {
            Some((CPU_MANAGER_STATE, _)) => return skip(STATE),
            Some((_, unusable)) => return note(format!("{unusable}; cannot tell whether kubelet starts with it")),
            None => {}
        }
        let fits = format!("its state files match its settings{place}");
        return match &facts.files.devices {
            Ok(_) => pass(fits),
            Err(unusable) if unusable.is_damaged => {
                warn(format!("{}; it gives them to other pods", forgotten(unusable)))
                    .fix("drain the node of pods with devices before you restart kubelet")
            }
            Err(unusable) => {
                warn(forgotten(unusable)).fix("upgrade steliad if kubelet is newer; otherwise find who wrote the file")
            }
        };
    }
    let words = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let mut fixes: Vec<String> = found.iter().map(|problem| problem.cure(&kubelet.root_dir)).collect();
    fixes.dedup();
    let fixes = fixes.join("; ");
    // Flags that are only on its command line are not known, so a setting that is missing may be there.
    if kubelet.hidden {
        return warn(format!(
            "unknown: {HIDDEN}; by its files alone kubelet would not start: {words}{place}"
        ))
        .fix(format!("{UNHIDE}; if that changes nothing: {fixes}"));
    }
    let words = format!("kubelet would not start: {words}{place}");
    if found.iter().all(StartProblem::is_of_this_version) {
        warn(words).fix(fixes)
    } else {
        fail(words).fix(fixes)
    }
}

/// The state files that kubelet reads and that cannot be used, each with its name; devices' are left out, because kubelet starts without them.
fn unusable_files<'a>(
    facts: &'a Facts,
    kubelet: &'a KubeletConfig,
) -> impl Iterator<Item = (&'static str, &'a UnusableState)> {
    let files = &facts.files;
    let managers = [
        files.cpus.as_ref().err().map(|unusable| (CPU_MANAGER_STATE, unusable)),
        files
            .memory
            .as_ref()
            .err()
            .map(|unusable| (MEMORY_MANAGER_STATE, unusable)),
    ];
    let others = files.pods.iter().map(|(file, unusable)| (*file, unusable));
    let others = others.filter(|(file, _)| reads(file, kubelet, None));
    managers.into_iter().flatten().chain(others)
}

fn start_problems(facts: &Facts, kubelet: &KubeletConfig) -> Vec<StartProblem> {
    let files = &facts.files;
    let machine = match (&facts.topology, &files.numa) {
        (Ok(topology), Ok(numa)) => Some(machine(topology, &files.caches, numa)),
        _ => None,
    };
    let mut found = match &files.cpus {
        Ok(cpus) => {
            let (cpus, memory) = (cpus.as_ref(), files.memory.as_ref().ok().and_then(Option::as_ref));
            problems(kubelet, machine.as_ref(), StateFiles { cpus, memory })
        }
        Err(_) => start_errors::problems(kubelet, machine.as_ref()),
    };
    let damaged = unusable_files(facts, kubelet).filter(|(_, unusable)| unusable.is_damaged);
    found.extend(damaged.map(|(file, unusable)| StartProblem::State {
        file,
        why: unusable.to_string(),
        instead: String::new(),
    }));
    found
}

/// How long kubelet takes to align a pod. Its Topology Manager compares every combination of hints: up to 2^(NUMA nodes) hints for each kind
/// of resource, multiplied over the kinds. Its memory manager looks at each set of NUMA nodes, whatever that policy is.
pub(super) fn merge(facts: &Facts, kubelet: &KubeletConfig) -> Finding {
    let Ok(topology) = &facts.topology else {
        return skip(CPUS);
    };
    let with_cpus: BTreeSet<u32> = topology.cpus.values().map(|cpu| cpu.node).collect();
    let known = facts.files.numa.iter().flat_map(|nodes| nodes.keys().copied());
    let all = with_cpus.iter().copied().chain(known).collect::<BTreeSet<u32>>().len();
    let without_cpus = all - with_cpus.len();
    let sets = duration::sets(all);
    if kubelet.memory_manager_policy == "Static" && duration::seconds(sets) >= duration::SLOW_SECONDS {
        let firmware = match without_cpus {
            0 => "or have fewer NUMA nodes by the firmware (NPS, SNC)".to_owned(),
            _ => format!("the firmware removes none of the {without_cpus} NUMA nodes without CPUs"),
        };
        return warn(format!(
                "for each Guaranteed pod the memory manager looks at {} sets of {all} NUMA nodes, {} and more, and may run out of memory",
                duration::count_words(sets),
                duration::in_words(duration::seconds(sets))
            )).fix(format!("set memoryManagerPolicy: None; {firmware}"));
    }
    let policy = match Policy::parse(&kubelet.topology_manager_policy) {
        None | Some(Policy::None) => return pass(format!("topology manager {}", kubelet.topology_manager_policy)),
        Some(policy) => policy,
    };
    let (names, sizes): (Vec<&str>, Vec<usize>) = hints(facts, kubelet, all, with_cpus.len()).into_iter().unzip();
    let permutations = duration::permutations(policy, &sizes);
    let seconds = duration::seconds(permutations);
    let found = format!(
        "{all} NUMA nodes, {}: up to {} combinations for a pod with {}, {}",
        policy.name(),
        duration::count_words(permutations),
        names.join(", "),
        duration::in_words(seconds)
    );
    if seconds < duration::SLOW_SECONDS {
        return pass(found);
    }
    warn(format!("{found}, in which no other pod is admitted")).fix(format!(
            "set topologyManagerPolicy: single-numa-node ({} combinations){}, or let steliad assign the CPUs (allocator.md)",
            duration::count_words(duration::permutations(Policy::SingleNumaNode, &sizes)),
            if without_cpus == 0 {
                ", have fewer NUMA nodes by the firmware (NPS, SNC)"
            } else {
                ""
            }
        ))
}

/// For each resource that a pod may have hints for the number of NUMA nodes that these hints range over.
fn hints<'a>(facts: &'a Facts, kubelet: &KubeletConfig, all: usize, with_cpus: usize) -> Vec<(&'a str, usize)> {
    let mut hints = Vec::new();
    if kubelet.cpu_manager_policy == "static" {
        hints.push(("cpu", with_cpus));
    }
    if kubelet.memory_manager_policy == "Static" {
        hints.push(("memory", all));
        // Counted once: a VM's huge pages are of one size.
        let mut nodes = facts.files.numa.iter().flat_map(|nodes| nodes.values());
        if nodes.any(|node| node.huge_pages.values().any(|pages| pages.total > 0)) {
            hints.push(("huge pages", all));
        }
    }
    if let Ok(Some(devices)) = &facts.files.devices {
        // Since 1.36 the nodes that have devices of the resource: those with CPUs, where PCI devices are.
        hints.extend(aligned(devices).map(|resource| (resource, with_cpus)));
    }
    hints
}

/// The resources whose devices may be bound to NUMA nodes: all but steliad's own, and those of which pods have devices and none of these
/// has a node.
fn aligned(devices: &DeviceManagerState) -> impl Iterator<Item = &str> {
    let others = devices.registered.keys().map(String::as_str);
    others.filter(|name| *name != VM_RESOURCE).filter(|resource| {
        let given = devices.entries.iter().filter(|entry| entry.resource == *resource);
        let mut given = given.peekable();
        given.peek().is_none() || given.any(|entry| entry.devices.keys().any(Option::is_some))
    })
}
