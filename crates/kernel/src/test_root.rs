//! A temporary folder that stands for the root of a node in tests.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub(crate) struct Root(TempDir);

/// Everything is made with the folders above it; paths may begin with a slash.
impl Root {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.join(path.trim_start_matches('/'))
    }

    fn make(&self, path: &str) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn file(&self, path: &str, bytes: impl AsRef<[u8]>) -> &Self {
        fs::write(self.make(path), bytes).unwrap();
        self
    }

    /// A file that everybody may execute.
    pub(crate) fn program(&self, path: &str, text: &str) -> &Self {
        self.file(path, text).mode(path, 0o755)
    }

    pub(crate) fn mode(&self, path: &str, mode: u32) -> &Self {
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    pub(crate) fn link(&self, target: impl AsRef<Path>, path: &str) -> &Self {
        symlink(target, self.make(path)).unwrap();
        self
    }
}

impl Deref for Root {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}
