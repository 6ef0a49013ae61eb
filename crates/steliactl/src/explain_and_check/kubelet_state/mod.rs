//! `kubelet-state`: what steliad reads from kubelet's files. Needs no daemon. Which CPUs a pod's containers share is
//! not in the files: it is read from the containers, if they run on this host.

mod json;
mod text;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::KernelCgroups;
use stelia_kernel::containers::{entry_uses, live_containers, pod_containers};
use stelia_kernel::runtime_config;
use stelia_kubelet::cpu_manager_state::{CPU_MANAGER_STATE, CheckpointError, MAX_BYTES};
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::{CpuManagerState, MemoryManagerState, PodUid, home};
use stelia_settings::Settings;

use crate::shared::daemon::{Failure, Pod, Pods};
use crate::shared::files;
use crate::shared::output::{Render, TextStyle};

/// `None` for a file that was not asked for, and for a memory manager's file that does not exist.
#[derive(Debug, Default)]
pub(crate) struct Files {
    cpu: Option<Checked<CpuManagerState>>,
    memory: Option<Checked<MemoryManagerState>>,
    /// The names of this host's pods.
    pods: Pods,
}

/// A file: what it says, or why it is refused.
#[derive(Debug)]
struct Checked<T> {
    path: PathBuf,
    state: Result<T, String>,
}

impl<T> Checked<T> {
    /// The answer has the reason.
    fn refusal(&self) -> Option<String> {
        let is_refused = self.state.is_err();
        is_refused.then(|| format!("{} cannot be used", self.path.display()))
    }
}

/// What is said of a path that was typed and does not exist, which need not be kubelet's.
const ABSENT: &str = "there is no such file";
/// The same where kubelet would have written it; "No such file" is the message in `docs/troubleshooting.md`.
const NOT_WRITTEN: &str = "No such file: kubelet writes it in its root directory (--root-dir)";

/// How long to wait for the names that the daemon knows.
pub(crate) const NAMES_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads a file, or both files of a directory; without a path, those of kubelet's root directory. `running` are
/// the pods that the daemon knows.
///
/// # Errors
/// kubelet's root directory cannot be determined.
pub(crate) fn gather(path: Option<&Path>, running: Pods) -> Result<Files, Failure> {
    let files = match path {
        None => folder(&read_by_the_daemon(Path::new("/"))?, NOT_WRITTEN),
        Some(path) if path.is_dir() => folder(path, ABSENT),
        Some(path) => file(path),
    };
    // A file of another host has UIDs that no pod of this host has.
    let mut pods = Pods::by_logs(Path::new("/"));
    pods.add(running);
    let unnamed = files.uids().into_iter().filter(|uid| !pods.has(uid.as_str()));
    let by_runtime: Pods = unnamed.filter_map(named_by_runtime).collect();
    pods.add(by_runtime);
    Ok(Files { pods, ..files })
}

/// The pod by the configuration of one of its containers, if any runs on this host.
fn named_by_runtime(uid: &PodUid) -> Option<Pod> {
    let cgroups = KernelCgroups::new("/sys/fs/cgroup");
    let containers = pod_containers(&cgroups, uid).ok()?;
    let mut names = containers.iter();
    let name = names.find_map(|(_, container)| runtime_config::container(Path::new("/run"), container).pod)?;
    Some(Pod::new(uid, Some(&name)))
}

impl Files {
    /// The pods that are in the files.
    fn uids(&self) -> BTreeSet<&PodUid> {
        let cpu = self.cpu.iter().filter_map(|file| file.state.as_ref().ok());
        let memory = self.memory.iter().filter_map(|file| file.state.as_ref().ok());
        let cpu = cpu.flat_map(|state| state.entries.keys().chain(state.pod_entries.keys()));
        let memory = memory.flat_map(|state| state.entries.keys().chain(state.pod_entries.keys()));
        cpu.chain(memory).collect()
    }
}

impl Serialize for Files {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json::files(self).serialize(serializer)
    }
}

impl Render for Files {
    fn text(&self, style: TextStyle) -> String {
        text::files(self, style)
    }

