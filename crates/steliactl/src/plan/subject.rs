//! This node, read from its files.

use std::path::Path;

use kubelet_planner::devices::{DeviceState, Devices};
use kubelet_planner::start_errors::{StartProblem, unknown_gates};
use kubelet_planner::{CpuManager, Machine, MemoryManager, NodeState};
use stelia_cpus::Topology;
use stelia_koordinator::report::memory_and_devices::{DevicePlaces, Place, places};
use stelia_koordinator::report::numa;
use stelia_kubelet::allocated_pods::ALLOCATED_PODS_STATE;
use stelia_kubelet::config::{ConfigError, HIDDEN};
use stelia_kubelet::cpu_manager_state::{CPU_MANAGER_STATE, Schema};
use stelia_kubelet::home::Search;
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::{DeviceManagerState, KubeletConfig, config};
use stelia_node_plan::room::Room;
use stelia_node_plan::start::{self, StateFiles, reads};
use stelia_node_plan::{Subject, machine, settings};

use super::answer::Rejected;
use crate::shared::daemon::remedy_of_file;
use crate::shared::files::{KubeletFiles, UnusableState, below};

/// The minor version of the first kubelet that writes [`Schema::V4`].
const V4_SINCE: u32 = 37;

/// Reads this node, below `root`.
///
/// `version`: kubelet's minor version. Where it is not given it is known only from a state file of the schema that 1.37 brought.
///
/// # Errors
/// Why nothing is predicted.
pub(super) fn here(root: &Path, version: Option<u32>) -> Result<Subject, Box<Rejected>> {
    let sys = root.join("sys");
    let topology = Topology::read_as_kubelet(&sys).map_err(|cause| cause.to_string())?;
    let numa = numa::read(&sys).map_err(|cause| cause.to_string())?;
    let (config, mut notes) = match config::read(&root.join("proc"), root, Search::SocketsThenNames) {
        Err(ConfigError::NotRunning) => {
            let why = || Rejected::unknown("kubelet is not running and left no configuration", "start kubelet");
            let (place, read) = config::kubeadm(root).ok_or_else(why)?;
            let note = format!("no kubelet runs: its settings are taken from {place}, and flags are not known");
            (read, vec![note])
        }
        read => (read, Vec::new()),
    };
    // No note means that kubelet is running, with what it read when it started.
    let no_start = match notes.as_slice() {
        [] => "kubelet runs, but would not start again: ",
        _ => "kubelet would not start: ",
    };
    let config = config.map_err(|cause| {
        if cause.keeps_kubelet_from_starting() {
            format!("{no_start}{cause}")
        } else {
            format!("kubelet's settings cannot be read: {cause}")
        }
    })?;
    let folder = below(root, &config.root_dir);
    let read = KubeletFiles::read(root, &folder);
    // A file of an unknown schema does not keep kubelet from starting, but what it says is not known.
    let damaged = read
        .unusable(&config, version)
        .map(|(_, one)| one)
        .find(|one| one.is_damaged);
    if let Some(unusable) = damaged.or(read.cpus.as_ref().err()).or(read.memory.as_ref().err()) {
        let beginning = if unusable.is_damaged { no_start } else { "" };
        let fix = remedy_of_file(&unusable.text).unwrap_or_default();
        return Err(Rejected::unknown(format!("{beginning}{unusable}"), fix));
    }
    let cpus = read.cpus.as_ref().ok().and_then(Option::as_ref);
    let memory = read.memory.as_ref().ok().and_then(Option::as_ref);
    if config.cpu_manager_policy != "none" && cpus.is_none() && notes.is_empty() {
        let text = format!("kubelet runs and {CPU_MANAGER_STATE} does not exist: which CPUs it assigned is not known");
        return Err(Rejected::unknown(text, "drain the node, then restart kubelet"));
    }
    let pods = read.allocated.as_ref().ok().and_then(Option::as_ref);
    let pods = pods.filter(|_| reads(ALLOCATED_PODS_STATE, &config, version));
    let caches = topology.caches(&sys);
    let mut warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    warnings.extend(unknown_gates(&config));
    let files = StateFiles { cpus, memory };
    warnings.extend(starts(&config, &machine(&topology, &caches, &numa), files, no_start)?);
    let known = read.devices.as_ref().ok().and_then(Option::as_ref);
    let mut devices = known.map(|state| placed(state, root)).unwrap_or_default();
    devices.is_unreadable = read.devices.is_err();
    notes.extend(unknown_places(&devices));
    let settings = settings::settings(&config, memory)?;
    let has_cpus = settings.cpu_manager != CpuManager::None;
    let has_memory = settings.memory_manager != MemoryManager::None;
    for (is_absent, file, what) in [
        (has_cpus && cpus.is_none(), CPU_MANAGER_STATE, "CPUs"),
        (has_memory && memory.is_none(), MEMORY_MANAGER_STATE, "memory"),
    ] {
        notes.extend(is_absent.then(|| format!("{file} does not exist: no {what} are assumed to be assigned")));
    }
    let state = NodeState {
        cpus: cpus.filter(|_| has_cpus).map(Into::into).unwrap_or_default(),
        memory: memory.map(Into::into).unwrap_or_default(),
        devices,
    };
    let mut subject = Subject::new(None, topology, &caches, &numa, settings, state, notes)?;
    subject.warnings = warnings;
    let is_there = |uid: &str| folder.join("pods").join(uid).is_dir();
    subject.room = Room::new(&config, subject.node.machine(), pods, is_there);
    subject.faults.extend(read.devices.as_ref().err().map(|unusable| {
        let fix = "; fix: drain the node of pods with devices, then restart kubelet";
        forgotten(unusable) + if unusable.is_damaged { fix } else { "" }
    }));
    let by_file = cpus.filter(|state| state.schema == Schema::V4).map(|_| V4_SINCE);
    Ok(subject.with_version(version.or(by_file)))
}

