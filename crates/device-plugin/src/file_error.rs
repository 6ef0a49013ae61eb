//! What could not be done with a file.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

#[derive(Debug, Error)]
#[error("{operation} {}: {cause}", path.display())]
pub(crate) struct FileError {
    operation: &'static str,
    path: PathBuf,
    pub(crate) cause: io::Error,
}

impl FileError {
    pub(crate) fn of(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |cause| Self { operation, path, cause }
    }

    /// The folder is read-only for this process: it was made after the unit's file system was set up, so only a new process can write there.
    pub(crate) fn needs_new_process(&self) -> bool {
        self.cause.kind() == io::ErrorKind::ReadOnlyFilesystem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_process_can_write_to_a_folder_that_is_read_only() {
        let error = |cause: rustix::io::Errno| FileError::of("make", Path::new("/a"))(cause.into());
        assert!(error(rustix::io::Errno::ROFS).needs_new_process());
        assert!(!error(rustix::io::Errno::ACCESS).needs_new_process());
    }
}
