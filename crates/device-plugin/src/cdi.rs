//! The file that tells container runtimes what [`CDI_NAME`] is (Container Device Interface, CDI). A runtime gives device nodes that it
//! adds by CDI to the container's own user, which it does for others only with `device_ownership_from_security_context`.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use crate::RESOURCE;
use crate::allocate::CDI_NAME;
use crate::file_error::FileError;

/// Where runtimes look for files that are made at run time.
pub(crate) const FOLDER: &str = "/run/cdi";

const NAME: &str = "stelia.io-vm.json";
/// Runtimes read only names that end with `.json` or `.yaml`.
const NEW_NAME: &str = ".stelia.io-vm.new";

/// The file, and why it could not be written last.
pub(crate) struct CdiFile {
    folder: PathBuf,
    /// Whether containers get the name (the setting `device-plugin-cdi`).
    is_used: bool,
    problem: Mutex<Option<String>>,
}

impl CdiFile {
    pub(crate) fn new(folder: PathBuf, is_used: bool) -> Self {
        let problem = Mutex::new(None);
        Self {
            folder,
            is_used,
            problem,
        }
    }

    /// Writes the file unless it says the same. Returns whether containers get the name: it is used, and the file has it. A failure is in the
    /// journal once.
    ///
    /// # Errors
    ///
    /// Only what another attempt of this process would meet again, and only if containers get the name.
    pub(crate) fn write(&self, devices: &[String]) -> Result<bool, FileError> {
        let (named, problem) = match write(&self.folder, devices) {
            Ok(named) => (named, None),
            Err(error) if self.is_used && error.needs_new_process() => return Err(error),
            Err(error) => (false, Some(error.to_string())),
        };
        // A panic elsewhere leaves a whole value.
        let mut before = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(problem) = &problem
            && before.as_ref() != Some(problem)
        {
            tracing::warn!("container runtimes are not told the name {CDI_NAME}: {problem}");
        }
        *before = problem;
        Ok(named && self.is_used)
    }
}

/// The file's text; `None` without devices, because a device without edits is not valid.
fn text(devices: &[String]) -> Option<String> {
    let nodes: Vec<_> = devices
        .iter()
        .map(|path| json!({"path": path, "permissions": "rw"}))
        .collect();
    let (_, name) = CDI_NAME.split_once('=')?;
    let device = json!({"name": name, "containerEdits": {"deviceNodes": nodes}});
    let spec = json!({"cdiVersion": "0.5.0", "kind": RESOURCE, "devices": [device]});
    (!devices.is_empty()).then(|| format!("{spec}\n"))
}

/// Writes the file unless it says the same. Returns whether it names devices. It stays when the program ends, because kubelet starts
/// containers again with what it got before.
fn write(folder: &Path, devices: &[String]) -> Result<bool, FileError> {
    let Some(text) = text(devices) else { return Ok(false) };
    let (path, new) = (folder.join(NAME), folder.join(NEW_NAME));
    if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(true);
    }
    match fs::remove_file(&new) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(FileError::of("remove", &new)(cause)),
        _ => {}
    }
    let file = File::options().write(true).create_new(true).mode(0o644).open(&new);
    let mut file = file.map_err(FileError::of("make", &new))?;
    // Whatever the umask is: runtimes need not be root.
    file.set_permissions(Permissions::from_mode(0o644))
        .map_err(FileError::of("set the mode of", &new))?;
    file.write_all(text.as_bytes()).map_err(FileError::of("write", &new))?;
    fs::rename(&new, &path).map_err(FileError::of("rename to", &path))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn the_file_has_the_devices_and_is_written_only_when_they_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        assert!(!write(folder.path(), &[]).unwrap());
        assert!(!path.exists());
        let one = ["/dev/kvm".to_owned()];
        assert!(write(folder.path(), &one).unwrap());
        let spec: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let nodes = json!([{"path": "/dev/kvm", "permissions": "rw"}]);
        let device = json!({"name": "devices", "containerEdits": {"deviceNodes": nodes}});
        assert_eq!(
            spec,
            json!({"cdiVersion": "0.5.0", "kind": "stelia.io/vm", "devices": [device]})
        );
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);

        let first = fs::metadata(&path).unwrap().ino();
        assert!(write(folder.path(), &one).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().ino(), first);
        assert!(write(folder.path(), &["/dev/kvm".into(), "/dev/net/tun".into()]).unwrap());
        assert!(fs::read_to_string(&path).unwrap().contains("/dev/net/tun"));
    }

    #[test]
    fn a_link_in_the_place_of_the_new_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        fs::write(&target, "stays").unwrap();
        symlink(&target, folder.path().join(NEW_NAME)).unwrap();
        assert!(write(folder.path(), &["/dev/kvm".into()]).unwrap());
        assert_eq!(fs::read_to_string(&target).unwrap(), "stays");
    }

    #[test]
    fn a_failure_is_no_reason_to_end_unless_the_folder_is_read_only() {
        let file = CdiFile::new("/no/such/folder".into(), true);
        assert!(!file.write(&["/dev/kvm".into()]).unwrap());
    }

    #[test]
    fn an_error_names_the_file() {
        let error = write(Path::new("/no/such/folder"), &["/dev/kvm".into()]).unwrap_err();
        assert!(error.to_string().starts_with("make /no/such/folder/"), "{error}");
    }
}
