//! `stelia-runner install`: copies the program to a volume of the pod, because its image has no other program that could.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::Error;

const NAME: &str = "stelia-runner";

/// Copies the running program into `directory`, atomically.
pub(crate) fn install(directory: &Path) -> Result<PathBuf, Error> {
    let target = directory.join(NAME);
    let temporary = directory.join(format!(".{NAME}.{}", std::process::id()));
    let copied = copy(&temporary).and_then(|()| fs::rename(&temporary, &target));
    copied.map_err(|cause| {
        // A partial copy.
        let _ = fs::remove_file(&temporary);
        Error::path("install", &target)(cause)
    })?;
    Ok(target)
}

fn copy(target: &Path) -> io::Result<()> {
    let mut from = File::open("/proc/self/exe")?;
    let mut to = File::create(target)?;
    io::copy(&mut from, &mut to)?;
    to.set_permissions(Permissions::from_mode(0o755))?;
    to.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_copied_whole_and_may_be_executed() {
        let directory = tempfile::tempdir().unwrap();
        // Twice: a container may be started again.
        for _ in 0..2 {
            let target = install(directory.path()).unwrap();
            assert_eq!(target, directory.path().join("stelia-runner"));
            assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o755);
            assert_eq!(fs::read(&target).unwrap(), fs::read("/proc/self/exe").unwrap());
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn where_nothing_can_be_written_the_place_is_named_and_nothing_is_left() {
        let error = install(Path::new("/proc/nowhere")).unwrap_err().to_string();
        assert!(error.contains("/proc/nowhere/stelia-runner"), "{error}");
    }
}
