//! What a caller is told of a fault of the system.

use stelia_api::{Error, ErrorKind};

use crate::cgroup::CgroupError;
use crate::systemd::SystemdError;

// With the node's particulars, until somebody says whose they are ([`Error::of`]).
impl From<CgroupError> for Error {
    fn from(error: CgroupError) -> Self {
        ErrorKind::Failed.because(error.to_string())
    }
}

impl From<SystemdError> for Error {
    fn from(error: SystemdError) -> Self {
        ErrorKind::Failed.because(error.to_string())
    }
}
