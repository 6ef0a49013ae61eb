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
    /// QEMU answered a command with an error.
    #[error("QMP {command} on {}: {text}", socket.display())]
    QmpRefused {
        /// The QMP command.
        command: &'static str,
        /// The QMP socket.
        socket: PathBuf,
        /// QEMU's words.
        text: String,
    },
    /// QEMU's vCPU threads are not to be found by their names.
    #[error("find vCPU threads by name: {0}")]
    Names(String),
    /// A helper is not what was declared, or did not get ready.
    #[error("helper {name}: {text}")]
    Helper {
        /// Its name.
        name: String,
        /// What is wrong.
        text: String,
    },
    /// The daemon answered AttachVcpus, but the instance is not in a state that keeps the promise.
    #[error("AttachVcpus answered, but the instance's State is {0:?}, not \"isolated\" or \"contained\"")]
    NotIsolated(String),
}

impl Error {
    /// Does the daemon say that this very object is not there?
    pub fn is_absent(&self) -> bool {
        match self {
            Error::Refused { name, .. } => {
                name == "io.stelia.Isolation1.Error.NoSuchInstance"
                    || name.starts_with("org.freedesktop.DBus.Error.Unknown")
            }
            _ => false,
        }
    }

    /// Would trying again, with nothing else changed, make sense?
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Transport { .. } => true,
            Error::Refused { name, .. } => name == "io.stelia.Isolation1.Error.Busy",
            _ => false,
        }
    }
}
