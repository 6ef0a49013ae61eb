//! The plugin's socket in kubelet's folder.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio::net::UnixListener;

use super::decide::FileId;

/// Why there is no socket.
#[derive(Debug, Error)]
pub(crate) enum SocketError {
    /// Whatever it is, somebody else made it.
    #[error("{} is not a socket and is not removed", path.display())]
    Foreign { path: PathBuf },
    #[error("another program listens on {}", path.display())]
    InUse { path: PathBuf },
    #[error("{operation} {}: {cause}", path.display())]
    System {
        operation: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
}

impl SocketError {
    /// The folder is read-only for this process: it was made after the unit's file system was set up, so only a new process can write there.
    pub(super) fn needs_new_process(&self) -> bool {
        matches!(self, Self::System { cause, .. } if cause.kind() == io::ErrorKind::ReadOnlyFilesystem)
    }
}

/// The socket. It is removed when this is dropped, unless another file is in its place.
#[derive(Debug)]
pub(super) struct PluginSocket {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl PluginSocket {
    /// Makes the socket, with mode 0600. One that an ended process left behind is removed first.
    pub(super) fn make(path: &Path) -> Result<(UnixListener, Self), SocketError> {
        let failed = |operation| {
            move |cause| SocketError::System {
                operation,
                path: path.to_owned(),
                cause,
            }
        };
        remove_left_behind(path)?;
        let listener = UnixListener::bind(path).map_err(failed("listen on"))?;
        let metadata = fs::symlink_metadata(path).map_err(failed("look at"))?;
        let socket = Self {
            path: path.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
        };
        // Where the umask did not do it. Only root writes to the folder, so this is the socket that was just made.
        if metadata.mode() & 0o777 != 0o600 {
            fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed("set the mode of"))?;
        }
        Ok((listener, socket))
    }

    /// Whether the socket is still in its place.
    pub(super) fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == (self.device, self.inode))
    }
}

impl Drop for PluginSocket {
    fn drop(&mut self) {
        if self.is_there() {
            // Whoever comes next finds a socket on which nobody listens, and removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove_left_behind(path: &Path) -> Result<(), SocketError> {
    let failed = |operation| {
        move |cause| SocketError::System {
            operation,
            path: path.to_owned(),
            cause,
        }
    };
    match fs::symlink_metadata(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(failed("look at")(cause)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::Foreign { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => {}
        // It is gone meanwhile.
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(_) => return Err(SocketError::InUse { path: path.to_owned() }),
        Err(cause) => return Err(failed("connect to")(cause)),
    }
    fs::remove_file(path).map_err(failed("remove"))
}

/// The identity of a socket at a path; `None` if there is none. Symbolic links are not followed.
pub(super) fn socket_at(path: &Path) -> Option<FileId> {
    let metadata = fs::symlink_metadata(path).ok()?;
    metadata.file_type().is_socket().then(|| FileId {
        device: metadata.dev(),
        inode: metadata.ino(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[tokio::test]
    async fn the_socket_has_mode_0600_and_is_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let (_listener, socket) = PluginSocket::make(&path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(socket.is_there() && socket_at(&path).is_some());
        drop(socket);
        assert_eq!(socket_at(&path), None);
    }

    #[tokio::test]
    async fn a_socket_that_an_ended_process_left_is_replaced_and_another_programs_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = PluginSocket::make(&path).unwrap_err();
        assert!(matches!(error, SocketError::InUse { .. }), "{error}");
        drop(listener);
        let (_listener, first) = PluginSocket::make(&path).unwrap();
        // What is not ours any more stays.
        fs::remove_file(&path).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!first.is_there());
        drop(first);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_stays_and_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        fs::write(&path, "somebody's").unwrap();
        let error = PluginSocket::make(&path).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{} is not a socket and is not removed", path.display())
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
        fs::remove_file(&path).unwrap();
        let target = folder.path().join("target.sock");
        drop(std::os::unix::net::UnixListener::bind(&target).unwrap());
        symlink(&target, &path).unwrap();
        assert!(matches!(
            PluginSocket::make(&path).unwrap_err(),
            SocketError::Foreign { .. }
        ));
        assert!(target.exists() && path.is_symlink());
        assert_eq!(socket_at(&path), None);
    }

    #[tokio::test]
    async fn an_error_names_the_path() {
        let error = PluginSocket::make(Path::new("/no/such/folder/a.sock")).unwrap_err();
        assert!(
            error.to_string().starts_with("listen on /no/such/folder/a.sock: "),
            "{error}"
        );
        assert!(!error.needs_new_process());
        let read_only = SocketError::System {
            operation: "listen on",
            path: "/a".into(),
            cause: rustix::io::Errno::ROFS.into(),
        };
        assert!(read_only.needs_new_process());
    }
}
