//! Which devices kubelet has allocated to pods, by its own record.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stelia_kubelet::DeviceManagerState;
use stelia_kubelet::devices::{DEVICE_MANAGER_STATE, read_regular_file};

use crate::RESOURCE;
use crate::offer::number;

/// The largest record that is read, in bytes: many times that of the largest nodes. Its checksum takes ten times as much memory.
const MAX_RECORD_BYTES: u64 = 2 << 20;

/// Which version of the file was read: kubelet writes a new file each time.
type Version = (u64, u64, i64, i64);

/// The record as it was last read.
pub(crate) struct AllocatedDevices {
    path: PathBuf,
    version: Option<Version>,
    numbers: BTreeSet<u32>,
    /// How many devices the record had when this program started; `None`: none, or there was no record.
    at_start: Option<u32>,
    /// Why the record could not be read, as it was last reported.
    problem: Option<String>,
}

impl AllocatedDevices {
    /// `folder`: kubelet's folder of plugins' sockets.
    pub(crate) fn new(folder: &Path) -> Self {
        let mut devices = Self {
            path: folder.join(DEVICE_MANAGER_STATE),
            version: None,
            numbers: BTreeSet::new(),
            at_start: None,
            problem: None,
        };
        devices.at_start = devices.read_changed().and_then(|state| registered(&state));
        devices
    }

    /// How many devices kubelet's record had when this program started. kubelet's later records have what this program offered.
    pub(crate) fn at_start(&self) -> Option<u32> {
        self.at_start
    }

    /// The numbers of the devices that pods have, some of which may have ended. The file is read where it is another one than before; one that
    /// cannot be read leaves what was known.
    pub(crate) fn read(&mut self) -> &BTreeSet<u32> {
        self.read_changed();
        &self.numbers
    }

    /// What the file says, if it is another one than before. A file that could not be opened or read is tried again; one of which the content is
    /// wrong is not.
    fn read_changed(&mut self) -> Option<DeviceManagerState> {
        let metadata = fs::metadata(&self.path).ok()?;
        let version = (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
        if self.version == Some(version) {
            return None;
        }
        let problem = match read(&self.path) {
            Ok(state) => {
                self.version = Some(version);
                match state {
                    Ok(state) => {
                        self.numbers = numbers(&state);
                        self.problem = None;
                        return Some(state);
                    }
                    Err(problem) => problem,
                }
            }
            Err(error) => error.to_string(),
        };
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!("{}: {problem}", self.path.display());
            self.problem = Some(problem);
        }
        None
    }
}

/// The inner error is what is wrong with the content.
fn read(path: &Path) -> io::Result<Result<DeviceManagerState, String>> {
    let bytes = read_regular_file(path, MAX_RECORD_BYTES)?;
    Ok(DeviceManagerState::parse(&bytes).map_err(|cause| cause.to_string()))
}

fn registered(state: &DeviceManagerState) -> Option<u32> {
    let ids = state.registered.get(RESOURCE)?;
    u32::try_from(ids.len()).ok().filter(|count| *count > 0)
}

fn numbers(state: &DeviceManagerState) -> BTreeSet<u32> {
    let entries = state.entries.iter().filter(|entry| entry.resource == RESOURCE);
    let ids = entries.flat_map(|entry| entry.devices.values().flatten());
    ids.filter_map(|id| number(id)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use stelia_kubelet::PodUid;
    use stelia_kubelet::devices::DeviceEntry;

    use super::*;

    #[test]
    fn the_devices_of_this_resource_count_whichever_pod_has_them() {
        let entry = |resource: &str, ids: &[&str]| DeviceEntry {
            pod: PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap(),
            container: "compute".to_owned(),
            resource: resource.to_owned(),
            devices: [(None, ids.iter().map(ToString::to_string).collect())].into(),
            files: BTreeSet::new(),
        };
        let state = DeviceManagerState {
            entries: vec![
                entry(RESOURCE, &["vm-3"]),
                entry("example.com/gpu", &["vm-4"]),
                entry(RESOURCE, &["vm-0", "vm-07", "vm-1024", "other"]),
            ],
            ..DeviceManagerState::default()
        };
        assert_eq!(numbers(&state), [0, 3].into());
    }

    #[test]
    fn a_record_that_cannot_be_read_leaves_what_was_known() {
        let folder = tempfile::tempdir().unwrap();
        let mut allocated = AllocatedDevices::new(folder.path());
        assert!(allocated.read().is_empty());
        allocated.numbers = [4].into();
        assert_eq!(*allocated.read(), [4].into());
        let path = folder.path().join(DEVICE_MANAGER_STATE);
        fs::write(&path, "no record").unwrap();
        assert_eq!(*allocated.read(), [4].into());
        let empty = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#;
        let new = folder.path().join("new");
        fs::write(&new, empty).unwrap();
        fs::rename(new, path).unwrap();
        assert!(allocated.read().is_empty());
    }

    #[test]
    fn a_record_that_is_too_large_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(DEVICE_MANAGER_STATE);
        File::create(&path).unwrap().set_len(MAX_RECORD_BYTES + 1).unwrap();
        let mut allocated = AllocatedDevices::new(folder.path());
        assert_eq!((allocated.at_start(), allocated.read().len()), (None, 0));
        assert_eq!(allocated.problem.as_deref(), Some("it is larger than 2 MiB"));
    }

    #[test]
    fn the_devices_of_this_resource_are_counted_and_none_is_no_number() {
        let mut state = DeviceManagerState::default();
        assert_eq!(registered(&state), None);
        let ids = |ids: &[&str]| ids.iter().map(ToString::to_string).collect();
        state.registered.insert("example.com/gpu".to_owned(), ids(&["gpu-0"]));
        state.registered.insert(RESOURCE.to_owned(), ids(&[]));
        assert_eq!(registered(&state), None);
        state.registered.insert(RESOURCE.to_owned(), ids(&["vm-0", "vm-1"]));
        assert_eq!(registered(&state), Some(2));
    }
}
