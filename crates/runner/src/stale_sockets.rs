//! Removes sockets that the container's previous run left in the file system.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::error::Error;

/// Removes the socket of the container's previous run. It is an error if the path is not a socket.
pub(crate) fn remove_stale_socket(path: &Path) -> Result<(), Error> {
    let failed = Error::path("remove the stale socket", path);
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(metadata) if metadata.file_type().is_socket() => std::fs::remove_file(path).map_err(failed),
        Ok(_) => Err(failed(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "it exists and is not a socket",
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_goes_and_a_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q");
        assert!(remove_stale_socket(&path).is_ok());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(remove_stale_socket(&path).is_ok());
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        let error = remove_stale_socket(&path).unwrap_err();
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(path.exists());
    }
}
