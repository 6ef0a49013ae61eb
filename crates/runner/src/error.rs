//! The errors of the runner.

use std::io;
use std::path::{Path, PathBuf};

/// Each text names the operation, the object and the cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation} {}: {cause}", path.display())]
    Path {
        operation: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
    #[error("{operation}: {cause}")]
    System { operation: &'static str, cause: io::Error },
    /// The daemon was not reachable, or the connection broke.
    #[error("{operation} on {}: {text}", socket.display())]
    Transport {
        operation: &'static str,
        socket: PathBuf,
        text: String,
    },
    #[error("{operation}: {name}: {text}")]
    Refused {
        operation: &'static str,
        name: String,
        text: String,
    },
    #[error("QMP {command} on {}: {text}", socket.display())]
    Qmp {
        /// Or `connect`.
        command: &'static str,
        socket: PathBuf,
        text: String,
    },
    #[error("QMP {command} on {}: {text}", socket.display())]
    QmpRefused {
        command: &'static str,
        socket: PathBuf,
        text: String,
    },
    /// The guest agent was not reachable, did not answer, or gave an unexpected answer.
    #[error("guest agent on {}: {text}", socket.display())]
    GuestAgent { socket: PathBuf, text: String },
    /// The VMM's HTTP API was not reachable, did not answer, or gave an unexpected answer.
    #[error("{vmm}: {request} on {}: {text}", socket.display())]
    Api {
        vmm: &'static str,
        /// Or `connect`.
        request: &'static str,
        socket: PathBuf,
        text: String,
    },
    #[error("{vmm}: {request} on {}: {text}", socket.display())]
    ApiRefused {
        vmm: &'static str,
        request: &'static str,
        socket: PathBuf,
        /// The HTTP status code.
        status: u16,
        text: String,
    },
    #[error("open --fd {name}={what}: {cause}")]
    Descriptor {
        name: String,
        what: String,
        cause: io::Error,
    },
    /// The VMM could not be executed.
    #[error("start {vmm} {}: {cause}", program.display())]
    Start {
        vmm: &'static str,
        program: PathBuf,
        cause: io::Error,
    },
    /// Options that do not go together.
    #[error("{0}")]
    Usage(String),
    #[error("find vCPU threads by name: {0}")]
    ThreadNames(String),
    /// A helper's declaration is wrong, or it did not become ready, or it ended.
    #[error("helper {name}: {text}")]
    Helper { name: String, text: String },
    /// The daemon answered AttachVcpus, but the instance is not in a state that keeps the promise.
    #[error("AttachVcpus answered, but the instance's State is {0:?}, not \"isolated\" or \"pinned\"")]
    NotIsolated(String),
}

impl Error {
    /// An I/O error of an operation on a path.
    pub(crate) fn path(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
        move |cause| Error::Path {
            operation,
            path: path.to_owned(),
            cause,
        }
    }

    /// A failed system call, or another operation without a path.
    pub(crate) fn system<E: Into<io::Error>>(operation: &'static str) -> impl Fn(E) -> Error {
        move |cause| Error::System {
            operation,
            cause: cause.into(),
        }
    }

    /// Whether the daemon answered that the instance does not exist.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Error::Refused { name, .. } if name == "io.stelia.Isolation1.Error.NoSuchInstance"
            || name.starts_with("org.freedesktop.DBus.Error.Unknown"))
    }

    /// Whether trying again may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Error::Transport { .. } => true,
            Error::Refused { name, .. } => name == "io.stelia.Isolation1.Error.Busy",
            _ => false,
        }
    }
}
