//! kubelet's root directory: the one that is set, or the one that is found.

use std::path::{Path, PathBuf};

use stelia_allocator::CpuSource;
use stelia_kubelet::{CpuManagerState, home};

use super::observe::{self, Version};

/// Where kubelet's file is read.
pub(super) struct KubeletRoot {
    path: PathBuf,
    /// It was found, and not only assumed.
    found: bool,
    /// Why it is not known which it is.
    unclear: Option<String>,
}

impl KubeletRoot {
    /// kubelet's default until it is looked for.
    pub(super) fn new() -> Self {
        Self {
            path: home::ROOTS[0].into(),
            found: false,
            unclear: None,
        }
    }

    /// Look for it below `root` (`/`), where it is not set.
    pub(super) fn find(&mut self, setting: &Path, root: &Path) {
        let before = self.found.then_some(self.path.as_path());
        match home::by_setting(setting, root, before) {
            Ok(path) => {
                if path != self.path {
                    tracing::info!("kubelet's root directory is {}", path.display());
                }
                (self.path, self.found, self.unclear) = (path, true, None);
            }
            Err(unclear) => self.unclear = Some(unclear.to_string()),
        }
    }

    /// The directory, the last one that was clear.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Which version of kubelet's file is there.
    pub(super) fn version(&self) -> Option<Version> {
        match self.unclear {
            Some(_) => None,
            None => observe::kubelet_version(&self.path),
        }
    }

    /// What it says, or why that is not known.
    pub(super) fn state(&self, source: CpuSource) -> Result<CpuManagerState, String> {
        match &self.unclear {
            Some(unclear) => Err(unclear.clone()),
            None => observe::kubelet(&self.path, source),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn nothing_is_read_where_two_directories_could_be_kubelets_until_it_is_set() {
        let root = tempfile::tempdir().unwrap();
        let write = |known: &str| {
            let folder = root.path().join(&known[1..]);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpu_manager_state"), "x").unwrap();
        };
        write("/var/lib/k0s/kubelet");
        let auto = Path::new(home::AUTO);
        let mut found = KubeletRoot::new();
        found.find(auto, root.path());
        assert!(found.path().ends_with("k0s/kubelet") && found.version().is_some());
        // What was found stays where an older one's comes to light; a daemon that starts now does not know.
        write("/var/lib/kubelet");
        found.find(auto, root.path());
        assert!(found.path().ends_with("k0s/kubelet") && found.version().is_some());
        let mut late = KubeletRoot::new();
        late.find(auto, root.path());
        assert_eq!(late.version(), None);
        let unclear = late.state(CpuSource::Kubelet).unwrap_err();
        assert!(unclear.contains("set kubelet-root"), "{unclear}");
        // Not even where kubelet is not needed: it may have given CPUs.
        assert_eq!(late.state(CpuSource::Steliad), Err(unclear));
        late.find(&root.path().join("var/lib/kubelet"), root.path());
        assert!(late.path().ends_with("lib/kubelet") && late.version().is_some());
    }
}
