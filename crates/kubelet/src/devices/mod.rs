//! `kubelet_internal_checkpoint`: kubelet's record of the devices that plugins offer and pods have.

mod answer;
mod file;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use stelia_cpus::NodeSet;

use super::PodUid;
use super::cpu_manager_state::{CheckpointError, MAX_BYTES, content};

/// kubelet's directory of device plugins' sockets and of its own record of devices: a constant of kubelet's (`DevicePluginPath`), whatever its
/// root directory.
pub const PLUGIN_FOLDER: &str = "/var/lib/kubelet/device-plugins";
/// File name in kubelet's directory of device plugins.
pub const DEVICE_MANAGER_STATE: &str = "kubelet_internal_checkpoint";

/// kubelet's directory of device plugins below `root` (`/`). `kubelet` is its root directory, below `root` too: some distributions change the
/// constant, and their kubelet has its record there.
pub fn plugin_folder(root: &Path, kubelet: &Path) -> PathBuf {
    let changed = kubelet.join("device-plugins");
    if changed.join(DEVICE_MANAGER_STATE).exists() {
        changed
    } else {
        root.join(PLUGIN_FOLDER.trim_start_matches('/'))
    }
}

/// kubelet's record of devices, in [`plugin_folder`].
pub fn device_manager_state(root: &Path, kubelet: &Path) -> PathBuf {
    plugin_folder(root, kubelet).join(DEVICE_MANAGER_STATE)
}

/// The parsed content of a `kubelet_internal_checkpoint`, its checksum verified.
///
/// ```
/// use stelia_kubelet::DeviceManagerState;
///
/// let text = br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#;
/// let state = DeviceManagerState::parse(text)?;
/// assert!(state.entries.is_empty() && state.registered.is_empty());
/// # Ok::<(), stelia_kubelet::CheckpointError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceManagerState {
    /// Devices assigned to pods. A removed pod's stay until the next admission, so an entry does not mean that the pod
    /// exists.
    pub entries: Vec<DeviceEntry>,
    /// The healthy devices of each resource. The file does not say at which NUMA nodes they are.
    pub registered: BTreeMap<String, BTreeSet<String>>,
}

/// The devices of one resource that a container has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEntry {
    /// The pod.
    pub pod: PodUid,
    /// The container.
    pub container: String,
    /// The resource, such as `nvidia.com/gpu`.
    pub resource: String,
    /// Ids by NUMA node; `None`: their plugin does not report it. A device at several nodes is listed at each.
    pub devices: BTreeMap<Option<u32>, BTreeSet<String>>,
    /// The files below the host's `/dev` that the plugin gave the container for them, such as `/dev/vfio/12`.
    pub files: BTreeSet<String>,
}

impl DeviceManagerState {
    /// Parse and check the bytes of a `kubelet_internal_checkpoint`, as kubelet writes it since 1.20.
    ///
    /// # Errors
    /// Every [`CheckpointError`] except those about CPUs; nothing of an invalid file is used.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        file::read(content(bytes)?)
    }

    /// Read, parse and check a `kubelet_internal_checkpoint`. `None` if there is none: then no container has devices.
    ///
    /// Pods of device plugins usually have the directory mounted read-write. So only a regular file is read, and no more of it than is used.
    ///
    /// # Errors
    /// What is wrong with the file, with its path.
    pub fn read(path: &Path) -> Result<Option<Self>, String> {
        let named = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
        match read_regular_file(path, MAX_BYTES as u64) {
            Ok(bytes) => Self::parse(&bytes).map(Some).map_err(|cause| named(&cause)),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(named(&cause)),
        }
    }
}

/// The content of a regular file of at most `max_bytes`, in whose place others may put anything.
///
/// # Errors
/// It cannot be read, is not a regular file, or is larger.
pub fn read_regular_file(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let too_large = || io::Error::other(format!("it is larger than {} MiB", max_bytes >> 20));
    if metadata.len() > max_bytes {
        return Err(too_large());
    }
    // Where a FIFO took its place meanwhile, opening it does not wait for the other end.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
        .open(path)?;
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        Err(too_large())
    } else {
        Ok(bytes)
    }
}

impl DeviceEntry {
    /// Each device with the NUMA nodes that its plugin reports: none, one, or several.
    pub fn nodes_by_id(&self) -> BTreeMap<&str, NodeSet> {
        let mut nodes: BTreeMap<&str, NodeSet> = BTreeMap::new();
        for (node, ids) in &self.devices {
            for id in ids {
                nodes.entry(id).or_default().extend(node);
            }
        }
        nodes
    }
}
