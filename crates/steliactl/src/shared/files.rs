//! Files of bounded length, and state files of kubelet.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use stelia_kubelet::cpu_manager_state::{CheckpointError, MAX_BYTES};

use super::daemon::Failure;

/// A path of the node below `root`, where it may be already.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    if path.starts_with(root) {
        path.to_owned()
    } else {
        root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// A path below `root` as the node has it.
pub(crate) fn without_root(root: &Path, path: &Path) -> PathBuf {
    let rest = path.strip_prefix(root);
    rest.map_or_else(|_| path.to_owned(), |rest| Path::new("/").join(rest))
}

/// Reads at most `max_bytes` + 1 bytes: the parser refuses a file that is longer than `max_bytes`.
pub(crate) fn bytes(path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    take(File::open(path)?, max_bytes)
}

/// Why a state file of kubelet's cannot be used, with its path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct UnusableState {
    pub(crate) text: String,
    /// kubelet cannot use it either.
    pub(crate) is_damaged: bool,
}

/// A state file of kubelet's; `None` where it does not exist.
pub(crate) fn kubelet_state<T>(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, CheckpointError>,
) -> Result<Option<T>, UnusableState> {
    let unusable = |text: String, is_damaged: bool| Err(UnusableState { text, is_damaged });
    match bytes(path, MAX_BYTES).map(|bytes| parse(&bytes)) {
        Ok(Ok(state)) => Ok(Some(state)),
        Ok(Err(cause)) => unusable(format!("{}: {cause}", path.display()), cause.is_damage()),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => unusable(format!("read {}: {cause}", path.display()), false),
    }
}

/// As `bytes`, as text; `-` is standard input.
pub(crate) fn text(path: &Path, max_bytes: usize) -> Result<String, Failure> {
    let bytes = if path == Path::new("-") {
        take(io::stdin().lock(), max_bytes)
    } else {
        bytes(path, max_bytes)
    };
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    text.map_err(|cause| Failure::Other(format!("read {}: {cause}", path.display())))
}

fn take(from: impl Read, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