    /// Which file is refused, does not exist, or cannot be read.
    fn failure(&self) -> Option<String> {
        let cpu = self.cpu.as_ref().and_then(Checked::refusal);
        let memory = self.memory.as_ref().and_then(Checked::refusal);
        let reasons: Vec<String> = cpu.into_iter().chain(memory).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// The settings below `root` (`/`); the defaults where they cannot be read.
fn settings(root: &Path) -> Settings {
    stelia_settings::load(root).map_or_else(|_| Settings::default(), |loaded| loaded.settings)
}

/// The directory that the daemon reads, below `root` (`/`).
fn read_by_the_daemon(root: &Path) -> Result<PathBuf, Failure> {
    let found = home::by_setting(&settings(root).kubelet_root, root, None);
    found.map_err(|unclear| Failure::Other(unclear.to_string()))
}

/// `absent` is what is said of a file for the CPU manager that does not exist.
fn folder(path: &Path, absent: &str) -> Files {
    let cpu = path.join(CPU_MANAGER_STATE);
    let memory = path.join(MEMORY_MANAGER_STATE);
    let bytes = read(&memory);
    // kubelet before 1.21 does not write this file.
    let has_memory = !bytes.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    Files {
        cpu: Some(check(&cpu, read(&cpu), absent, CpuManagerState::parse)),
        memory: has_memory.then(|| check(&memory, bytes, absent, MemoryManagerState::parse)),
        pods: Pods::default(),
    }
}

/// The kind of file is determined by its name, else by its content.
fn file(path: &Path) -> Files {
    let bytes = read(path);
    let is_memory = match path.file_name().and_then(|name| name.to_str()) {
        Some(MEMORY_MANAGER_STATE) => true,
        Some(CPU_MANAGER_STATE) => false,
        _ => bytes.as_ref().is_ok_and(|bytes| speaks_of_memory(bytes)),
    };
    if is_memory {
        Files {
            memory: Some(check(path, bytes, ABSENT, MemoryManagerState::parse)),
            ..Files::default()
        }
    } else {
        Files {
            cpu: Some(check(path, bytes, ABSENT, CpuManagerState::parse)),
            ..Files::default()
        }
    }
}

/// `machineState` is required in each schema of the memory manager's file; the newest has it beside `data`.
fn speaks_of_memory(bytes: &[u8]) -> bool {
    let keys: Option<Value> = serde_json::from_slice(bytes).ok();
    keys.is_some_and(|keys| keys.get("machineState").is_some())
}

fn check<T>(
    path: &Path,
    bytes: io::Result<Vec<u8>>,
    absent: &str,
    parse: fn(&[u8]) -> Result<T, CheckpointError>,
) -> Checked<T> {
    let parse = |bytes: Vec<u8>| parse(&bytes).map_err(|error| error.to_string());
    Checked {
        path: path.to_owned(),
        state: bytes.map_err(|error| unreadable(&error, absent)).and_then(parse),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    files::bytes(path, MAX_BYTES)
}

fn unreadable(error: &io::Error, absent: &str) -> String {
    match error.kind() {
        ErrorKind::NotFound => absent.to_owned(),
        _ => error.to_string(),
    }
}

/// A pod's shared pool. kubelet's file does not say which containers share it, so their cgroups are read where they run
/// on this host; what cannot be read is left out.
fn shared_in_pod(state: &CpuManagerState, pod: &PodUid) -> CpuSet {
    let cgroups = KernelCgroups::new("/sys/fs/cgroup");
    let running = live_containers(&cgroups, Path::new("/run"), pod, None).unwrap_or_default();
    let uses = entry_uses(state, pod, &running);
    state.pod_shared_pool(pod, &uses).unwrap_or_default()
}

/// Why steliad would not act on this file; `None` if it would.
fn unusable(state: &CpuManagerState) -> Option<String> {
    if state.policy != "static" {
        return Some(format!(
            "the CPU manager policy is {:?}, not \"static\": no container has CPUs of its own",
            state.policy
        ));
    }
    if let Some((pod, container, cpus)) = state.overlap() {
        return Some(format!(
            "the CPUs {cpus} of {pod}/{container} are in the default set too: kubelet does not start with this file"
        ));
    }
    // kubelet writes such a file when it starts.
    let empty = state.shared_pool().is_empty();
    empty.then(|| "the shared pool is empty: there is nowhere to float".to_owned())
}
