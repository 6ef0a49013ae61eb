//! What the runner fails with.

use std::path::PathBuf;

/// An operation of the runner that failed; the text names operation, object and cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on a path.
    #[error("{operation} {}: {cause}", path.display())]
    Path {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        cause: std::io::Error,
    },
    /// A system call without a path.
    #[error("{operation}: {cause}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        cause: std::io::Error,
    },
    /// The daemon was not reachable, or the connection broke: worth another try.
    #[error("{operation} on {}: {text}", socket.display())]
    Transport {
        /// What was tried.
        operation: &'static str,
        /// The runner socket.
        socket: PathBuf,
        /// Why it failed.
        text: String,
    },
    /// The daemon answered with a D-Bus error.
    #[error("{operation}: {name}: {text}")]
    Refused {
        /// The method called.
        operation: &'static str,
        /// The D-Bus error's name.
        name: String,
        /// Its text.
        text: String,
    },
    /// QMP failed.
    #[error("QMP {command} on {}: {text}", socket.display())]
    Qmp {
        /// The QMP command, or `connect`.
        command: &'static str,
        /// The QMP socket.
        socket: PathBuf,
        /// Why it failed.
        text: String,
    },
    /// The daemon answered AttachVcpus, but the instance is not in a state that keeps the promise.
    #[error("AttachVcpus answered, but the instance's State is {0:?}, not \"isolated\" or \"contained\"")]
    NotIsolated(String),
}

impl Error {
    /// Would trying again, with nothing else changed, make sense?
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Transport { .. } => true,
            Error::Refused { name, .. } => name == "io.stelia.Isolation1.Error.Busy",
            _ => false,
        }
    }
}
