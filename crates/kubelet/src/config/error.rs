//! Errors of reading kubelet's configuration.

use std::io;
use std::path::{Path, PathBuf};

use stelia_cpus::ParseError;

/// Why kubelet's configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No process is kubelet.
    #[error("no kubelet runs on this node")]
    NotRunning,
    /// More than one process could be kubelet.
    #[error("more than one process could be kubelet and is not in a pod: {0:?}")]
    Several(Vec<i32>),
    /// A process that answers on kubelet's socket, has an unknown name and does not have kubelet's flags.
    #[error(
        "process {pid} ({name}) answers on kubelet's socket, and where it has kubelet's configuration is not known"
    )]
    Unknown {
        /// As in `/proc`.
        pid: i32,
        /// Its name, shortened to fit a line.
        name: String,
    },
    /// A file cannot be read.
    #[error("read {}: {cause}", path.display())]
    Read {
        /// The file or the folder.
        path: PathBuf,
        /// The system's answer.
        #[source]
        cause: io::Error,
    },
    /// A file is larger, or repeats more by its aliases, than is read here. kubelet may read it.
    #[error("{place}: {cause}")]
    Limit {
        /// Which file.
        place: String,
        /// Which limit.
        cause: String,
    },
    /// A file is empty, or neither YAML nor JSON.
    #[error("{place}: {cause}")]
    Malformed {
        /// Which file.
        place: String,
        /// What is wrong, and on which line.
        cause: String,
    },
    /// A file is not a KubeletConfiguration of version v1beta1.
    #[error("{place}: {cause}")]
    Kind {
        /// Which file.
        place: String,
        /// What it says that it is.
        cause: String,
    },
    /// A key has a value of another type.
    #[error("{place}: {key} {what}")]
    Value {
        /// Which file.
        place: String,
        /// The key as its path: `systemReserved.cpu`.
        key: String,
        /// What it is, and what it has to be.
        what: String,
    },
    /// A drop-in has a key twice. In the file of `--config` the last counts.
    #[error("{place}: {key} is there twice, which kubelet takes in the file of --config and not in a drop-in")]
    Twice {
        /// Which drop-in.
        place: String,
        /// The key as its path.
        key: String,
    },
    /// A flag of kubelet's has no value, or one that it does not take.
    #[error("kubelet's flag --{flag}: {cause}")]
    Flag {
        /// Its name without dashes before it.
        flag: String,
        /// What is wrong.
        cause: String,
    },
    /// The reserved CPUs are not a CPU list.
    #[error("reservedSystemCPUs (--reserved-cpus): {0}")]
    ReservedCpus(#[source] ParseError),
}

impl ConfigError {
    /// Whether kubelet does not start with what was read.
    pub fn keeps_kubelet_from_starting(&self) -> bool {
        match self {
            Self::NotRunning | Self::Several(_) | Self::Unknown { .. } | Self::Limit { .. } => false,
            Self::Read { cause, .. } => cause.kind() == io::ErrorKind::NotFound,
            Self::Malformed { .. }
            | Self::Kind { .. }
            | Self::Value { .. }
            | Self::Twice { .. }
            | Self::Flag { .. }
            | Self::ReservedCpus(_) => true,
        }
    }

    /// The error, and what kubelet does with such a configuration.
    pub fn in_full(&self) -> String {
        if self.keeps_kubelet_from_starting() {
            format!("kubelet would not start: {self}")
        } else {
            self.to_string()
        }
    }

    /// The error of reading a file of `/proc`: where it is not there the process has ended.
    pub(crate) fn of_process(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| match cause.kind() {
            io::ErrorKind::NotFound => Self::NotRunning,
            _ => Self::read(path)(cause),
        }
    }

    /// The error of reading `path`.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Read {
            path: path.to_owned(),
            cause,
        }
    }
}
