//! The plugin's socket in kubelet's folder.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixListener;

use super::decide::FileId;
use crate::file_error::FileError;

/// The socket. It is removed when this is dropped, unless another file is in its place.
#[derive(Debug)]
pub(super) struct PluginSocket {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl PluginSocket {
    /// Makes the socket, with mode 0600.
    pub(super) fn make(path: &Path) -> Result<(UnixListener, Self), FileError> {
        let failed = |operation| FileError::of(operation, path);
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

/// The names of the plugin's sockets: each registration has one of its own, so that what kubelet still does about an earlier one does not meet it.
pub(super) struct SocketNames {
    next: u64,
}

/// What surrounds the number in the name of a socket.
const NAME: (&str, &str) = ("stelia.io_vm-", ".sock");

impl SocketNames {
    /// The first number is the time, so that no process of this plugin uses another one's.
    pub(super) fn new() -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            next: u64::try_from(time.as_millis()).unwrap_or(0),
        }
    }

    pub(super) fn next(&mut self) -> String {
        let name = format!("{}{}{}", NAME.0, self.next, NAME.1);
        self.next = self.next.wrapping_add(1);
        name
    }
}

/// Whether a file's name is one of the plugin's sockets.
fn is_own(name: &str) -> bool {
    let number = name.strip_prefix(NAME.0).and_then(|name| name.strip_suffix(NAME.1));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Removes the plugin's sockets that ended processes left in the folder. Other files stay, whatever their names.
///
/// # Errors
///
/// What could not be done, or that another process listens on one: two plugins would take the resource from each other without end.
pub(super) fn remove_dead(folder: &Path) -> Result<(), FileError> {
    for entry in fs::read_dir(folder).map_err(FileError::of("read", folder))? {
        let entry = entry.map_err(FileError::of("read", folder))?;
        if !entry.file_name().to_str().is_some_and(is_own) {
            continue;
        }
        let path = entry.path();
        if socket_at(&path).is_none() {
            continue;
        }
        match connect(&path) {
            Err(Errno::CONNREFUSED) => match fs::remove_file(&path) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                    return Err(FileError::of("remove", &path)(cause));
                }
                _ => {}
            },
            // It is gone meanwhile.
            Err(Errno::NOENT) => {}
            // Its queue is full.
            Ok(()) | Err(Errno::AGAIN) => {
                let in_use = io::Error::new(io::ErrorKind::AddrInUse, "another program listens on it");
                return Err(FileError::of("remove", &path)(in_use));
            }
            Err(cause) => return Err(FileError::of("connect to", &path)(cause.into())),
        }
    }
    Ok(())
}

/// Without waiting for a program that does not accept connections.
fn connect(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

/// The identity of a socket at a path; `None` if there is none. Symbolic links are not followed.
pub(super) fn socket_at(path: &Path) -> Option<FileId> {
    let metadata = fs::symlink_metadata(path).ok()?;
    metadata.file_type().is_socket().then(|| FileId {
        device: metadata.dev(),
        inode: metadata.ino(),
        time: time(&metadata),
    })
}

/// When the file was made. Its last change would be another time whenever somebody changes its mode, but not every file system knows more.
fn time(metadata: &Metadata) -> (i64, i64) {
    let made = metadata.created().ok();
    let made = made.and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    let made = made.and_then(|made| Some((i64::try_from(made.as_secs()).ok()?, i64::from(made.subsec_nanos()))));
    made.unwrap_or((metadata.ctime(), metadata.ctime_nsec()))
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

    #[test]
    fn names_differ_and_are_the_plugins_own() {
        let mut names = SocketNames::new();
        let (first, second) = (names.next(), names.next());
        assert!(first != second && is_own(&first) && is_own(&second), "{first} {second}");
        for other in [
            "stelia.io_vm.sock",
            "stelia.io_vm-.sock",
            "stelia.io_vm-1",
            "stelia.io_vm-a1.sock",
            "x-stelia.io_vm-1.sock",
            "kubelet.sock",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn a_socket_that_an_ended_process_left_is_removed_and_another_programs_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let bind = |name: &str| std::os::unix::net::UnixListener::bind(at(name)).unwrap();
        drop((bind("stelia.io_vm-1.sock"), bind("other-1.sock")));
        remove_dead(folder.path()).unwrap();
        assert!(!at("stelia.io_vm-1.sock").exists() && at("other-1.sock").exists());
        let listener = bind("stelia.io_vm-2.sock");
        let error = remove_dead(folder.path()).unwrap_err();
        assert_eq!(error.cause.kind(), io::ErrorKind::AddrInUse, "{error}");
        drop(listener);
        remove_dead(folder.path()).unwrap();
        assert!(!at("stelia.io_vm-2.sock").exists());
    }

    #[test]
    fn a_program_that_accepts_no_connections_does_not_make_the_plugin_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stelia.io_vm-3.sock");
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        for _ in 0..4 {
            let error = remove_dead(folder.path()).unwrap_err();
            assert_eq!(error.cause.kind(), io::ErrorKind::AddrInUse, "{error}");
        }
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_stays_and_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stelia.io_vm-4.sock");
        fs::write(&path, "somebody's").unwrap();
        remove_dead(folder.path()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
        assert!(PluginSocket::make(&path).is_err());
        fs::remove_file(&path).unwrap();
        let target = folder.path().join("target.sock");
        drop(std::os::unix::net::UnixListener::bind(&target).unwrap());
        symlink(&target, &path).unwrap();
        remove_dead(folder.path()).unwrap();
        assert!(PluginSocket::make(&path).is_err());
        assert!(target.exists() && path.is_symlink());
        assert_eq!(socket_at(&path), None);
    }

    #[test]
    fn the_identity_of_a_socket_stays_when_its_mode_changes_and_is_another_one_when_it_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubelet.sock");
        let first = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let identity = socket_at(&path).unwrap();
        if fs::symlink_metadata(&path).unwrap().created().is_ok() {
            fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
            assert_eq!(socket_at(&path), Some(identity));
        }
        drop(first);
        fs::remove_file(&path).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let _second = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_ne!(socket_at(&path), Some(identity));
    }

    #[tokio::test]
    async fn an_error_names_the_path() {
        let error = PluginSocket::make(Path::new("/no/such/folder/a.sock")).unwrap_err();
        assert!(error.to_string().starts_with("listen on /no/such/"), "{error}");
        assert!(!error.needs_new_process());
    }
}
