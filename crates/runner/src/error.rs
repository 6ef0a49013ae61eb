use std::path::PathBuf;

/// The texts name operation, object and cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation} {}: {cause}", path.display())]
    Path {
        operation: &'static str,
        path: PathBuf,
        cause: std::io::Error,
    },
    #[error("{operation}: {cause}")]
    System {
        operation: &'static str,
        cause: std::io::Error,
    },
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
    /// The VMM's HTTP API was not reachable, did not answer, or answered what is not understood.
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
        cause: std::io::Error,
    },
    /// The VMM could not be executed.
    #[error("start {vmm} {}: {cause}", program.display())]
    Start {
        vmm: &'static str,
        program: PathBuf,
        cause: std::io::Error,
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
    #[error("AttachVcpus answered, but the instance's State is {0:?}, not \"isolated\" or \"contained\"")]
    NotIsolated(String),
}

impl Error {
    /// Whether the daemon answered that the instance does not exist.
    pub(crate) fn is_absent(&self) -> bool {
        match self {
            Error::Refused { name, .. } => {
                name == "io.stelia.Isolation1.Error.NoSuchInstance"
                    || name.starts_with("org.freedesktop.DBus.Error.Unknown")
            }
            _ => false,
        }
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
