//! kubelet's record of devices: the NUMA nodes of each container's, read once for each version of the file.
//!
//! A registration needs those of one container, and the file has all of the node's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use stelia_kubelet::devices::device_manager_state;
use stelia_kubelet::{DeviceManagerState, PodUid};

/// What differs between two versions of the file, which kubelet replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    path: PathBuf,
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Version {
    /// `None` without a file.
    fn of(path: &Path) -> std::io::Result<Option<Self>> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(Some(Self {
                path: path.to_owned(),
                inode: metadata.ino(),
                bytes: metadata.len(),
                modified: metadata.modified().ok(),
            })),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }
}

/// The NUMA nodes of one container's devices of one resource.
type OfContainer = (String, BTreeSet<u32>);

/// The record as it was last read.
#[derive(Debug)]
pub(super) struct DeviceRecord {
    version: Option<Version>,
    /// By pod, or why the file cannot be used.
    pods: Result<BTreeMap<PodUid, Vec<OfContainer>>, String>,
}

impl Default for DeviceRecord {
    fn default() -> Self {
        Self {
            version: None,
            pods: Ok(BTreeMap::new()),
        }
    }
}

impl DeviceRecord {
    /// The NUMA nodes of a container's devices; those of its pod, where its name is not known. `kubelet` is kubelet's root directory below `root`.
    ///
    /// # Errors
    /// The file cannot be read, or is not as kubelet writes it.
    pub(super) fn nodes(
        &mut self,
        (root, kubelet): (&Path, &Path),
        pod: &PodUid,
        container: Option<&str>,
    ) -> Result<BTreeSet<u32>, String> {
        let path = device_manager_state(root, kubelet);
        let named = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
        // Before it is read: a file that is replaced meanwhile is read again next time.
        let version = Version::of(&path).map_err(|cause| named(&cause))?;
        if version.is_none() || version != self.version {
            // Nothing is kept of a file that could not be read.
            self.version = None;
            self.pods = match &version {
                None => Ok(BTreeMap::new()),
                Some(_) => by_pod(&fs::read(&path).map_err(|cause| named(&cause))?).map_err(|cause| named(&cause)),
            };
            self.version = version;
        }
        let pods = self.pods.as_ref().map_err(Clone::clone)?;
        let own = pods.get(pod).into_iter().flatten();
        let own = own.filter(|(name, _)| container.is_none_or(|container| name == container));
        Ok(own.flat_map(|(_, nodes)| nodes).copied().collect())
    }
}

fn by_pod(bytes: &[u8]) -> Result<BTreeMap<PodUid, Vec<OfContainer>>, stelia_kubelet::CheckpointError> {
    let mut pods: BTreeMap<PodUid, Vec<OfContainer>> = BTreeMap::new();
    for entry in DeviceManagerState::parse(bytes)?.entries {
        let nodes: BTreeSet<u32> = entry.devices.into_keys().flatten().collect();
        if !nodes.is_empty() {
            pods.entry(entry.pod).or_default().push((entry.container, nodes));
        }
    }
    Ok(pods)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &[u8] =
        include_bytes!("../../tests/data/kubelet-checkpoints/k136-gate-off/08-device/kubelet_internal_checkpoint");
    const POD: &str = "ce32ebd2-f905-449e-b74b-4231a84b88e1";

    #[test]
    fn a_file_is_read_once_and_again_when_kubelet_replaced_it() {
        let root = tempfile::tempdir().unwrap();
        let kubelet = root.path().join("kubelet");
        let folder = kubelet.join("device-plugins");
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("kubelet_internal_checkpoint");
        let pod = PodUid::parse(POD).unwrap();
        let mut record = DeviceRecord::default();
        let mut nodes = |name| record.nodes((root.path(), &kubelet), &pod, name);
        assert_eq!(nodes(None), Ok([].into()), "there is no file");

        let replace = |bytes: &[u8]| {
            fs::write(folder.join("new"), bytes).unwrap();
            fs::rename(folder.join("new"), &file).unwrap();
        };
        replace(DEVICES);
        assert_eq!(nodes(Some("instance")), Ok([0].into()));
        assert_eq!((nodes(None), nodes(Some("other"))), (Ok([0].into()), Ok([].into())));

        // By its metadata this is the same file, whose text would be refused.
        let before = fs::metadata(&file).unwrap().modified().unwrap();
        fs::write(&file, vec![b'x'; DEVICES.len()]).unwrap();
        fs::File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .set_modified(before)
            .unwrap();
        assert_eq!(nodes(None), Ok([0].into()));

        replace(b"{");
        let problem = nodes(None).unwrap_err();
        assert!(problem.contains("kubelet_internal_checkpoint: "), "{problem}");
        assert_eq!(nodes(None).unwrap_err(), problem);
        replace(DEVICES);
        assert_eq!(nodes(None), Ok([0].into()));
    }
}
