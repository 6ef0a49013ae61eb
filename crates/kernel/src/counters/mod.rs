//! The kernel's counters of CPUs and threads in `/proc`: the forms of its files, parsed from bytes. Only the lines and columns of wanted
//! CPUs become values: on a large host these files have a megabyte.
//!
//! A text that has not the form it should is an error and never a smaller number; whoever reads may read again, because a CPU that
//! goes on- or offline meanwhile looks so.
//!
//! What a look at all VMs calls is `#[inline]`: it is then compiled in the caller's crate and optimised as that crate is, and
//! `stelia-ledger` is optimised more for speed than this crate (`[profile.release]` in the workspace's Cargo.toml).

mod columns;
pub mod cpu_time;
pub mod interrupts;
pub mod schedstat;
pub mod softirqs;
pub mod task;
mod words;

use std::path::Path;

use stelia_cpus::text::excerpt::excerpt;

/// A file's value; read once more where a CPU came or went while the kernel wrote it. `None` where it cannot be read or has another form.
pub fn read<T>(path: &Path, parse: impl Fn(&[u8]) -> Result<T, ParseError>) -> Option<T> {
    let read = || parse(&std::fs::read(path).ok()?).ok();
    read().or_else(read)
}

/// Why one of the kernel's files does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The last line has no end: there was more.
    #[error("it ends within a line")]
    Cut,
    /// The first line of a table does not name CPUs.
    #[error("the header {0:?} names something that is not a CPU")]
    Header(String),
    /// Another number of counts than the header has CPUs: a CPU went on- or offline while the kernel wrote the file.
    #[error("the line {line:?} does not have {expected} counts")]
    Columns {
        /// Its beginning.
        line: String,
        /// CPUs in the header.
        expected: usize,
    },
    /// `/proc/schedstat` has a version whose columns are not defined here.
    #[error("{0:?} is none of the versions 15 to 17")]
    Version(String),
    /// A line lacks the expected numbers, or one is too large.
    #[error("the line {0:?} does not have the numbers it should")]
    Line(String),
}

impl ParseError {
    fn line(bytes: &[u8]) -> Self {
        Self::Line(beginning(bytes))
    }
}

/// The beginning of a line, for an error.
fn beginning(bytes: &[u8]) -> String {
    // An excerpt has at most 64 bytes.
    excerpt(&String::from_utf8_lossy(&bytes[..bytes.len().min(64)]))
}
