//! kubelet's `cpu_manager_state`: the directory it is in, set or found, and what it says.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use stelia_decide::{refused_beside, usable_state};
use stelia_kernel::dra;
use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use stelia_kubelet::{CpuManagerState, home};

/// kubelet's root directory.
#[derive(Clone)]
pub(super) struct KubeletRoot {
    path: PathBuf,
    /// Whether `path` was set or found. Otherwise it is kubelet's default.
    found: bool,
    /// Why no directory is chosen: more than one looks like kubelet's.
    unclear: Option<String>,
    /// `/` but in tests.
    system: PathBuf,
}

impl KubeletRoot {
    /// kubelet's default until it is looked for.
    pub(super) fn new() -> Self {
        Self {
            path: home::ROOTS[0].into(),
            found: false,
            unclear: None,
            system: "/".into(),
        }
    }

    /// Look for it below `root` (`/` but in tests), unless `setting` names it.
    pub(super) fn find(&mut self, setting: &Path, root: &Path) {
        root.clone_into(&mut self.system);
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

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the file that is there.
    pub(super) fn version(&self, source: CpuSource) -> Option<Version> {
        match self.unclear {
            Some(_) => None,
            None => version(&self.path).map(|version| Version {
                has_driver: self.driver(source).is_some(),
                ..version
            }),
        }
    }

    /// Why steliad must not choose the CPUs, beside a DRA driver.
    fn driver(&self, source: CpuSource) -> Option<String> {
        let drivers = || dra::cpu_drivers(&self.system, &self.path);
        refused_beside(&source.excludes_dra_drivers().then(drivers)?)
    }

    /// The file's content, or why it cannot be used.
    pub(super) fn state(&self, source: CpuSource) -> Result<CpuManagerState, String> {
        if let Some(unclear) = &self.unclear {
            return Err(unclear.clone());
        }
        match self.driver(source) {
            Some(refused) => Err(refused),
            None => {
                let path = self.path.join(CPU_MANAGER_STATE);
                usable_state(fs::read(&path), &path, source)
            }
        }
    }
}

/// Identifies one version of kubelet's file without reading it: each is a new file, renamed into place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    inode: u64,
    length: u64,
    changed: (i64, i64),
    /// Whether a DRA driver keeps steliad from choosing: then the file is not what is acted on.
    has_driver: bool,
    pub(super) modified: Option<SystemTime>,
}

/// The version of kubelet's state that is there now.
fn version(root: &Path) -> Option<Version> {
    let metadata = fs::metadata(root.join(CPU_MANAGER_STATE)).ok()?;
    Some(Version {
        inode: metadata.ino(),
        length: metadata.len(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        has_driver: false,
        modified: metadata.modified().ok(),
    })
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
        assert!(found.path().ends_with("k0s/kubelet") && found.version(CpuSource::Kubelet).is_some());
        // What was found stays where an older one's comes to light; a daemon that starts now does not know.
        write("/var/lib/kubelet");
        found.find(auto, root.path());
        assert!(found.path().ends_with("k0s/kubelet") && found.version(CpuSource::Kubelet).is_some());
        let mut late = KubeletRoot::new();
        late.find(auto, root.path());
        assert_eq!(late.version(CpuSource::Kubelet), None);
        let unclear = late.state(CpuSource::Kubelet).unwrap_err();
        assert!(unclear.contains("set kubelet-root"), "{unclear}");
        // Not even where kubelet is not needed: it may have given CPUs.
        assert_eq!(late.state(CpuSource::Steliad), Err(unclear));
        late.find(&root.path().join("var/lib/kubelet"), root.path());
        assert!(late.path().ends_with("lib/kubelet") && late.version(CpuSource::Kubelet).is_some());
    }

    #[test]
    fn beside_a_dra_driver_of_cpus_steliad_does_not_choose_and_kubelets_file_counts_as_ever() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("var/lib/kubelet");
        fs::create_dir_all(folder.join("plugins_registry")).unwrap();
        let none = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
        fs::write(folder.join("cpu_manager_state"), none).unwrap();
        let mut kubelet = KubeletRoot::new();
        kubelet.find(Path::new(home::AUTO), root.path());
        let before = kubelet.version(CpuSource::Steliad);
        let read = kubelet.state(CpuSource::Steliad);
        let socket = folder.join("plugins_registry/dra.cpu-reg.sock");
        fs::write(&socket, "").unwrap();
        // Seen although kubelet's file is the same.
        assert!(before.is_some() && kubelet.version(CpuSource::Steliad) != before);
        let refused = kubelet.state(CpuSource::Steliad).unwrap_err();
        assert!(
            refused.contains("\"dra.cpu\"") && refused.contains("plugins_registry"),
            "{refused}"
        );
        let error = kubelet.state(CpuSource::Kubelet);
        assert!(!error.is_err_and(|text| text.contains("DRA")));
        fs::remove_file(&socket).unwrap();
        assert_eq!(
            (kubelet.version(CpuSource::Steliad), kubelet.state(CpuSource::Steliad)),
            (before, read)
        );
    }
}
