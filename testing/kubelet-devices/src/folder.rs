//! The folder of plugins' sockets.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::Path;

use anyhow::Context;
use tokio::net::UnixListener;

/// Permission bits of the folder when kubelet makes it.
const FOLDER_MODE: u32 = 0o750;
/// Permission bits of sockets that only root opens.
const SOCKET_MODE: u32 = 0o600;

/// Makes the folder, or removes the sockets in it, as kubelet does; other files and folders stay.
pub fn wipe(folder: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(folder)
        .with_context(|| format!("create {}", folder.display()))?;
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("list {}", folder.display()))?;
        let path = entry.path();
        let kind = entry.file_type().with_context(|| format!("stat {}", path.display()))?;
        if kind.is_socket() {
            remove(&path)?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => {
            Err(cause).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Listens on a new socket at `path`.
pub fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    remove(path)?;
    let listener = UnixListener::bind(path).with_context(|| format!("listen on {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))
        .with_context(|| format!("set the mode of {}", path.display()))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use stelia_device_plugin::api::PLUGIN_FOLDER;
    use stelia_kubelet::devices::{self, DEVICE_MANAGER_STATE};

    use super::*;

    #[test]
    fn the_plugins_folder_and_kubelets_are_the_same() {
        assert_eq!(PLUGIN_FOLDER, devices::PLUGIN_FOLDER);
    }

    #[test]
    fn a_start_removes_sockets_and_leaves_files_and_folders() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("kubelet/device-plugins");
        wipe(&folder).unwrap();
        for name in [DEVICE_MANAGER_STATE, "DEPRECATION"] {
            fs::write(folder.join(name), "").unwrap();
        }
        UnixListener::bind(folder.join("vm.sock")).unwrap();
        fs::create_dir(folder.join("deeper")).unwrap();
        wipe(&folder).unwrap();
        let mut names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|one| one.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["DEPRECATION", "deeper", DEVICE_MANAGER_STATE]);
    }
}
