//! A file that says that the runner has paused the guest for its new vCPUs, so that a runner that is started again beside the same VMM lets it
//! run. Without it nobody would: the VMM does not say who paused its guest.

use std::io;
use std::path::{Path, PathBuf};

use stelia_kernel::proc::{KernelProcs, Procs};

use super::error::Error;

/// In the directory of the runner's socket.
const FILE: &str = "stelia-runner.paused";

#[derive(Debug, Clone)]
pub(crate) struct PauseMark {
    /// `None` if the runner has no directory.
    file: Option<PathBuf>,
    /// Which process it is about: its number and when it was started. The file may have outlived a VMM, on a volume.
    vmm: String,
}

impl PauseMark {
    pub(crate) fn new(directory: Option<&Path>, pid: i32) -> PauseMark {
        let start = KernelProcs::new("/proc").identify(pid).map_or(0, |task| task.start);
        PauseMark {
            file: directory.map(|directory| directory.join(FILE)),
            vmm: format!("{pid} {start}\n"),
        }
    }

    #[cfg(test)]
    pub(crate) fn exists(directory: &Path) -> bool {
        directory.join(FILE).exists()
    }

    /// Whether a runner paused this VMM's guest and did not let it run.
    pub(crate) fn is_set(&self) -> bool {
        let text = self.file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        text.as_ref() == Some(&self.vmm)
    }

    /// Written before the guest is paused.
    pub(crate) fn set(&self) {
        if let Some(file) = &self.file
            && let Err(cause) = std::fs::write(file, &self.vmm)
        {
            tracing::warn!("{}", Error::path("write", file)(cause));
        }
    }

    /// Removed when the guest runs.
    pub(crate) fn clear(&self) {
        if let Some(file) = &self.file
            && let Err(cause) = std::fs::remove_file(file)
            && cause.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}", Error::path("remove", file)(cause));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_about_one_process() {
        let dir = tempfile::tempdir().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let mark = PauseMark::new(Some(dir.path()), own);
        assert!(!mark.is_set());
        mark.set();
        assert!(mark.is_set() && PauseMark::new(Some(dir.path()), own).is_set());
        // The mark of another process, and of one with the same number before.
        assert!(!PauseMark::new(Some(dir.path()), 1).is_set());
        std::fs::write(dir.path().join(FILE), format!("{own} 1\n")).unwrap();
        assert!(!mark.is_set());
        mark.clear();
        mark.clear();
        assert!(!dir.path().join(FILE).exists());
    }

    #[test]
    fn without_a_directory_there_is_none() {
        let mark = PauseMark::new(None, 1);
        mark.set();
        assert!(!mark.is_set());
        mark.clear();
    }
}
