//! Files of bounded length, and state files of kubelet.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use stelia_kubelet::allocated_pods::{ACTUATED_PODS_STATE, ALLOCATED_PODS_STATE};
use stelia_kubelet::cpu_manager_state::{CPU_MANAGER_STATE, CheckpointError, MAX_BYTES};
use stelia_kubelet::devices::device_manager_state;
use stelia_kubelet::dra_manager_state::{self, DRA_MANAGER_STATE};
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::{AllocatedPods, CpuManagerState, DeviceManagerState, KubeletConfig, MemoryManagerState};
use stelia_node_plan::start::reads;

use super::daemon::Failure;

/// A path of the node below `root`, where it may be already.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    if path.starts_with(root) {
        path.to_owned()
    } else {
        root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// A path below `root` as the node has it.
pub(crate) fn without_root(root: &Path, path: &Path) -> PathBuf {
    let rest = path.strip_prefix(root);
    rest.map_or_else(|_| path.to_owned(), |rest| Path::new("/").join(rest))
}

/// Reads at most `max_bytes` + 1 bytes: the parser refuses a file that is longer than `max_bytes`.
pub(crate) fn bytes(path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    take(File::open(path)?, max_bytes)
}

/// Why a state file of kubelet's cannot be used, with its path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct UnusableState {
    pub(crate) text: String,
    /// kubelet cannot use it either.
    pub(crate) is_damaged: bool,
}

type State<T> = Result<Option<T>, UnusableState>;

/// kubelet's state files; `None`: one does not exist.
#[derive(Debug)]
pub(crate) struct KubeletFiles {
    pub(crate) cpus: State<CpuManagerState>,
    pub(crate) memory: State<MemoryManagerState>,
    /// kubelet starts without it, and has forgotten which devices are in use.
    pub(crate) devices: State<DeviceManagerState>,
    pub(crate) allocated: State<AllocatedPods>,
    pub(crate) actuated: State<AllocatedPods>,
    pub(crate) claims: State<()>,
}

impl KubeletFiles {
    /// `folder`: kubelet's root directory, below `root`.
    pub(crate) fn read(root: &Path, folder: &Path) -> Self {
        let pods = |name| kubelet_state(&folder.join(name), AllocatedPods::parse);
        Self {
            cpus: kubelet_state(&folder.join(CPU_MANAGER_STATE), CpuManagerState::parse),
            memory: kubelet_state(&folder.join(MEMORY_MANAGER_STATE), MemoryManagerState::parse),
            devices: kubelet_state(&device_manager_state(root, folder), DeviceManagerState::parse),
            allocated: pods(ALLOCATED_PODS_STATE),
            actuated: pods(ACTUATED_PODS_STATE),
            claims: kubelet_state(&folder.join(DRA_MANAGER_STATE), dra_manager_state::check),
        }
    }

    /// Those that kubelet reads when it starts and that cannot be used, except `cpu_manager_state`. `version`: its minor version.
    pub(crate) fn unusable(
        &self,
        config: &KubeletConfig,
        version: Option<u32>,
    ) -> impl Iterator<Item = (&'static str, &UnusableState)> {
        let all = [
            (MEMORY_MANAGER_STATE, self.memory.as_ref().err()),
            (ALLOCATED_PODS_STATE, self.allocated.as_ref().err()),
            (ACTUATED_PODS_STATE, self.actuated.as_ref().err()),
            (DRA_MANAGER_STATE, self.claims.as_ref().err()),
        ];
        let is_read = move |file| file == MEMORY_MANAGER_STATE || reads(file, config, version);
        let read = all.into_iter().filter(move |(file, _)| is_read(file));
        read.filter_map(|(file, why)| Some((file, why?)))
    }
}

fn kubelet_state<T>(path: &Path, parse: impl Fn(&[u8]) -> Result<T, CheckpointError>) -> State<T> {
    let unusable = |text: String, is_damaged: bool| Err(UnusableState { text, is_damaged });
    match bytes(path, MAX_BYTES).map(|bytes| parse(&bytes)) {
        Ok(Ok(state)) => Ok(Some(state)),
        Ok(Err(cause)) => unusable(format!("{}: {cause}", path.display()), cause.is_damage()),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => unusable(format!("read {}: {cause}", path.display()), false),
    }
}

/// As `bytes`, as text; `-` is standard input.
pub(crate) fn text(path: &Path, max_bytes: usize) -> Result<String, Failure> {
    let bytes = if path == Path::new("-") {
        take(io::stdin().lock(), max_bytes)
    } else {
        bytes(path, max_bytes)
    };
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    text.map_err(|cause| Failure::Other(format!("read {}: {cause}", path.display())))
}

fn take(from: impl Read, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
