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
    /// A file is not YAML, or a key of it has another type.
    #[error("{place}: {cause}")]
    Yaml {
        /// Which file.
        place: String,
        /// What is wrong, and on which line.
        cause: String,
    },
    /// A file's `kind` is not KubeletConfiguration.
    #[error("{place}: kind is {kind:?}, not \"KubeletConfiguration\"")]
    Kind {
        /// Which file.
        place: String,
        /// The kind it names; empty when it names none.
        kind: String,
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
    #[error("kubelet's reserved CPUs: {0}")]
    ReservedCpus(#[source] ParseError),
}

impl ConfigError {
    /// The error of reading `path`.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Read {
            path: path.to_owned(),
            cause,
        }
    }
}
