//! Errors of the system as errors of calls.

use stelia_api::{Error, ErrorKind};

use crate::cgroup::CgroupError;
use crate::proc::ProcError;
use crate::systemd::SystemdError;
use crate::workqueue::WorkqueueError;

/// The text has details of the node, which pods may not read, unless the caller of this conversion names a pod
/// ([`Error::of`]).
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
