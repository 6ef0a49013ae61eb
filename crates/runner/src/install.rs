//! `install`: the image holds this program and nothing else, so the program copies itself to where a pod's containers find it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::Error;

/// The name it is installed under.
const NAME: &str = "stelia-runner";

/// Copy the running program into `directory`; whoever looks finds all of it or what was there before.
///
/// # Errors
/// The program cannot be read, or the directory not written.
pub fn install(directory: &Path) -> Result<PathBuf, Error> {
    let target = directory.join(NAME);
    let temporary = directory.join(format!(".{NAME}.{}", std::process::id()));
    let copied = copy(&temporary).and_then(|()| fs::rename(&temporary, &target));
    copied.map_err(|cause| {
        // What was begun is of no use to anybody.
        let _ = fs::remove_file(&temporary);
        Error::Path {
            operation: "install",
            path: target.clone(),
            cause,
        }
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