/// What kubelet does with a record of devices that it cannot read.
pub(crate) fn forgotten(unusable: &UnusableState) -> String {
    if unusable.is_damaged {
        format!(
            "{unusable}: kubelet starts without it (\"Continue after failing to read checkpoint file\") and has forgotten which devices are in use"
        )
    } else {
        format!("{unusable}: which devices are in use is not known")
    }
}

/// Why there is no answer: kubelet would not start, or what it would start with is not known. `Ok`: what keeps only another start from the
/// configuration, as a warning; the state file has the reservation of memory then.
fn starts(
    config: &KubeletConfig,
    machine: &Machine,
    files: StateFiles<'_>,
    no_start: &str,
) -> Result<Option<String>, Box<Rejected>> {
    let problems = start::problems(config, Some(machine), files);
    let joined = |texts: Vec<String>| texts.join("; ");
    let in_words = joined(problems.iter().map(ToString::to_string).collect());
    if config.hidden && (!problems.is_empty() || files.cpus.is_none() && !config.has_cpu_policy) {
        let otherwise = format!(" (by what is in files alone, it would not start: {in_words})");
        let otherwise = if problems.is_empty() { "" } else { &otherwise };
        return Err(format!("{HIDDEN}{otherwise}").into());
    }
    let by_file = start::is_reserved_in_file(config, files.memory);
    let goes_on = |problem: &StartProblem| by_file && problem.is_of_reserved_memory();
    if !problems.iter().all(goes_on) {
        let mut fixes: Vec<String> = problems.iter().map(|problem| problem.cure(&config.root_dir)).collect();
        fixes.dedup();
        return Err(Rejected::unknown(format!("{no_start}{in_words}"), joined(fixes)));
    }
    Ok((!problems.is_empty()).then(|| {
        format!("kubelet would not start anew with this configuration: {in_words}; answered with the reservation in {MEMORY_MANAGER_STATE}")
    }))
}

/// The devices, each where kubelet's record or else its id says.
fn placed(state: &DeviceManagerState, root: &Path) -> DeviceState {
    let mut placed = DeviceState::from(state);
    for (resource, devices) in &mut placed.resources {
        let by_id = DevicePlaces::new(root, state, resource);
        for (id, place) in places(state, resource, |id| by_id.by_id(id)) {
            match (place, devices.get_mut(id)) {
                (Place::Nodes(nodes), Some(device)) => device.nodes = nodes,
                (Place::Unknown, _) => drop(placed.unplaced.insert(resource.clone())),
                _ => {}
            }
        }
    }
    // No pod has a device that would show whether the plugin reports NUMA nodes.
    let is_seen = |resource: &str| state.entries.iter().any(|entry| entry.resource == resource);
    let has_nodes = |devices: &Devices| devices.values().any(|device| !device.nodes.is_empty());
    let resources = placed.resources.iter();
    let unseen = resources.filter(|(name, devices)| has_nodes(devices) && !is_seen(name));
    placed.assumed = unseen.map(|(name, _)| name.clone()).collect();
    placed
}

/// Which resources have NUMA nodes by their IDs only, and which have free devices whose NUMA nodes are not known.
fn unknown_places(state: &DeviceState) -> impl Iterator<Item = String> {
    let assumed = "no pod has a device of them, so their plugins are taken to report the NUMA nodes that the kernel has for them (not with \
                   excludeTopology of SR-IOV's plugin)";
    let unplaced = "the NUMA nodes of their free devices are unknown: kubelet records only those of devices in use, and the other IDs name no \
                    PCI device or GPU of this node. The answer leaves their preference out (--devices gives them)";
    let told = [(&state.unplaced, unplaced), (&state.assumed, assumed)].into_iter();
    let told = told.filter(|(names, _)| !names.is_empty());
    told.map(|(names, what)| format!("{}: {what}", names.iter().cloned().collect::<Vec<_>>().join(", ")))
}
