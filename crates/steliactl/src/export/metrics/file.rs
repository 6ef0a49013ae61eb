//! A file that is replaced as a whole.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::shared::daemon::Failure;

/// Replaces `path` by `text`: a reader sees the old file or the new one, and a crash leaves one of them.
///
/// # Errors
/// The directory cannot be written to.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let Some(name) = path.file_name() else {
        return Err(Failure::Usage(format!("{} names no file", path.display())));
    };
    // In the same directory, because it is renamed; not ending in .prom, which the collector would read.
    let temporary = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|cause| {
        // Best effort: the write may have failed before there was a file.
        let _ = fs::remove_file(&temporary);
        Failure::Other(format!("write {}: {cause}", path.display()))
    })
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    // Whatever the umask: the collector runs as another user.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_readable_for_all_and_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("steliad.prom");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("absent/x.prom");
        let failure = replace(&path, "").unwrap_err();
        let start = format!("write {}: ", path.display());
        assert!(failure.to_string().starts_with(&start), "{failure}");
    }
}
