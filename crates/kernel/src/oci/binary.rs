//! A program: where it is found, and what tells it from another one at the same place.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::program::{Program, ProgramError};

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

/// The program that a service calls by `name`, opened. A shim outside of the usual places was found by a search path that has its
/// place first, as those of k3s and k0s have, which bring a runtime of their own beside it.
pub(super) fn find(node: &Path, name: &str, shim: &Path) -> Result<(PathBuf, Program), ProgramError> {
    let open = |path: PathBuf| Program::open(node, &path).map(|program| (path, program));
    let absent = || ProgramError::NotExecutable(PathBuf::from(name));
    if name.contains('/') {
        let path = Some(PathBuf::from(name)).filter(|path| path.is_absolute());
        return path.map_or_else(|| Err(absent()), open);
    }
    let beside = shim.parent().filter(|folder| folder.is_absolute());
    let beside = beside.filter(|folder| !PATH.iter().any(|usual| Path::new(usual) == *folder));
    let folders = beside.into_iter().chain(PATH.iter().map(Path::new));
    let mut opened = folders.map(|folder| open(folder.join(name)));
    // The first one is the manager's: if it is not to be run, none is.
    let found = opened.find(|opened| !matches!(opened, Err(ProgramError::NotExecutable(_))));
    found.unwrap_or_else(|| Err(absent()))
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
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&path.metadata()?))
    }
}

impl From<&Metadata> for Identity {
    fn from(found: &Metadata) -> Self {
        Self {
            dev: found.dev(),
            inode: found.ino(),
            size: found.size(),
            mtime_ns: found
                .mtime()
                .saturating_mul(1_000_000_000)
                .saturating_add(found.mtime_nsec()),
        }
    }
}
