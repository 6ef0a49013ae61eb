//! A program: where it is found, and what tells it from another one at the same place.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// systemd's default for services (systemd.exec(5), `$PATH`). containerd is one, and its shims inherit it.
const PATH: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// A path of the node below `node`, which is `/` but in tests.
pub(super) fn at(node: &Path, path: &Path) -> PathBuf {
    node.join(path.strip_prefix("/").unwrap_or(path))
}

/// The program that a service calls by `name`. A shim outside of the usual places was found by a search path that has its
/// place first, as those of k3s and k0s have, which bring a runtime of their own beside it.
pub(super) fn find(node: &Path, name: &str, shim: &Path) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        let found = at(node, path).metadata();
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_absolute() && is_program(path));
    }
    let beside = shim.parent().filter(|folder| folder.is_absolute());
    let beside = beside.filter(|folder| !PATH.iter().any(|usual| Path::new(usual) == *folder));
    let folders = beside.into_iter().chain(PATH.iter().map(Path::new));
    folders.map(|folder| folder.join(name)).find(is_program)
}

/// Identifies a program file, so that a replaced program is detected. For a script it does not cover the programs that the script calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub dev: u64,
    pub inode: u64,
    /// In bytes.
    pub size: u64,
    /// When it was last written, in nanoseconds since the epoch.
    pub mtime_ns: i64,
}

impl Identity {
    /// The identity of the program at `path`; symbolic links are followed.
    ///
    /// # Errors
    /// The file's status cannot be read.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = path.metadata()?;
        Ok(Self {
            dev: found.dev(),
            inode: found.ino(),
            size: found.size(),
            mtime_ns: found
                .mtime()
                .saturating_mul(1_000_000_000)
                .saturating_add(found.mtime_nsec()),
        })
    }
}
