//! kubelet's record of devices: the NUMA nodes of each container's, read once for each version of the file.
//!
//! A registration needs those of one container, and the file has all of the node's.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stelia_cpus::NodeSet;
use stelia_kubelet::devices::device_manager_state;
use stelia_kubelet::{DeviceManagerState, PodUid};

/// What differs between two versions of the file, which kubelet replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    path: PathBuf,
    inode: u64,
    bytes: u64,
    /// When the inode changed: a file can be given the time of another one's content.
    changed: (i64, i64),
}

impl Version {
    /// `None` without a file.
    fn of(path: &Path) -> std::io::Result<Option<Self>> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(Some(Self {
                path: path.to_owned(),
                inode: metadata.ino(),
                bytes: metadata.len(),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            })),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }
}

/// The NUMA nodes of one container's devices of one resource.
type OfContainer = (String, NodeSet);

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
    ) -> Result<NodeSet, String> {
        let path = device_manager_state(root, kubelet);
        // Before it is read: a file that is replaced meanwhile is read again next time.
        let version = Version::of(&path).map_err(|cause| format!("{}: {cause}", path.display()))?;
        if version.is_none() || version != self.version {
            self.pods = match &version {
                None => Ok(BTreeMap::new()),
                Some(_) => DeviceManagerState::read(&path).map(|state| by_pod(state.unwrap_or_default())),
            };
            self.version = version;
        }
        let pods = self.pods.as_ref().map_err(Clone::clone)?;
        let own = pods.get(pod).into_iter().flatten();
        let own = own.filter(|(name, _)| container.is_none_or(|container| name == container));
        Ok(own.flat_map(|(_, nodes)| nodes).copied().collect())
    }
}

/// A kernel has fewer NUMA nodes (`NODES_SHIFT` is at most 10). A plugin may report any number, and a record with one that is no node could not be read.
const MAX_NODES: u32 = 1 << 10;

/// A device with several NUMA nodes is near to the CPUs of each: it does not say which to choose.
fn by_pod(state: DeviceManagerState) -> BTreeMap<PodUid, Vec<OfContainer>> {
    let mut pods: BTreeMap<PodUid, Vec<OfContainer>> = BTreeMap::new();
    for entry in state.entries {
        let of_ids = entry.nodes_by_id().into_values();
        let nodes = of_ids.filter(|nodes| nodes.len() == 1).flatten();
        let nodes: NodeSet = nodes.filter(|node| *node < MAX_NODES).collect();
        if !nodes.is_empty() {
            pods.entry(entry.pod).or_default().push((entry.container, nodes));
        }
    }
    pods
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    use stelia_kubelet::devices::DeviceEntry;

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
        let read = |record: &mut DeviceRecord, name| record.nodes((root.path(), &kubelet), &pod, name);
        assert_eq!(read(&mut record, None), Ok([].into()), "there is no file");

        let replace = |bytes: &[u8]| {
            fs::write(folder.join("new"), bytes).unwrap();
            fs::rename(folder.join("new"), &file).unwrap();
        };
        replace(DEVICES);
        assert_eq!(read(&mut record, Some("instance")), Ok([0].into()));
        assert_eq!(read(&mut record, Some("other")), Ok([].into()));
        assert_eq!(read(&mut record, None), Ok([0].into()));

        // What is kept is given while the file is the same.
        record.pods = Ok([(pod.clone(), vec![("instance".to_owned(), [7].into())])].into());
        assert_eq!(read(&mut record, None), Ok([7].into()));

        // A file of the same size and time, which another program wrote into this one.
        let (version, before) = (Version::of(&file).unwrap(), fs::metadata(&file).unwrap());
        fs::write(&file, vec![b'x'; DEVICES.len()]).unwrap();
        let restore = || {
            let opened = fs::File::options().write(true).open(&file).unwrap();
            opened.set_modified(before.modified().unwrap()).unwrap();
        };
        restore();
        // The kernel's clock for files may be some milliseconds behind.
        let start = Instant::now();
        while Version::of(&file).unwrap() == version {
            assert!(start.elapsed() < Duration::from_secs(10), "{version:?}");
            restore();
        }
        let after = fs::metadata(&file).unwrap();
        assert_eq!(
            (after.ino(), after.len(), after.mtime_nsec()),
            (before.ino(), before.len(), before.mtime_nsec())
        );
        let problem = read(&mut record, None).unwrap_err();
        assert!(problem.contains("the file is damaged"), "{problem}");

        replace(b"{");
        let problem = read(&mut record, None).unwrap_err();
        assert!(problem.contains("kubelet_internal_checkpoint: "), "{problem}");
        assert_eq!(read(&mut record, None).unwrap_err(), problem);
        replace(DEVICES);
        assert_eq!(read(&mut record, None), Ok([0].into()));
    }

    #[test]
    fn a_device_with_several_numa_nodes_does_not_say_where_the_cpus_are_best() {
        let pod = PodUid::parse(POD).unwrap();
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let entry = |container: &str, one: &[&str]| DeviceEntry {
            pod: pod.clone(),
            container: container.to_owned(),
            resource: "example.com/nic".to_owned(),
            // The last is no NUMA node of any kernel.
            devices: [
                (None, ids(&["d"])),
                (Some(0), ids(&["a"])),
                (Some(1), ids(one)),
                (Some(9000), ids(&["e"])),
            ]
            .into(),
            files: BTreeSet::new(),
        };
        let state = DeviceManagerState {
            entries: vec![
                entry("several", &["a"]),
                entry("some", &["a", "b"]),
                entry("each", &["b"]),
            ],
            ..DeviceManagerState::default()
        };
        let expected = vec![("some".to_owned(), [1].into()), ("each".to_owned(), [0, 1].into())];
        assert_eq!(by_pod(state), [(pod, expected)].into());
    }
}
