//! Stores entries in a bounded ring of files.
//!
//! A line is `HASH JSON`: the SHA-256 of the hash of the line before, a newline and the JSON text. A *segment* is a file of lines, named by
//! the number of its first entry. The first entry has all state that is needed to read the segment without older ones, and the hash of the
//! entry before, so that it can be checked when older segments are gone.
//!
//! - [`Ring`]: the writer, of which there is one;
//! - [`read`]: reads entries, also while they are written;
//! - [`verify`]: checks for changes;
//! - [`key`]: signs the last entry of each day.
//!
//! The chain shows that no line was changed after it was written, up to a hash that the reader has from elsewhere, such as a signed head.
//! It does not show that the entries are true: root can write a different ledger from the beginning, and has the key.

mod chain;
mod crash_recovery;
mod disk;
mod folder;
pub mod key;
mod line_format;
mod line_reader;
pub mod read;
#[cfg(test)]
mod tests;
mod trim;
pub mod verify;
mod write;

use std::io;
use std::path::{Path, PathBuf};

pub use crash_recovery::RingRecovery;
pub use line_format::MAX_LINE_BYTES;
pub use trim::Limits;
pub use write::{Appended, Ring};

/// Why the ring could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error("{operation} {}: {cause}", path.display())]
    System {
        operation: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
    #[error("another process writes the ledger in {}", _0.display())]
    Locked(PathBuf),
    #[error("an entry of {bytes} bytes is too long: the limit is {max_line}")]
    TooLong { bytes: usize, max_line: usize },
    #[error("write an entry as JSON: {0}")]
    Entry(serde_json::Error),
    #[error("the ledger has no more numbers: {} must be moved away", _0.display())]
    NoNumbers(PathBuf),
}

impl RingError {
    /// `operation` is a verb: open, read, write.
    fn system<E: Into<io::Error>>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> Self + use<E> {
        let path = path.to_owned();
        move |cause| Self::System {
            operation,
            path,
            cause: cause.into(),
        }
    }
}
