//! What a caller is told of an error of the system.

use stelia_api::{Error, ErrorKind};

use crate::cgroup::CgroupError;
use crate::proc::ProcError;
use crate::systemd::SystemdError;
use crate::workqueue::WorkqueueError;

/// With the node's particulars, until somebody says whose they are ([`Error::of`]).
macro_rules! failed {
    ($($cause:ty),+) => {
        $(impl From<$cause> for Error {
            fn from(error: $cause) -> Self {
                ErrorKind::Failed.because(error.to_string())
            }
        })+
    };
}

failed!(CgroupError, ProcError, SystemdError, WorkqueueError);
