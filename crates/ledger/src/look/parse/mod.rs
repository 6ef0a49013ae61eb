//! The kernel's files as bytes. Only the lines and columns of wanted CPUs become values: on a large host these files have a megabyte.
//!
//! A text that has not the form it should is an error and never a smaller number; whoever reads may read again, because a CPU that
//! goes on- or offline meanwhile looks so.

pub mod interrupts;
pub mod schedstat;
pub mod softirqs;
pub mod steal;
mod table;
pub mod task;
mod words;

use stelia_text::excerpt::excerpt;

/// Why one of the kernel's files does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The last line has no end: there was more.
    #[error("it ends within a line")]
    Cut,
    /// The first line of a table does not name CPUs.
    #[error("the header {0:?} names something that is not a CPU")]
    Header(String),
    /// Another number of counts than the header has CPUs.
    #[error("the line {line:?} does not have {expected} counts")]
    Columns {
        /// Its beginning.
        line: String,
        /// CPUs in the header.
        expected: usize,
    },
    /// Of `/proc/schedstat`: what its columns mean is not known.
    #[error("{0:?} is none of the versions 15 to 17")]
    Version(String),
    /// A line without the numbers that are looked for, or with such as are too large.
    #[error("the line {0:?} does not have the numbers it should")]
    Line(String),
}

impl ParseError {
    fn line(bytes: &[u8]) -> Self {
        Self::Line(beginning(bytes))
    }
}

/// Of a line of somebody else's, what an error tells.
fn beginning(bytes: &[u8]) -> String {
    // An excerpt has at most 64 bytes.
    excerpt(&String::from_utf8_lossy(&bytes[..bytes.len().min(64)]))
}
